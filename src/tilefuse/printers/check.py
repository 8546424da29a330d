"""The checking mode of the host executor: as `fission.py`, but every access goes through shadow memory (`support/checked.h`).

It finds accesses out of bounds (global, shared, register arrays), reads of uninitialised memory or registers, races between barriers in
shared memory (also of a cluster) and in global memory, misaligned vectors, and outputs with unwritten elements. Blocks run one after the
other. Races follow from the order that barriers establish, not from the timing of a run.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from tilefuse.base.printable import printable
from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import BOOL
from tilefuse.ir.ops import C_TYPES
from tilefuse.kernel.asynchronous import AsyncCopy, AsyncGroup, AsyncWait, BulkCopy, BulkWait
from tilefuse.kernel.ir import (
    Assign,
    Atomic,
    Barrier,
    Buffer,
    ClusterLoad,
    ClusterStore,
    Comment,
    Declare,
    FromMemory,
    Group,
    IfValue,
    Kernel,
    KExpr,
    LastBlock,
    Let,
    Load,
    MatrixProduct,
    Reg,
    RoutineCall,
    Shuffle,
    Stmt,
    Store,
    Touched,
    VectorLoad,
    VectorStore,
)
from tilefuse.kernel.operand_table import member_tables
from tilefuse.kernel.pipeline import WARPGROUP, Consume, Produce, ReleaseSlots, Ring, WarpgroupProduct, WarpgroupWait
from tilefuse.kernel.tasks.statements import Await, Publish
from tilefuse.kernel.tensor_map import TensorCopy, TensorStore, TensorStoreWait
from tilefuse.kernel.visit import statements
from tilefuse.kernel.writer import Writer, identifier
from tilefuse.printers.fission import HostPrinter
from tilefuse.printers.host_pipeline import ring_name
from tilefuse.printers.host_tasks import declare_counters, task_parameters
from tilefuse.printers.product_loops import operand_elements
from tilefuse.printers.tensor_copies import checked_copy, checked_store, host_view


class CheckedPrinter(HostPrinter):
    """Replaces the hooks by checked accesses. `site` is the number of the statement being printed; findings name it."""

    includes = ("cstdlib", "cmath", "cstdio", "cstring", "vector")

    def __init__(self, kernel: Kernel, task_order: Sequence[int] | None = None) -> None:
        super().__init__(kernel, task_order)
        self.site = 0
        self.sites: list[str] = ["end of the kernel"]
        self.section = ""
        self.sums = ""  # accumulator of the warpgroup product being printed
        self.sizes = {s.name: s.size for s in statements(kernel.body) if isinstance(s, Declare)}
        self.granule = min((b.dtype.itemsize for b in kernel.buffers if b.space == "shared"), default=4)

    # -- frame -----------------------------------------------------------------------------------------------------------

    def function(self) -> None:
        """Prints the table of statements, then the entry point."""
        inner = Writer()
        outer, self.out = self.out, inner
        super().function()
        self.out = outer
        with outer.block(f"static const char* const {self.kernel.name}_sites[] =", ";"):
            for text in self.sites:
                outer.line(_quoted(text) + ",")
        outer.lines += inner.lines

    def parameters(self) -> None:
        """Prints the checker and the shadowed buffers."""
        tasks, out = self.kernel.tasks, self.out
        count = max(self.kernel.launch.num_blocks, 1) if tasks is None else tasks.num_tasks
        out.line(f"tf_checker check({_quoted(self.kernel.name)}, {self.kernel.name}_sites, report, report_size, {self.threads}, "
                 f"{self.cluster}, {count});")
        if tasks is not None:
            task_parameters(self)
            declare_counters(self)
            out.line("tf_task_checker task_waits(check);")
        for n, b in enumerate(self.kernel.parameters):
            out.line(f"tf_global<{C_TYPES[b.dtype.name]}> {identifier(b.name)}(check, {_quoted(b.name)}, arguments[{n}], {b.num_elements}, "
                     f"{'true' if b.name in self.written else 'false'}, {_has_contents(b)});")
        for m in self.kernel.maps:
            self.sites.append(f"tensor map {m.name}")
            out.line(host_view(m, self.scope))
            out.line(f"tf_checked_view(check, {identifier(m.name)}, {identifier(m.buffer)}, {len(self.sites) - 1});")
        for number, group in enumerate(self.kernel.groups):
            if tasks is None:
                member_tables(group, number, f"static const {self.scope.index_type}", out)
            for n, slot in enumerate(group.slots):
                of_members = ", ".join(f"&{identifier(m.arguments[n])}" for m in group.members)
                out.line(f"tf_global<{C_TYPES[slot.dtype.name]}>* const {self.array_of(slot.name)}[] = {{{of_members}}};")

    def operands(self, group: Group, first: int) -> None:
        """Prints the shadowed buffers of the current member."""
        place = "tf_member" if len(group.members) > 1 else "0"
        for slot in group.slots:
            buffer = f"tf_global<{C_TYPES[slot.dtype.name]}>& {identifier(slot.name)}"
            self.out.line(f"{buffer} = *{self.array_of(slot.name)}[{place}];")

    def epilogue(self) -> None:
        """Prints the checks that outputs are complete and counters zero, and the return of the number of findings."""
        for b in self.kernel.parameters:
            if b.role == "out":
                self.out.line(f"{identifier(b.name)}.finish({b.num_held or ''});")
            if b.role == "counter":
                self.out.line(f"tf_counters_at_zero(check, {identifier(b.name)});")
        self.out.line("return check.result();")

    def task_memory(self) -> None:
        """Prints the shared memory of a block, which each task begins afresh."""
        with self.out.block("tf_shared_memory homes[] =", ";"):
            self.out.line(f"{{check, scratch.memory, {self.kernel.launch.shared_bytes}, {self.granule}, {self.kernel.num_barriers}}},")

    def await_tasks(self, s: Await) -> None:
        """Prints a wait, which orders the tasks that it counts before this one."""
        text = self.scope.text
        self.out.line(f"task_waits.await({text(s.index)}, {text(s.count)}, {text(s.value)}, {_quoted(s.counter)}, {self.site});")

    def publish_task(self, s: Publish) -> None:
        """Prints a publication."""
        self.out.line(f"task_waits.publish({self.scope.text(s.index)});")

    def _all_blocks(self, body: tuple[Stmt, ...], count: int, group: Group | None) -> None:
        """Prints a sequential loop over the blocks."""
        lines = self._captured(body)
        shared_bytes = self.kernel.launch.shared_bytes
        with self.out.block(""):
            self.out.line(f"const tf_scratch scratch({self.scratch_bytes or 128});")
            with self.out.block("tf_shared_memory homes[] =", ";"):
                for rank in range(self.cluster):
                    place = f"scratch.memory + {rank * shared_bytes}, {shared_bytes}"
                    self.out.line(f"{{check, {place}, {self.granule}, {self.kernel.num_barriers}}},")
            self._block_loop(count, lines, body, group)

    def begin_group(self) -> None:
        """Prints the start of a cluster, whose shared memory is uninitialised."""
        self.out.line("for (tf_shared_memory& home : homes) home.begin();")
        self.out.line("check.begin_cluster();")
        if self.cluster == 1:
            number = "tf_number" if self.kernel.tasks is not None else "launched" if self.kernel.groups else "block"
            self.out.line(f"check.block = {number};")

    def end_group(self) -> None:
        """Prints the end of a cluster."""
        self.out.line("for (tf_shared_memory& home : homes) home.end();")
        if self.cluster > 1:
            self.out.line("check.end_cluster();")

    def shared_pointers(self, base: str) -> None:
        """Prints the shadowed shared buffers of the block."""
        rank = "rank" if self.cluster > 1 else "0"
        if self.cluster > 1:
            self.out.line(f"check.rank = rank, check.block = group * {self.cluster} + rank;")
        for n, b in enumerate(self.kernel.buffers):
            if b.space == "shared":
                fields = f"homes[{rank}], {_quoted(b.name)}, {n}, {b.offset_bytes}, {b.num_elements}"
                self.out.line(f"tf_shared<{C_TYPES[b.dtype.name]}> {identifier(b.name)}{{{fields}}};")

    def cluster_memory(self) -> None:
        """Prints nothing: each block of the cluster has its own `tf_shared_memory`."""

    # -- statements and synchronisation points ---------------------------------------------------------------------------

    def statement(self, s: Stmt) -> None:
        """Prints one statement with its own site."""
        self._enter(s)
        super().statement(s)

    def _meet(self, s: Stmt, recurse: Callable[[tuple[Stmt, ...]], None]) -> None:
        self._enter(s)
        super()._meet(s, recurse)

    def bulk_wait(self, s: BulkWait) -> None:
        """Prints the wait, after which the data of the barrier's copies may be read."""
        with self._leaders(s):
            self.out.line(f"{self._home()}.wait({self.scope.text(s.barrier)}, {self.scope.text(s.phase)}, {self.site});")

    def _alone(self, s: Stmt) -> None:
        if isinstance(s, BulkWait):
            self.out.line(f"homes[0].wait({self.scope.text(s.barrier)}, {self.scope.text(s.phase)}, {self.site});")
        super()._alone(s)

    def _enter(self, s: Stmt) -> None:
        if isinstance(s, Comment):
            self.section = s.text
            return
        text = self._site_text(s)
        if text:
            self.site = len(self.sites)
            self.sites.append(text + (f" // {self.section}" if self.section else ""))

    def _site_text(self, s: Stmt) -> str:
        """Short description of a statement for findings; "" for a statement that cannot cause one."""
        match s:
            case Assign(Reg(name)):
                return f"{name} = ..."
            case Declare(name, _, _, init) if init is not None:
                return f"{name} = ..."
            case Store(buffer, index) | Atomic(_, buffer, index) | ClusterStore(buffer, index):
                return f"{type(s).__name__} to {buffer}[{index}]"
            case VectorLoad(array, _, buffer, index, width):
                return f"VectorLoad of {width} from {buffer}[{index}] to {array}"
            case VectorStore(buffer, index, array, _, width):
                return f"VectorStore of {width} from {array} to {buffer}[{index}]"
            case ClusterLoad(_, buffer, index, rank):
                return f"ClusterLoad from {buffer}[{index}] of rank {rank}"
            case Shuffle(_, source, mode, amount):
                return f"Shuffle {mode} {amount} of {source.name}"
            case LastBlock(_, counter):
                return f"LastBlock on {counter}"
            case BulkCopy(shared, _, buffer, index):
                return f"BulkCopy from {buffer}[{index}] to {shared}"
            case BulkWait(barrier):
                return f"BulkWait on {barrier}"
            case TensorCopy(name, _, buffer, index):
                return f"TensorCopy of {name} to {buffer}[{index}]"
            case TensorStore(name, _, buffer, index):
                return f"TensorStore of {buffer}[{index}] to {name}"
            case TensorStoreWait(pending):
                return f"TensorStoreWait for all but {pending}"
            case AsyncCopy(shared, shared_index, buffer, index):
                return f"AsyncCopy from {buffer}[{index}] to {shared}[{shared_index}]"
            case AsyncWait(pending):
                return f"AsyncWait for all but {pending}"
            case MatrixProduct(accumulator, left, _, _, _, right):
                return f"MatrixProduct of {left} and {right} into {accumulator}"
            case WarpgroupProduct(accumulator, left, right=right):
                return f"WarpgroupProduct of {left} and {right} into {accumulator}"
            case WarpgroupWait(pending):
                return f"WarpgroupWait for all but {pending}"
            case Await(counter, index, value):
                return f"Await of {counter}[{index}] = {value}"
            case Publish(counter, index):
                return f"Publish to {counter}[{index}]"
            case Produce(ring) | Consume(ring) | ReleaseSlots(ring):
                return f"{type(s).__name__} of ring {ring}"
            case RoutineCall(function):
                return f"call of {function}"
            case IfValue():
                return "condition of a branch"
            case Let(name, FromMemory()):
                return f"index {name} from memory"
            case Barrier(scope, signal) if signal is not None:
                return f"Barrier of the {scope} on signal {signal}"
        return ""

    def _uniform_value(self, condition: KExpr, s: IfValue) -> None:
        super()._uniform_value(condition, s)
        rule = _quoted("condition differs between the threads of a block")
        with self._every_thread((Assign(Reg("holds", BOOL), condition),)):
            self.out.line(f"if ({self.expressions.text(condition)} != holds) check.finding({rule}, {self.site}, \"thread\", thread);")

    @contextlib.contextmanager
    def _every_thread(self, used: tuple[Stmt, ...]) -> Iterator[None]:
        with super()._every_thread(used):
            self.enter_thread()
            yield

    def enter_thread(self) -> None:
        """Prints the current thread's number for findings."""
        self.out.line(f"check.thread = {self._number('thread')};")

    def _number(self, thread: str) -> str:
        """Text of the number in the block of a running thread."""
        return f"{self.first_thread} + {thread}" if self.first_thread else thread

    def barrier(self, s: Barrier) -> None:
        """Prints a barrier, which begins a new epoch of the race check. An exchange also checks the bytes that each block was sent, a
        meeting its counter."""
        of_cluster = s.scope == "cluster" and self.cluster > 1
        if of_cluster and s.signal is not None and s.phase is not None:
            fields = f"{self.scope.text(s.signal)}, {self.scope.text(s.phase)}, {s.num_bytes}, {self.site}"
            with self._leaders(s):
                self.out.line(f"for (tf_shared_memory& home : homes) home.receive({fields});")
        if of_cluster and s.counter and s.index is not None:
            counter = identifier(s.counter)
            place = f"&{counter}, {counter}.name, {counter}.size, {self.scope.text(s.index)}"
            with self._leaders(s):
                self.out.line(f"check.meets({place}, {self._number('thread')}, {self.site});")
        if of_cluster and s.team:
            self.out.line(f"check.cluster_team_barrier({s.team}, {self.first_thread or '0'}, {self.running});")
        elif of_cluster:
            self.out.line("check.cluster_barrier();")
        elif s.team:
            self.out.line(f"check.team_barrier({s.team}, {self.first_thread or '0'}, {self.running});")
        else:
            self.out.line("check.block_barrier();")

    def signalled(self, s: ClusterStore) -> None:
        """Prints the count of a store's bytes on the receiving block's transaction barrier."""
        if s.signal is not None and self.cluster > 1:
            num_bytes = self.buffers[s.buffer].dtype.itemsize * len(s.values)
            home = f"tf_home_of(homes, {self.scope.text(s.rank)}, {self.site})"
            self.out.line(f"{home}.signalled({self.scope.text(s.signal)}, {num_bytes}, {self.site});")

    # -- pipelines and their products ----------------------------------------------------------------------------------------

    def ring_begin(self, ring: Ring) -> None:
        """Prints the checked state of a ring, whose slots are empty."""
        tiles = ", ".join(f"{{{b.offset_bytes}, {b.num_elements * b.dtype.itemsize // ring.slots}}}"
                          for b in (self.buffers[name] for name in ring.buffers))
        own = "homes[rank]" if self.cluster > 1 else "homes[0]"
        homes = [f"homes[{rank}]" for rank in range(self.cluster)] if self.rings_by_rank else [own]
        states = [f"{{{home}, {_quoted(ring.name)}, {ring.slots}, {self.site}, {{{tiles}}}}}" for home in homes]
        if self.rings_by_rank:
            self.out.line(f"tf_ring {ring_name(ring.name)}[] = {{{', '.join(states)}}};")
        else:
            self.out.line(f"tf_ring {ring_name(ring.name)}{states[0]};")

    def ring_call(self, ring: str, method: str, argument: str = "") -> str:
        """Text of a checked change of a ring's state."""
        return f"{ring_name(ring)}{self._rank()}.at({self.site}).{method}({argument});"

    def product(self, s: MatrixProduct | WarpgroupProduct) -> None:
        """Prints one thread's elements of a product, and the memory and registers that a warpgroup product in flight uses."""
        if isinstance(s, MatrixProduct):
            super().product(s)
            return
        self.sums = s.accumulator
        super().product(s)
        self.sums = ""
        home = "homes[rank]" if self.cluster > 1 else "homes[0]"
        operands = [(s.right, s.right_index, False)] + ([] if s.left_registers else [(s.left, s.left_index, True)])
        for name, index, is_left in operands:
            b = self.buffers[name]
            first = f"{b.offset_bytes} + {self.scope.operand(index)} * {b.dtype.itemsize}ll"
            self.out.line(f"{home}.product_reads({first}, {first} + {operand_elements(s, b, is_left) * b.dtype.itemsize - 1});")
        for name, use, count in [(s.accumulator, "writes", s.rows * s.columns), (s.left, "reads", s.rows * s.inner)][:1 + s.left_registers]:
            who = self._who(name) if name in self.spread else "0"
            self.out.line(f"{self._register_name(name)}.product_{use}({who}, {count // WARPGROUP});")
        self.out.line("check.issue_product();")
        if s.by_warps:
            self.out.line("check.wait_products(0u);")

    def products_wait(self, s: WarpgroupWait) -> None:
        """Prints the wait, after which sums may be read and operands overwritten."""
        self.out.line(f"check.wait_products({s.pending}u);")

    def simd(self, s: object) -> None:
        """Prints nothing: checked loops are not vectorised."""

    # -- hooks ---------------------------------------------------------------------------------------------------------------

    def _who(self, name: str) -> str:
        return f"rank * {self.threads} + {self.thread_of(name)}" if self.cluster > 1 else "0" if self.direct else self.thread_of(name)

    def _at(self, name: str, index: Affine | None) -> str:
        who = self._who(name) if name in self.spread else "0"
        return f"{who}, {'0' if index is None else self.scope.text(index)}"

    def _register_name(self, name: str) -> str:
        return self.array_of(name) if name in self.spread else identifier(name)

    def spread_pointer(self, s: Declare, text: str) -> None:
        """Prints a spread register with its shadow, uninitialised."""
        self.out.line(f"tf_spread_registers<{C_TYPES[s.dtype.name]}> {self.array_of(s.name)}(check, {_quoted(s.name)}, {s.size or 1}, "
                      f"{self.threads * self.cluster});")

    def declare(self, s: Declare) -> None:
        """Prints a register with its shadow, uninitialised."""
        if s.name not in self.spread:
            self.out.line(f"tf_registers<{C_TYPES[s.dtype.name]}, {s.size or 1}> {identifier(s.name)}(check, {_quoted(s.name)});")
        if s.init is not None:
            self.out.line(self.assign(Reg(s.name, s.dtype), self.expressions.text(s.init)))

    def register(self, r: Reg) -> str:
        """The checked value of a register."""
        access = "sum" if r.name == self.sums else "get"
        return f"{self._register_name(r.name)}.{access}({self._at(r.name, r.index)}, {self.site})"

    def assign(self, r: Reg, value: str) -> str:
        """A checked assignment."""
        access = "set_sum" if r.name == self.sums else "set"
        return f"{self._register_name(r.name)}.{access}({self._at(r.name, r.index)}, {value}, {self.site});"

    def let_text(self, s: Let) -> str:
        """The value of an index name; one from memory must lie within the extent that the kernel claims."""
        if not isinstance(s.value, FromMemory):
            return super().let_text(s)
        self._enter(s)
        text = super().let_text(s)
        return f"({self.scope.index_type})tf_claimed(check, {text}, {s.extent}, {_quoted(s.name)}, {self.site})"

    def load(self, e: Load) -> str:
        """The checked value of an element."""
        address = self.expressions.address(e.index, e.dynamic)
        if self.sums:
            return f"tf_product_load({identifier(e.buffer)}, {address}, {self.site})"
        return f"{identifier(e.buffer)}.load({address}, {self.site})"

    def store(self, buffer: str, address: str, value: str) -> str:
        """A checked store."""
        return f"{identifier(buffer)}.store({address}, {value}, {self.site});"

    def atomic(self, op: str, buffer: str, address: str, value: str) -> str:
        """A checked atomic update."""
        return f"tf_atomic_{op}({identifier(buffer)}.target({address}, {self.site}, true), {value});"

    def vector(self, s: VectorLoad | VectorStore) -> str:
        """A checked vector access. Vectors of a block with several threads must be aligned as on the GPU."""
        itemsize = self.buffers[s.buffer].dtype.itemsize
        num_bytes = s.width * itemsize
        alignment = 1 if self.threads == 1 else max(min(num_bytes, 16) // itemsize, 1)
        array = f"{self._register_name(s.array)}, {self._at(s.array, s.array_index)}"
        place = self.expressions.address(s.index, s.dynamic) if isinstance(s, VectorLoad) else self.scope.text(s.index)
        memory = f"{identifier(s.buffer)}, {place}"
        if isinstance(s, VectorLoad):
            return f"tf_vector_load_checked({array}, {memory}, {s.width}, {alignment}, {self.site});"
        return f"tf_vector_store_checked({memory}, {array}, {s.width}, {alignment}, {self.site});"

    def routine(self, s: RoutineCall) -> None:
        """Prints checks of the declared reads of a routine, its call, and checks of its declared writes."""
        for t in s.touched:
            if not t.writes:
                self._touched(t)
        super().routine(s)
        for t in s.touched:
            if t.writes:
                self._touched(t)

    def _touched(self, t: Touched) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._names())
            if t.first:
                stack.enter_context(self.out.block(f"if ({self.scope.condition(t.first)})"))
            for name, extent in t.loops:
                var = identifier(name)
                stack.enter_context(self.out.block(f"for (int {var} = 0; {var} < {extent}; ++{var})"))
                self.scope.extents[name] = extent
            if t.bounds:
                stack.enter_context(self.out.block(f"if ({self.scope.condition(t.bounds)})"))
            index = self.scope.text(t.index)
            if t.register:
                who = self._who(t.target) if t.target in self.spread else "0"
                touch = "mark" if t.writes else "get"
                self.out.line(f"{self._register_name(t.target)}.{touch}({who}, {index}, {self.site});")
            else:
                self.out.line(f"tf_together_{'write' if t.writes else 'read'}(check, {identifier(t.target)}, {index}, {self.site});")

    def address_of(self, buffer: str, index: Affine) -> str:
        """Address of an element, without its shadow."""
        return f"{identifier(buffer)}.address({self.scope.text(index)})"

    def address_of_register(self, r: Reg) -> str:
        """Address of an element of a register array, without its shadow."""
        return f"{self._register_name(r.name)}.address({self._at(r.name, r.index)})"

    def _remote_buffer(self, buffer: str, rank: Affine) -> str:
        b = self.buffers[buffer]
        if self.cluster == 1:
            return identifier(buffer)
        home = f"tf_home_of(homes, {self.scope.text(rank)}, {self.site})"
        ctype, number = C_TYPES[b.dtype.name], [x.name for x in self.kernel.buffers].index(buffer)
        own = f"{self.scope.operand(rank)} == rank"
        fields = f"{home}, {_quoted(b.name)}, {number}, {b.offset_bytes}, {b.num_elements}"
        return f"tf_remote<{ctype}>{{tf_shared<{ctype}>{{{fields}}}, {own}}}"

    def cluster_load(self, buffer: str, index: Affine, rank: Affine) -> str:
        """A checked element of another block's shared memory."""
        return f"{self._remote_buffer(buffer, rank)}.load({self.scope.text(index)}, {self.site})"

    def cluster_store(self, buffer: str, index: Affine, rank: Affine, value: str) -> str:
        """A checked store to another block's shared memory."""
        return f"{self._remote_buffer(buffer, rank)}.store({self.scope.text(index)}, {value}, {self.site});"

    def last_block(self, counter: str, index: Affine, count: int | Affine) -> str:
        """A checked arrival."""
        arrivals = self.scope.text(count) if isinstance(count, Affine) else count
        return f"{identifier(counter)}.last_block({self.scope.text(index)}, {arrivals}, {self.site})"

    def bulk_copy(self, s: BulkCopy) -> str:
        """A checked copy, in flight until a wait on its barrier."""
        arrive = "true" if s.arrive else "false"
        thread = self._number("thread") if s.team else self.first_thread or "0"
        return (f"tf_bulk_copy_checked({identifier(s.shared)}, {self.scope.text(s.shared_index)}, {identifier(s.buffer)}, "
                f"{self.scope.text(s.index)}, {s.num_elements}, {self.scope.text(s.barrier)}, {arrive}, {thread}, {self.site});")

    def tensor_transfer(self, s: TensorCopy | TensorStore | TensorStoreWait) -> None:
        """Prints a checked copy or store of one thread, or its wait for its stores."""
        thread = self._number("thread") if s.team else self.first_thread or "0"
        match s:
            case TensorCopy(buffer=buffer):
                self.out.line(checked_copy(self.kernel, s, identifier(buffer), "true", thread, self.site, self.scope))
            case TensorStore():
                self.out.line(checked_store(self.kernel, s, thread, self.site, self.scope))
            case TensorStoreWait(pending):
                self.out.line(f"{self._home()}.wait_stores({pending}, {thread}, {self.site});")

    def multicast(self, s: TensorCopy, rank: int) -> None:
        """Prints the checked copy of one block's box into the shared memory of another."""
        b = self.buffers[s.buffer]
        fields = f"homes[{rank}], {_quoted(b.name)}, {self.kernel.buffers.index(b)}, {b.offset_bytes}, {b.num_elements}"
        shared = f"tf_shared<{C_TYPES[b.dtype.name]}>{{{fields}}}"
        self.out.line(checked_copy(self.kernel, s, shared, f"rank == {rank}", self.first_thread or "0", self.site, self.scope))

    def proxy_fence(self) -> None:
        """Prints the fence, after which the copy engine may read the stores of the thread."""
        self.out.line(f"{self._home()}.fence();")

    def _home(self) -> str:
        """The shared memory of the block."""
        return "homes[rank]" if self.cluster > 1 else "homes[0]"

    def async_copy(self, s: AsyncCopy) -> str:
        """A checked copy, in flight until its thread waits for its group."""
        return (f"tf_async_copy_checked({identifier(s.shared)}, {self.scope.text(s.shared_index)}, {identifier(s.buffer)}, "
                f"{self.scope.text(s.index)}, {s.num_elements}, {self.site});")

    def async_order(self, s: AsyncGroup | AsyncWait) -> None:
        """Prints the end of a group of the thread's copies, or the wait for earlier groups."""
        self.out.line(f"{self._home()}.end_group();" if isinstance(s, AsyncGroup) else f"{self._home()}.wait_group({s.pending});")


def _has_contents(b: Buffer) -> str:
    """Whether a parameter is initialised before the launch, as C++ text."""
    return "true" if b.role in ("in", "inout", "counter") else "false"


def _quoted(text: str) -> str:
    """A C string literal."""
    return '"' + printable(text).replace("\\", "/").replace('"', "'").replace("\n", " ").replace("?", "\\?") + '"'
