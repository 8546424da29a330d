"""Prints the statements of one thread of a kernel as host C++, through hooks that print accesses to memory and registers.

It is the base of the host printers: `fission.py` adds thread loops, `check.py` replaces the hooks by checked accesses.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import Affine, number, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.ops import C_TYPES
from tilefuse.ir.scalar import Call
from tilefuse.kernel.asynchronous import AsyncCopy, AsyncGroup, AsyncWait, AwaitEarlier, BulkCopy, BulkWait, LetNextStart, Prefetch
from tilefuse.kernel.checked_index import parameter_number
from tilefuse.kernel.expression import ExpressionPrinter, IndexScope
from tilefuse.kernel.ir import (
    Assign,
    Atomic,
    Barrier,
    Buffer,
    ClusterLoad,
    ClusterStore,
    Comment,
    Declare,
    For,
    FromMemory,
    Group,
    If,
    IfValue,
    InRange,
    Kernel,
    KExpr,
    LastBlock,
    Let,
    Load,
    MatrixProduct,
    Pointer,
    Reg,
    Renew,
    RoutineCall,
    Shuffle,
    Stmt,
    Store,
    VectorLoad,
    VectorStore,
)
from tilefuse.kernel.pipeline import WarpgroupProduct, WarpgroupWait
from tilefuse.kernel.tasks.statements import Await, Publish
from tilefuse.kernel.tasks.tables import changed_slots
from tilefuse.kernel.tensor_map import ProxyFence, TensorCopy, TensorStore, TensorStoreWait
from tilefuse.kernel.visit import may_alias_itself, register_names, statements, value_identifiers, written_buffers
from tilefuse.kernel.writer import Writer, identifier
from tilefuse.printers.product_loops import holder, product_loops, warpgroup_loops
from tilefuse.printers.tensor_copies import host_copy, host_store


@dataclass(frozen=True, slots=True)
class Spread:
    """A register that is live across synchronisation points: an array over the threads in scratch memory. `size` as in `Declare`."""

    dtype: DType
    size: int | None


class ThreadPrinter:
    """State of one kernel's printing for the host. The hooks at the end print accesses to memory and registers."""

    includes: tuple[str, ...] = ("cstdlib", "cmath", "cstring")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.threads = kernel.launch.num_threads  # of the block: values that are live across synchronisation points have one place each
        self.running = self.threads  # of the statements being printed: inside a pipeline the threads of one role
        self.first_thread = ""  # number in the block of the running threads' first, as text; "" for 0
        self.cluster = kernel.launch.cluster
        self.direct = self.threads == 1 and self.cluster == 1
        self.out = Writer()
        self.scope = IndexScope(kernel)
        self.buffers = kernel.addressed
        self.written = written_buffers(kernel)
        self.aliased = may_alias_itself(kernel)
        self.changed = changed_slots(kernel)
        self.spread: dict[str, Spread] = {}
        self.identifiers = frozenset(value_identifiers(kernel))
        self.lets: dict[str, Let] = {}
        self.scratch_bytes = -(-kernel.launch.shared_bytes * self.cluster // 128) * 128
        self.lane_of: dict[str, Affine] = {}  # thread to read a register of, for registers of other threads
        self.group: Group | None = None  # group whose blocks are printed
        self.expressions = ExpressionPrinter(self.scope, "host", self.load, self.register, self.checked_index)

    @contextlib.contextmanager
    def _names(self) -> Iterator[None]:
        """A scope for index names and registers: those added inside end with the context."""
        lets, spread = dict(self.lets), dict(self.spread)
        with self.scope.nested():
            yield
        self.lets, self.spread = lets, spread

    # -- statements of one thread ---------------------------------------------------------------------------------------

    def body(self, body: tuple[Stmt, ...]) -> None:
        """Prints the statements of one scope, for one thread."""
        with self._names():
            for s in body:
                self.statement(s)

    def statement(self, s: Stmt) -> None:
        """Prints one statement, for one thread."""
        out, scope = self.out, self.scope
        match s:
            case Comment(text):
                out.comment(text)
            case Let(name, _, extent):
                out.line(f"const {scope.index_type} {identifier(name)} = {self.let_text(s)};")
                scope.extents[name] = extent
            case Declare():
                self.declare(s)
            case Assign(target, value):
                out.line(self.assign(target, self.expressions.text(value)))
            case For():
                with self._loop_head(s), scope.nested():
                    scope.add_loop(s.var, s.start, s.stop)
                    self.body(s.body)
            case If(facts, inner, other):
                with out.block(f"if ({scope.condition(facts)})"), scope.assuming(facts):
                    self.body(inner)
                if other:
                    with out.otherwise():
                        self.body(other)
            case IfValue(condition, inner):
                with out.block(f"if ({self.expressions.text(condition)})"):
                    self.body(inner)
            case MatrixProduct() | WarpgroupProduct():
                self.product(s)
            case WarpgroupWait():
                self.products_wait(s)
            case _:
                self._access(s)

    def let_text(self, s: Let) -> str:
        """The value of an index name."""
        if isinstance(s.value, FromMemory):
            return f"({self.scope.index_type}){self.expressions.text(s.value.value)}"
        return self.scope.value_text(s.value)

    def product(self, s: MatrixProduct | WarpgroupProduct) -> None:
        """Prints one thread's elements of a tensor-core product."""
        if s.left_registers:
            self.lane_of = {s.left: holder()}
        right = self.buffers[s.right]
        loops = product_loops(s, right.dtype) if isinstance(s, MatrixProduct) else warpgroup_loops(s, self.buffers.get(s.left), right)
        self.body(loops)
        self.lane_of = {}

    def products_wait(self, s: WarpgroupWait) -> None:
        """Prints nothing: the host's products are synchronous."""

    def _access(self, s: Stmt) -> None:
        out = self.out
        match s:
            case VectorLoad() | VectorStore():
                out.line(self.vector(s))
            case AsyncCopy():
                out.line(self.async_copy(s))
            case Prefetch() | Renew() | AwaitEarlier() | LetNextStart():
                pass  # requests to the GPU alone; the host runs one kernel after the other
            case AsyncGroup() | AsyncWait():
                self.async_order(s)
            case ProxyFence():
                self.proxy_fence()
            case TensorCopy(barrier=None):
                self.tensor_transfer(s)
            case Store(buffer, index, value, dynamic):
                out.line(self.store(buffer, self.expressions.address(index, dynamic), self.expressions.text(value)))
            case Atomic(op, buffer, index, value, dynamic):
                out.line(self.atomic(op, buffer, self.expressions.address(index, dynamic), self.expressions.text(value)))
            case ClusterLoad(target, buffer, index, rank):
                out.line(self.assign(target, self.cluster_load(buffer, index, rank)))
            case ClusterStore(buffer, index, rank):
                for n, value in enumerate(s.values):
                    out.line(self.cluster_store(buffer, index + n, rank, self.expressions.text(value)))
                self.signalled(s)
            case RoutineCall():
                self.routine(s)
            case _ if self.direct:
                self._alone(s)
            case _:
                raise InternalError(f"not a statement of a single thread: {s!r}")

    def _alone(self, s: Stmt) -> None:
        """Prints a synchronisation point of a block with one thread."""
        match s:
            case Barrier() | BulkWait():
                pass
            case Await():
                self.await_tasks(s)
            case Publish():
                self.publish_task(s)
            case Shuffle(target, source):
                self.out.line(self.assign(target, self.register(source)))
            case LastBlock(target, counter, index, count):
                self.out.line(self.assign(target, self.last_block(counter, index, count)))
            case BulkCopy():
                self.out.line(self.bulk_copy(s))
            case TensorCopy() | TensorStore() | TensorStoreWait():
                self.tensor_transfer(s)
            case _:
                raise InternalError(f"not a kernel statement: {s!r}")

    @contextlib.contextmanager
    def _loop_head(self, s: For) -> Iterator[None]:
        scope, var = self.scope, identifier(s.var)
        step = f"++{var}" if s.step == 1 else f"{var} += {scope.text(s.step) if isinstance(s.step, Affine) else s.step}"
        if s.simd:
            self.simd(s)
        with self.out.block(f"for ({scope.index_type} {var} = {scope.text(s.start)}; {var} < {scope.text(s.stop)}; {step})"):
            yield

    def simd(self, s: For) -> None:
        """Prints a SIMD directive if the loop may be vectorised: each register from outside that it assigns is an array subscripted by the
        loop variable, or a carried sum or product."""
        sums, gap = carried(s), return_gap(s)
        if sums is None or gap == 1 or any(name in self.spread for name in sums):
            return
        clauses = f" safelen({gap})" if gap else ""
        clauses += "".join(f" reduction({op}:{self.register(Reg(name, dtype))})" for name, (op, dtype) in sums.items())
        self.out.directive("#pragma omp simd" + clauses)

    # -- hooks: accesses to memory and registers ---------------------------------------------------------------------------

    def element(self, name: str, index: Affine) -> str:
        """Address of an element of a buffer."""
        text = self.scope.text(index)
        return identifier(name) if text == "0" else f"{identifier(name)} + {text}"

    def place(self, name: str, index: Affine | None) -> str:
        """A register or an element of a register array as an lvalue."""
        spread = self.spread.get(name)
        if spread is None:
            return identifier(name) if index is None else f"{identifier(name)}[{self.scope.text(index)}]"
        who = f"(rank * {self.threads} + {self.thread_of(name)})" if self.cluster > 1 else self.thread_of(name)
        if spread.size is None:
            return f"{self.array_of(name)}[{who[1:-1] if who.startswith('(rank') else who}]"
        within = "" if index is None or self.scope.text(index) == "0" else f" + {self.scope.text(index)}"
        return f"{self.array_of(name)}[{who} * {spread.size}{within}]"

    def array_of(self, name: str) -> str:
        """Identifier of the array over all threads or members of a value: `x_of`, with a number if a value has that name."""
        stem = array = f"{identifier(name)}_of"
        count = 0
        while array in self.identifiers:
            count += 1
            array = f"{stem}_{count}"
        return array

    def thread_of(self, name: str) -> str:
        """The thread whose register is read: this one, except for operands in other lanes."""
        thread = self.scope.operand(self.lane_of[name]) if name in self.lane_of else "thread"
        return f"({self.first_thread} + {thread})" if self.first_thread else thread

    def register(self, r: Reg) -> str:
        """The value of a register."""
        return self.place(r.name, r.index)

    def assign(self, r: Reg, value: str) -> str:
        """register = value."""
        return f"{self.place(r.name, r.index)} = {value};"

    def declare(self, s: Declare) -> None:
        """Prints a register of one thread. A spread register is declared already."""
        ctype = C_TYPES[s.dtype.name]
        if s.name in self.spread:
            if s.init is not None:
                self.out.line(self.assign(Reg(s.name, s.dtype), self.expressions.text(s.init)))
        elif s.size is not None:
            self.out.line(f"alignas(64) {ctype} {identifier(s.name)}[{s.size}];")
        else:
            self.out.line(f"{ctype} {identifier(s.name)}" + (f" = {self.expressions.text(s.init)};" if s.init is not None else ";"))

    def routine(self, s: RoutineCall) -> None:
        """Prints a call of a routine."""
        self.out.line(f"{s.function}({', '.join(self._routine_argument(a) for a in s.arguments)});")

    def _routine_argument(self, a: Pointer | Reg | Affine | KExpr) -> str:
        match a:
            case Pointer(buffer, index):
                return self.address_of(buffer, index)
            case Reg(_, _, index) if index is not None:
                return self.address_of_register(a)
            case Affine():
                return self.scope.text(a)
        return self.expressions.text(a)

    def address_of(self, buffer: str, index: Affine) -> str:
        """Address of an element of a buffer."""
        return self.element(buffer, index)

    def address_of_register(self, r: Reg) -> str:
        """Address of an element of a register array."""
        return f"&{self.place(r.name, r.index)}"

    def load(self, e: Load) -> str:
        """The value of an element."""
        return f"{identifier(e.buffer)}[{self.expressions.address(e.index, e.dynamic)}]"

    def checked_index(self, e: InRange, index: str) -> str:
        """A subscript that must lie in its extent."""
        if not self.kernel.checked:
            return index if e.kept else f"tf_minimum(tf_maximum({index}, 0ll), {max(e.extent - 1, 0)}ll)"
        of, source = (parameter_number(self.kernel, self.group, name) for name in (e.buffer, e.source))
        facts = f"{of}, {e.dimension}, {source}, {self.scope.text(e.place)}, {str(e.wraps).lower()}, {str(e.kept).lower()}"
        return f"tf_in_range({index}, {e.extent}ll, tf_fault, {facts})"

    def store(self, buffer: str, address: str, value: str) -> str:
        """buffer[address] = value."""
        return f"{identifier(buffer)}[{address}] = {value};"

    def atomic(self, op: str, buffer: str, address: str, value: str) -> str:
        """An atomic update."""
        return f"tf_atomic_{op}({identifier(buffer)} + {address}, {value});"

    def vector(self, s: VectorLoad | VectorStore) -> str:
        """A vector access, as one copy."""
        array = f"&{self.place(s.array, s.array_index)}"
        if isinstance(s, VectorLoad) and s.dynamic:
            memory = f"{identifier(s.buffer)} + ({self.expressions.address(s.index, s.dynamic)})"
        else:
            memory = self.element(s.buffer, s.index)
        target, source = (array, memory) if isinstance(s, VectorLoad) else (memory, array)
        return f"tf_copy<{s.width * self.buffers[s.buffer].dtype.itemsize}>({target}, {source});"

    def _remote(self, buffer: str, index: Affine, rank: Affine) -> str:
        if self.cluster == 1:
            return f"{identifier(buffer)}[{self.scope.text(index)}]"
        b: Buffer = self.buffers[buffer]
        start = f"cluster_memory + {self.scope.operand(rank)} * {self.kernel.launch.shared_bytes} + {b.offset_bytes}"
        return f"reinterpret_cast<{C_TYPES[b.dtype.name]}*>({start})[{self.scope.text(index)}]"

    def cluster_load(self, buffer: str, index: Affine, rank: Affine) -> str:
        """The value of an element of another block's shared memory."""
        return self._remote(buffer, index, rank)

    def cluster_store(self, buffer: str, index: Affine, rank: Affine, value: str) -> str:
        """An element of another block's shared memory = value."""
        return f"{self._remote(buffer, index, rank)} = {value};"

    def last_block(self, counter: str, index: Affine, count: int | Affine) -> str:
        """The test whether this block arrives last."""
        arrivals = self.scope.text(count) if isinstance(count, Affine) else f"{count}u"
        return f"tf_last_block({self.element(counter, index)}, {arrivals})"

    def bulk_copy(self, s: BulkCopy) -> str:
        """A block's copy to shared memory, synchronous on the host."""
        num_bytes = s.num_elements * self.buffers[s.buffer].dtype.itemsize
        return f"std::memcpy({self.element(s.shared, s.shared_index)}, {self.element(s.buffer, s.index)}, {num_bytes});"

    def async_copy(self, s: AsyncCopy) -> str:
        """A thread's copy to shared memory, synchronous on the host."""
        num_bytes = s.num_elements * self.buffers[s.buffer].dtype.itemsize
        return f"std::memcpy({self.element(s.shared, s.shared_index)}, {self.element(s.buffer, s.index)}, {num_bytes});"

    def tensor_transfer(self, s: TensorCopy | TensorStore | TensorStoreWait) -> None:
        """Prints the copy of a box by one thread. The host's copies are synchronous and need no wait."""
        if isinstance(s, TensorCopy):
            self.out.line(host_copy(self.kernel, s, self.element(s.buffer, s.index), self.scope))
        elif isinstance(s, TensorStore):
            self.out.line(host_store(self.kernel, s, self.element(s.buffer, s.index), self.scope))

    def proxy_fence(self) -> None:
        """Prints nothing: the host has one view of memory."""

    def async_order(self, s: AsyncGroup | AsyncWait) -> None:
        """Prints nothing: the host's copies are synchronous."""

    def signalled(self, s: ClusterStore) -> None:
        """Prints nothing: the host's stores have arrived."""

    def barrier(self, s: Barrier) -> None:
        """Prints a comment: all threads have arrived at the end of a thread loop."""
        self.out.comment(f"{s.scope} barrier")

    def await_tasks(self, s: Await) -> None:
        """Prints the test that the tasks that a block awaits are done."""

    def publish_task(self, s: Publish) -> None:
        """Prints the publication of a block's writes."""

    def begin_group(self) -> None:
        """Prints the start of each block (each cluster)."""

    def end_group(self) -> None:
        """Prints the end of each block (each cluster)."""

    def enter_thread(self) -> None:
        """Prints the start of a thread's iteration of a stretch."""


def return_gap(loop: For) -> int:
    """Smallest number of iterations between two assignments of one element of an outer array; 0 if none is assigned twice.

    A smaller number of iterations may run in parallel. Example: a loop over sixteen lanes assigns each of four accumulators `s[v % 4]` in
    every fourth iteration.
    """
    declared = {s.name for s in statements(loop.body) if isinstance(s, Declare)}
    gaps = []
    for s in statements(loop.body):
        index = s.target.index if isinstance(s, Assign) and s.target.name not in declared else None
        if index is None or index.is_linear and index.coefficient(loop.var):
            continue
        if not loop.start.is_const or not loop.stop.is_const or isinstance(loop.step, Affine):
            return 1
        seen: dict[Affine, int] = {}
        for turn, at in enumerate(range(loop.start.const, loop.stop.const, loop.step)):
            place = substitute(index, {loop.var: number(at)})
            if place in seen:
                gaps.append(turn - seen[place])
            seen[place] = turn
    return min(gaps, default=0)


def carried(loop: For) -> dict[str, tuple[str, DType]] | None:
    """Outer scalars that a loop only accumulates by addition or multiplication: name -> (operator, dtype); None if it assigns others."""
    declared = {s.name for s in statements(loop.body) if isinstance(s, Declare)}
    carried_scalars: dict[str, tuple[str, DType]] = {}
    for s in statements(loop.body):
        match s:
            case Assign(Reg(name, dtype, None), value) if name not in declared:
                match value:
                    case Call("add" | "mul" as fn, (Reg(_, _, None) as old, rest)) if old.name == name not in register_names(rest):
                        op = "+" if fn == "add" else "*"
                    case _:
                        return None
                if carried_scalars.setdefault(name, (op, dtype)) != (op, dtype):
                    return None
            case Assign(Reg(name, _, Affine() as index)) if name not in declared and loop.var not in index.axes():
                return None
            case Barrier() | Shuffle() | LastBlock() | BulkCopy() | BulkWait() | Atomic():
                return None
            case TensorCopy() | TensorStore() | TensorStoreWait():
                return None
    for name in carried_scalars:
        reads = sum(name in register_names(s) for s in statements(loop.body) if not isinstance(s, (For, If, IfValue)))
        if reads != sum(isinstance(s, Assign) and s.target.name == name for s in statements(loop.body)):
            return None
    return carried_scalars
