"""Prints kernel IR as host C++: blocks in parallel with OpenMP, the threads of a block as loops between the points where they meet.

        t = x[thread];            for thread: t[thread] = x[thread];
        s[thread] = t;            for thread: s[thread] = t[thread];
        barrier;            ->    // barrier
        y[thread] = s[n-thread];  for thread: y[thread] = s[n-thread];

A register that lives across a meeting point becomes an array over the threads; all others stay local. A block of one thread
has no thread loop and no such arrays. `rank` loops stand around the thread loops where blocks of a cluster meet.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from tilefuse.base.errors import InternalError
from tilefuse.codegen import support
from tilefuse.codegen.expression import ExpressionPrinter, IndexScope
from tilefuse.codegen.kernel import (
    Assign, Atomic, Barrier, Buffer, BulkCopy, BulkWait, ClusterLoad, ClusterStore, Comment, Declare, For, If, IfValue, KExpr, Kernel,
    LastBlock, Let, Load, Reg, Shuffle, Stmt, Store, VectorLoad, VectorStore,
)
from tilefuse.codegen.walk import BLOCK, CLUSTER, NOWHERE, index_names, may_alias_itself, meeting, register_names, statements, written_buffers
from tilefuse.codegen.writer import Writer, identifier
from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import BOOL, DType
from tilefuse.ir.ops import C_TYPES
from tilefuse.ir.scalar import Call

# Below this much memory a kernel runs on one core: starting the others costs more.
PARALLEL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Spread:
    """A register that lives across meeting points: an array over the threads in scratch memory. `size` as in Declare."""

    dtype: DType
    size: int | None


def print_host(kernel: Kernel, check: bool = False) -> str:
    """C++ of `kernel`: `extern "C" int name(void* const* arguments, char* report, long report_size)`; 0 means fine.

    check: every access is checked (see `check.py`); findings make the result their number and are written to `report`.
    Exact: equal kernels give the same text.
    """
    if check:
        from tilefuse.codegen.check import CheckedPrinter

        printer: HostPrinter = CheckedPrinter(kernel)
    else:
        printer = HostPrinter(kernel)
    printer.function()
    body = printer.out.text()
    head = Writer()
    head.comment(f"{kernel.name}: {kernel.launch.num_blocks} blocks of {kernel.launch.num_threads} threads, for the host"
                 + (", every access checked" if check else ""))
    for text in kernel.header:
        head.comment(text)
    for name in printer.includes:
        head.line(f"#include <{name}>")
    pasted = support.paste("checked" if check else "host", body)
    return head.text() + "\n" + (pasted + "\n\n" if pasted else "") + body


class HostPrinter:
    """State of one kernel's printing. The hooks at the end say how memory and registers are touched."""

    includes: tuple[str, ...] = ("cmath", "cstdlib", "cstring")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.threads = kernel.launch.num_threads
        self.cluster = kernel.launch.cluster
        self.direct = self.threads == 1 and self.cluster == 1
        self.out = Writer()
        self.scope = IndexScope(kernel)
        self.buffers = {b.name: b for b in kernel.buffers}
        self.written = written_buffers(kernel)
        self.spread: dict[str, Spread] = {}
        self.lets: dict[str, Let] = {}
        self.scratch_bytes = -(-kernel.launch.shared_bytes * self.cluster // 128) * 128
        self.expressions = ExpressionPrinter(self.scope, "host", self.load, self.register)

    # -- frame -----------------------------------------------------------------------------------------------------

    def function(self) -> None:
        """The whole entry point."""
        out = self.out
        with out.block(f'extern "C" int {self.kernel.name}(void* const* arguments, char* report, long report_size)'):
            self.parameters()
            inner = Writer()
            self.out, outer = inner, self.out
            inner.depth = outer.depth
            self.blocks()
            self.out = outer
            out.lines += inner.lines
            self.epilogue()

    def parameters(self) -> None:
        """Typed pointers of the arguments."""
        shared_writes = may_alias_itself(self.kernel)
        for n, b in enumerate(self.kernel.parameters):
            const = "" if b.name in self.written else "const "
            restrict = "" if b.name in shared_writes else "__restrict "
            ctype = C_TYPES[b.dtype.name]
            self.out.line(f"{const}{ctype}* {restrict}const {identifier(b.name)} = static_cast<{const}{ctype}*>(arguments[{n}]);")

    def epilogue(self) -> None:
        """The result."""
        self.out.line("(void)report;")
        self.out.line("(void)report_size;")
        self.out.line("return 0;")

    def blocks(self) -> None:
        """The loop over the blocks, or over the clusters with a loop over ranks inside."""
        groups = self.kernel.launch.num_blocks // self.cluster
        num_bytes = sum(b.num_elements * b.dtype.itemsize for b in self.kernel.parameters)
        parallel = groups > 1 and num_bytes >= PARALLEL_BYTES
        body = self._captured()
        if self.scratch_bytes:
            if parallel:
                self.out.directive("#pragma omp parallel")
            with self.out.block(""):
                self.out.line(f"const tf_scratch scratch({self.scratch_bytes});")
                if parallel:
                    self.out.directive("#pragma omp for schedule(static)")
                self._block_loop(groups, body)
        else:
            if parallel:
                self.out.directive("#pragma omp parallel for schedule(static)")
            self._block_loop(groups, body)

    def _captured(self) -> list[str]:
        """Lines of one block (one cluster), printed ahead because the scratch size is known only afterwards."""
        inner = Writer()
        self.out, outer = inner, self.out
        if self.direct:
            self.body(self.kernel.body)
        elif self.cluster == 1:
            self.block_body(self.kernel.body)
        else:
            self.cluster_body(self.kernel.body)
        self.out = outer
        return inner.lines

    def _block_loop(self, groups: int, body: list[str]) -> None:
        index = self.scope.index_type
        used = index_names(self.kernel.body)
        var = "group" if self.cluster > 1 else "block"
        with self.out.block(f"for ({index} {var} = 0; {var} < {groups}; ++{var})"):
            if self.direct:
                for name in sorted(used & {"thread", "rank"}):
                    self.out.line(f"const {index} {name} = 0;")
            elif self.cluster == 1 and "rank" in used:
                self.out.line(f"const {index} rank = 0;")
            if self.cluster == 1:
                self.shared_pointers("scratch.memory")
            else:
                self.out.line("unsigned char* const cluster_memory = scratch.memory;")
            self.begin_group()
            self.out.lines += ["  " * self.out.depth + text if text else "" for text in body]

    def shared_pointers(self, base: str) -> None:
        """Typed pointers of the block's shared buffers."""
        for b in self.kernel.buffers:
            if b.space == "shared":
                ctype = C_TYPES[b.dtype.name]
                self.out.line(f"{ctype}* const {identifier(b.name)} = reinterpret_cast<{ctype}*>({base} + {b.offset_bytes});"
                              + (f"  // %{b.origin}" if b.origin else ""))

    # -- meeting points ----------------------------------------------------------------------------------------------

    def cluster_body(self, body: tuple[Stmt, ...]) -> None:
        """Statements that all blocks of the cluster run; stretches without a cluster-wide meeting become loops over the ranks."""
        with self._names():
            for stretch, level in self._stretches(body, CLUSTER):
                if level == CLUSTER:
                    self._meet(stretch[0], self.cluster_body)
                    continue
                index = self.scope.index_type
                with self.out.block(f"for ({index} rank = 0; rank < {self.cluster}; ++rank)"):
                    if "block" in self._needed_names(stretch):
                        self.out.line(f"const {index} block = group * {self.cluster} + rank;")
                    self.shared_pointers(f"cluster_memory + rank * {self.kernel.launch.shared_bytes}")
                    with self._names():
                        self._reprint_lets(stretch, of_block=True)
                        self.block_body(stretch)

    def block_body(self, body: tuple[Stmt, ...]) -> None:
        """Statements that all threads of a block run; stretches without a meeting become loops over the threads."""
        with self._names():
            for stretch, level in self._stretches(body, BLOCK):
                if level == NOWHERE:
                    self._thread_loop(stretch)
                else:
                    self._meet(stretch[0], self.block_body)

    def _stretches(self, body: tuple[Stmt, ...], wide: int) -> Iterator[tuple[tuple[Stmt, ...], int]]:
        """Cuts a body into stretches that need no meeting as wide as `wide`, and single statements that do.

        Registers that several of the pieces name are spread, and uniform index names are printed in place.
        """
        pieces: list[tuple[list[Stmt], int]] = []
        for s in body:
            level = meeting(s, self.cluster)
            if level >= wide:
                pieces.append(([s], level))
            elif pieces and pieces[-1][1] < wide:
                pieces[-1][0].append(s)
            else:
                pieces.append(([s], NOWHERE))
        names = [register_names(tuple(piece)) for piece, _ in pieces]
        for s in body:
            if isinstance(s, Declare) and sum(s.name in used for used in names) > 1:
                self._spread(s)
        for piece, level in pieces:
            kept = tuple(s for s in piece if not (isinstance(s, Let) and self._place_let(s, wide)))
            if kept and not all(isinstance(s, Let) for s in kept):
                yield kept, level
            for s in kept:
                if isinstance(s, Let):
                    self.lets[s.name] = s

    def _place_let(self, s: Let, wide: int) -> bool:
        """Prints a name that is the same for all; others are kept to be printed where they are used."""
        varying = {"thread", "rank", "block"} if wide == CLUSTER else {"thread"}
        names = s.value.axes()
        if names & varying or names & self.lets.keys():
            return False
        self.out.line(f"const {self.scope.index_type} {identifier(s.name)} = {self.scope.text(s.value)};")
        self.scope.extents[s.name] = s.extent
        return True

    def _needed_names(self, stretch: tuple[Stmt, ...]) -> frozenset[str]:
        """Index names of a stretch, those behind named ones included."""
        found = set(index_names(stretch))
        todo = sorted(found & self.lets.keys())
        while todo:
            for name in sorted(self.lets[todo.pop()].value.axes() - found):
                found.add(name)
                if name in self.lets:
                    todo.append(name)
        return frozenset(found)

    @contextlib.contextmanager
    def _names(self) -> Iterator[None]:
        """Inside, index names and registers may be added; afterwards they are as before."""
        lets, spread = dict(self.lets), dict(self.spread)
        with self.scope.nested():
            yield
        self.lets, self.spread = lets, spread

    def _spread(self, s: Declare) -> None:
        """Gives a register a place in scratch memory, one for each thread of the block (of the cluster)."""
        self.spread[s.name] = Spread(s.dtype, s.size)
        ctype = C_TYPES[s.dtype.name]
        self.spread_pointer(s, f"{ctype}* const {identifier(s.name)}_of = reinterpret_cast<{ctype}*>(scratch.memory + {self.scratch_bytes});")
        num_bytes = (s.size or 1) * s.dtype.itemsize * self.threads * self.cluster
        self.scratch_bytes += -(-num_bytes // 128) * 128

    def spread_pointer(self, s: Declare, text: str) -> None:
        """Prints the pointer of a spread register."""
        self.out.line(text)

    def _thread_loop(self, stretch: tuple[Stmt, ...]) -> None:
        if all(isinstance(s, Comment) for s in stretch):
            for s in stretch:
                self.statement(s)
            return
        index = self.scope.index_type
        with self.out.block(f"for ({index} thread = 0; thread < {self.threads}; ++thread)"), self._names():
            self._reprint_lets(stretch)
            self.body(stretch)

    def _reprint_lets(self, stretch: tuple[Stmt, ...], of_block: bool = False) -> None:
        """Prints names defined earlier that this stretch uses; `of_block`: only those that are the same for all threads."""
        needed = self._needed_names(stretch)
        for name, let in list(self.lets.items()):
            if name not in needed:
                continue
            if of_block:
                if let.value.axes() & ({"thread"} | self.lets.keys()):
                    continue
                del self.lets[name]
            self.statement(let)

    def _meet(self, s: Stmt, recurse: object) -> None:
        """A statement at which threads meet."""
        assert callable(recurse)
        match s:
            case Barrier(scope):
                self.barrier(scope)
            case For():
                self._uniform(s.start, s.stop)
                with self._loop_head(s), self._names():
                    self.scope.add_loop(s.var, s.start, s.stop)
                    recurse(s.body)
            case If(facts, inner, other):
                self._uniform(*(b.index for b in facts))
                with self.out.block(f"if ({self.scope.condition(facts)})"), self.scope.assuming(facts):
                    recurse(inner)
                if other:
                    with self.out.otherwise():
                        recurse(other)
            case IfValue(condition, inner):
                with self.out.block(""):
                    self._uniform_value(condition, s)
                    with self.out.block("if (holds)"):
                        recurse(inner)
            case Shuffle():
                self._shuffle(s)
            case LastBlock(target, counter, index, count):
                with self.out.block(""):
                    self.out.line(f"const bool last = {self.last_block(counter, index, count)};")
                    with self._every_thread((s,)):
                        self.out.line(self.assign(target, "last"))
            case BulkCopy():
                with self._names():
                    self.out.line(self.bulk_copy(s))
            case BulkWait():
                self.out.comment("the copies have arrived")
            case _:
                raise InternalError(f"threads cannot meet at {s!r}")

    @contextlib.contextmanager
    def _every_thread(self, used: tuple[Stmt, ...]) -> Iterator[None]:
        index = self.scope.index_type
        with self.out.block(f"for ({index} thread = 0; thread < {self.threads}; ++thread)"), self._names():
            self._reprint_lets(used)
            yield

    def _uniform(self, *indices: Affine) -> None:
        """Raises: InternalError when control flow around a meeting point differs between threads."""
        for e in indices:
            varying = {n for n in e.axes() if n == "thread" or n in self.lets}
            if varying:
                raise InternalError(f"kernel {self.kernel.name}: a loop or branch with a barrier depends on {', '.join(sorted(varying))}")

    def _uniform_value(self, condition: KExpr, s: IfValue) -> None:
        """Prints `holds`, the condition as the first thread sees it."""
        self.out.line("bool holds;")
        index = self.scope.index_type
        with self.out.block(""), self._names():
            for name in ("rank", "thread") if self.cluster > 1 and meeting(s, self.cluster) == CLUSTER else ("thread",):
                self.out.line(f"const {index} {name} = 0;")
            self.out.line("(void)thread;")
            self._reprint_lets((Assign(Reg("holds", BOOL), condition),))
            self.out.line(f"holds = {self.expressions.text(condition)};")

    def _shuffle(self, s: Shuffle) -> None:
        ctype = C_TYPES[s.source.dtype.name]
        with self.out.block(""):
            self.out.line(f"{ctype} lanes[{self.threads}];")
            with self._every_thread((s,)):
                self.out.line(f"lanes[thread] = {self.register(s.source)};")
            with self._every_thread((s,)):
                self.out.line(self.assign(s.target, f"lanes[tf_lane_{s.mode}((int)thread, {s.amount}, {s.width}, {self.threads})]"))

    # -- statements of one thread ---------------------------------------------------------------------------------------

    def body(self, body: tuple[Stmt, ...]) -> None:
        """The statements of one scope, for one thread."""
        with self._names():
            for s in body:
                self.statement(s)

    def statement(self, s: Stmt) -> None:
        """One statement, for one thread."""
        out, scope = self.out, self.scope
        match s:
            case Comment(text):
                out.comment(text)
            case Let(name, value, extent):
                out.line(f"const {scope.index_type} {identifier(name)} = {scope.text(value)};")
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
            case _:
                self._access(s)

    def _access(self, s: Stmt) -> None:
        out = self.out
        match s:
            case VectorLoad() | VectorStore():
                out.line(self.vector(s))
            case Store(buffer, index, value, dynamic):
                out.line(self.store(buffer, self.expressions.address(index, dynamic), self.expressions.text(value)))
            case Atomic(op, buffer, index, value, dynamic):
                out.line(self.atomic(op, buffer, self.expressions.address(index, dynamic), self.expressions.text(value)))
            case ClusterLoad(target, buffer, index, rank):
                out.line(self.assign(target, self.cluster_load(buffer, index, rank)))
            case ClusterStore(buffer, index, rank, value):
                out.line(self.cluster_store(buffer, index, rank, self.expressions.text(value)))
            case _ if self.direct:
                self._alone(s)
            case _:
                raise InternalError(f"not a statement of a single thread: {s!r}")

    def _alone(self, s: Stmt) -> None:
        """Meeting points of a block with one thread."""
        match s:
            case Barrier() | BulkWait():
                pass
            case Shuffle(target, source):
                self.out.line(self.assign(target, self.register(source)))
            case LastBlock(target, counter, index, count):
                self.out.line(self.assign(target, self.last_block(counter, index, count)))
            case BulkCopy():
                self.out.line(self.bulk_copy(s))
            case _:
                raise InternalError(f"not a kernel statement: {s!r}")

    @contextlib.contextmanager
    def _loop_head(self, s: For) -> Iterator[None]:
        scope, var = self.scope, identifier(s.var)
        step = f"++{var}" if s.step == 1 else f"{var} += {s.step}"
        if s.simd:
            self.simd(s)
        with self.out.block(f"for ({scope.index_type} {var} = {scope.text(s.start)}; {var} < {scope.text(s.stop)}; {step})"):
            yield

    def simd(self, s: For) -> None:
        """Tells the compiler that iterations may run side by side, if that is so: registers from outside that are assigned are
        arrays subscripted by the loop variable, or sums and products carried along."""
        sums = carried(s)
        if sums is not None:
            clauses = "".join(f" reduction({op}:{self.register(Reg(name, dtype))})" for name, (op, dtype) in sums.items())
            if not sums or all(name not in self.spread for name in sums):
                self.out.directive("#pragma omp simd" + clauses)

    # -- hooks: how memory and registers are touched -----------------------------------------------------------------------

    def element(self, name: str, index: Affine) -> str:
        """Address of an element of a buffer."""
        text = self.scope.text(index)
        return identifier(name) if text == "0" else f"{identifier(name)} + {text}"

    def place(self, name: str, index: Affine | None) -> str:
        """A register or an element of a register array as an lvalue."""
        spread = self.spread.get(name)
        if spread is None:
            return identifier(name) if index is None else f"{identifier(name)}[{self.scope.text(index)}]"
        who = f"(rank * {self.threads} + thread)" if self.cluster > 1 else "thread"
        if spread.size is None:
            return f"{identifier(name)}_of[{who.strip('()')}]"
        within = "" if index is None or self.scope.text(index) == "0" else f" + {self.scope.text(index)}"
        return f"{identifier(name)}_of[{who} * {spread.size}{within}]"

    def register(self, r: Reg) -> str:
        """The value of a register."""
        return self.place(r.name, r.index)

    def assign(self, r: Reg, value: str) -> str:
        """register = value."""
        return f"{self.place(r.name, r.index)} = {value};"

    def declare(self, s: Declare) -> None:
        """A register of one thread; a spread one already has its place."""
        ctype = C_TYPES[s.dtype.name]
        if s.name in self.spread:
            if s.init is not None:
                self.out.line(self.assign(Reg(s.name, s.dtype), self.expressions.text(s.init)))
        elif s.size is not None:
            self.out.line(f"alignas(64) {ctype} {identifier(s.name)}[{s.size}];")
        else:
            self.out.line(f"{ctype} {identifier(s.name)}" + (f" = {self.expressions.text(s.init)};" if s.init is not None else ";"))

    def load(self, e: Load) -> str:
        """The value of an element."""
        return f"{identifier(e.buffer)}[{self.expressions.address(e.index, e.dynamic)}]"

    def store(self, buffer: str, address: str, value: str) -> str:
        """buffer[address] = value."""
        return f"{identifier(buffer)}[{address}] = {value};"

    def atomic(self, op: str, buffer: str, address: str, value: str) -> str:
        """An atomic update."""
        return f"tf_atomic_{op}({identifier(buffer)} + {address}, {value});"

    def vector(self, s: VectorLoad | VectorStore) -> str:
        """A vector access, as one copy."""
        array = f"&{self.place(s.array, s.array_index)}"
        memory = self.element(s.buffer, s.index)
        target, source = (array, memory) if isinstance(s, VectorLoad) else (memory, array)
        return f"std::memcpy({target}, {source}, {s.width * self.buffers[s.buffer].dtype.itemsize});"

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

    def last_block(self, counter: str, index: Affine, count: int) -> str:
        """Whether this block arrives last."""
        return f"tf_last_block({self.element(counter, index)}, {count}u)"

    def bulk_copy(self, s: BulkCopy) -> str:
        """A copy to shared memory, done at once."""
        num_bytes = s.num_elements * self.buffers[s.buffer].dtype.itemsize
        return f"std::memcpy({self.element(s.shared, s.shared_index)}, {self.element(s.buffer, s.index)}, {num_bytes});"

    def barrier(self, scope: str) -> None:
        """All threads have arrived: between two thread loops that is always so."""
        self.out.comment(f"{scope} barrier")

    def begin_group(self) -> None:
        """At the start of each block (each cluster)."""


def carried(loop: For) -> dict[str, tuple[str, DType]] | None:
    """Scalars from outside that a loop only adds to or multiplies into: name -> (operator, dtype); None if it assigns others."""
    declared = {s.name for s in statements(loop.body) if isinstance(s, Declare)}
    found: dict[str, tuple[str, DType]] = {}
    for s in statements(loop.body):
        match s:
            case Assign(Reg(name, dtype, None), value) if name not in declared:
                match value:
                    case Call("add" | "mul" as fn, (Reg(first, _, None), rest)) if first == name and name not in register_names(rest):
                        op = "+" if fn == "add" else "*"
                    case _:
                        return None
                if found.setdefault(name, (op, dtype)) != (op, dtype):
                    return None
            case Assign(Reg(name, _, Affine() as index)) if name not in declared and loop.var not in index.axes():
                return None
            case Barrier() | Shuffle() | LastBlock() | BulkCopy() | BulkWait() | Atomic():
                return None
    for name in found:
        reads = sum(name in register_names(s) for s in statements(loop.body) if not isinstance(s, (For, If, IfValue)))
        if reads != sum(isinstance(s, Assign) and s.target.name == name for s in statements(loop.body)):
            return None
    return found
