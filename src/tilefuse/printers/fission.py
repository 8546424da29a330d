"""Prints any kernel IR for the host: blocks run in parallel with OpenMP, threads of a block as loops between synchronisation points.

        t = x[thread];            for thread: t[thread] = x[thread];
        s[thread] = t;            for thread: s[thread] = t[thread];
        barrier;            ->    // barrier
        y[thread] = s[n-thread];  for thread: y[thread] = s[n-thread];

A register that is live across a synchronisation point becomes an array over the threads; all others stay local. A block of one thread has
no thread loop and no such arrays. Where blocks of a cluster synchronise, a loop over `rank` surrounds the thread loops.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import BOOL
from tilefuse.ir.ops import C_TYPES
from tilefuse.kernel.asynchronous import BulkCopy, BulkWait, Prefetch
from tilefuse.kernel.checked_index import has_checks
from tilefuse.kernel.ir import (
    Assign,
    Barrier,
    Buffer,
    Comment,
    Declare,
    For,
    Group,
    If,
    IfValue,
    Kernel,
    KExpr,
    LastBlock,
    Let,
    MatrixProduct,
    Reg,
    Shuffle,
    Stmt,
)
from tilefuse.kernel.operand_table import find_member, member_tables, operand_place
from tilefuse.kernel.pipeline import Consume, EachWarpgroup, InTurn, Pipeline, Produce, ReleaseSlots, WarpgroupProduct
from tilefuse.kernel.tasks.statements import Await, Publish
from tilefuse.kernel.tasks.tables import operand_number
from tilefuse.kernel.tensor_map import TensorCopy, TensorStore, TensorStoreWait
from tilefuse.kernel.visit import BLOCK, CLUSTER, NOWHERE, index_names, meeting, register_names
from tilefuse.kernel.writer import Writer, comment_text, identifier
from tilefuse.printers.host_pipeline import PipelinePrinter
from tilefuse.printers.host_tasks import (
    await_lines,
    counters_to_zero,
    declare_counters,
    declare_records,
    publish_line,
    task_loop,
    task_parameters,
)
from tilefuse.printers.tensor_copies import host_copy, host_view, receivers
from tilefuse.printers.threads import Spread

# Size of a kernel's parameters from which its blocks run on several cores. Starting the cores costs more for a smaller kernel.
PARALLEL_BYTES = 1 << 16
# Name of the number of blocks where the launch decides it: the kernel's last argument.
BLOCKS = "tf_blocks"


class HostPrinter(PipelinePrinter):
    """Prints the entry point: blocks, stretches between synchronisation points, and the synchronisation points themselves."""

    def __init__(self, kernel: Kernel, task_order: Sequence[int] | None = None) -> None:
        """task_order: numbers of the tasks of a kernel of tasks in the order in which they run; None for the kernel's own."""
        super().__init__(kernel)
        self.task_order = task_order
        if kernel.tasks is not None:
            clock = ("chrono",) if kernel.tasks.recorded else ()
            self.includes = tuple(dict.fromkeys((*self.includes, "cstdio", *clock)))

    # -- frame -----------------------------------------------------------------------------------------------------

    def function(self) -> None:
        """Prints the entry point."""
        out = self.out
        declare_records(self)
        with out.block(f'extern "C" int {self.kernel.name}(void* const* arguments, char* report, long report_size)'):
            self.parameters()
            if has_checks(self.kernel):
                self.out.line("tf_index_fault tf_fault;")
            inner = Writer()
            self.out, outer = inner, self.out
            inner.depth = outer.depth
            self.blocks()
            self.out = outer
            out.lines += inner.lines
            if has_checks(self.kernel):
                self.out.line("if (tf_fault.found) return tf_fault.tell(report, report_size);")
            self.epilogue()

    def parameters(self) -> None:
        """Prints the typed pointers of the arguments, or the tables of a packed kernel's groups."""
        if self.kernel.tasks is not None:
            task_parameters(self)
            declare_counters(self)
        for number, group in enumerate(self.kernel.groups if self.kernel.tasks is None else ()):
            member_tables(group, number, f"static const {self.scope.index_type}", self.out)
        if not self.kernel.groups:
            pointers = self.kernel.parameters
            for n, b in enumerate(pointers):
                self._argument(b, str(n))
            names = [size.name for size in self.kernel.sizes] + ([BLOCKS] if self.kernel.blocks is not None else [])
            for n, name in enumerate(names, len(pointers)):
                self.out.line(f"const {self.scope.index_type} {identifier(name)} = ({self.scope.index_type})*static_cast<const long long*>"
                              f"(arguments[{n}]);")
        for m in self.kernel.maps:
            self.out.line(host_view(m, self.scope))

    def _argument(self, b: Buffer, place: str) -> None:
        """Prints the typed pointer of the argument with subscript `place`."""
        const = "" if b.name in self.written else "const "
        restrict = "" if b.name in self.aliased or b.name in self.changed else "__restrict "
        ctype = C_TYPES[b.dtype.name]
        self.out.line(f"{const}{ctype}* {restrict}const {identifier(b.name)} = static_cast<{const}{ctype}*>(arguments[{place}]);")

    def operands(self, group: Group, first: int) -> None:
        """Prints the current member's operands, inside the loop over a group's blocks. `first`: number of the group's first argument."""
        for n, slot in enumerate(group.slots):
            place = operand_place(group, first, n) if self.kernel.tasks is None else operand_number(self.kernel, group, n)
            self._argument(slot, place)

    def epilogue(self) -> None:
        """Prints the return statement."""
        if self.kernel.tasks is not None:
            counters_to_zero(self)
        self.out.line("(void)report;")
        self.out.line("(void)report_size;")
        self.out.line("return 0;")

    def blocks(self) -> None:
        """Prints the loop over the blocks, or over the clusters; for a packed kernel one loop per group."""
        if self.kernel.tasks is not None:
            task_loop(self)
            return
        for group in self.kernel.groups:
            self._group_blocks(group)
        if not self.kernel.groups:
            self._all_blocks(self.kernel.body, self.kernel.launch.num_blocks // self.cluster, None)

    def _group_blocks(self, group: Group) -> None:
        kept_bytes = self.scratch_bytes
        with self._names():
            self.scope.enter_group(group)
            self.group = group
            self._all_blocks(group.body, group.num_blocks, group)
        self.group = None
        self.scratch_bytes = kept_bytes

    def group_lines(self, group: Group) -> list[str]:
        """Lines of one task of a group; `scratch_bytes` grows by its needs."""
        with self._names():
            self.scope.enter_group(group)
            self.group = group
            lines = self._captured(group.body)
        self.group = None
        return lines

    def task_memory(self) -> None:
        """Prints nothing: scratch memory is all that tasks share."""

    def _all_blocks(self, body: tuple[Stmt, ...], count: int, group: Group | None) -> None:
        num_bytes = sum(b.num_elements * b.dtype.itemsize for b in self.kernel.parameters)
        parallel = count > 1 and num_bytes >= PARALLEL_BYTES
        lines = self._captured(body)
        if self.scratch_bytes:
            if parallel:
                self.out.directive("#pragma omp parallel")
            with self.out.block(""):
                self.out.line(f"const tf_scratch scratch({self.scratch_bytes});")
                if parallel:
                    self.out.directive("#pragma omp for schedule(static)")
                self._block_loop(count, lines, body, group)
        else:
            if parallel:
                self.out.directive("#pragma omp parallel for schedule(static)")
            self._block_loop(count, lines, body, group)

    def _captured(self, body: tuple[Stmt, ...]) -> list[str]:
        """Lines of one block (one cluster). They are printed first, because they determine the scratch size."""
        inner = Writer()
        self.out, outer = inner, self.out
        if self.direct:
            self.body(body)
        elif self.cluster == 1:
            self.block_body(body)
        else:
            self.cluster_body(body)
        self.out = outer
        return inner.lines

    def _block_loop(self, count: int, lines: list[str], body: tuple[Stmt, ...], group: Group | None) -> None:
        index = self.scope.index_type
        used = index_names(body)
        var = "launched" if group else "group" if self.cluster > 1 else "block"
        first = group.first_block if group else 0
        end = BLOCKS if self.kernel.blocks is not None else first + count
        with self.out.block(f"for ({index} {var} = {first}; {var} < {end}; ++{var})"):
            if group:
                number = self.kernel.groups.index(group)
                find_member(group, number, var, index, self.out)
                self.operands(group, sum(len(g.slots) * len(g.members) for g in self.kernel.groups[:number]))
            if self.direct:
                for name in sorted(used & {"thread", "rank"}):
                    self.out.line(f"const {index} {name} = 0;")
            elif self.cluster == 1 and "rank" in used:
                self.out.line(f"const {index} rank = 0;")
            if "cluster" in used:
                self.out.line(f"const {index} cluster = {'group' if self.cluster > 1 else 'block'};")
            if self.cluster == 1:
                self.shared_pointers("scratch.memory")
            else:
                self.cluster_memory()
            self.begin_group()
            self.out.lines += ["  " * self.out.depth + text if text else "" for text in lines]
            self.end_group()

    def cluster_memory(self) -> None:
        """Prints the pointer to the shared memory of a cluster's blocks, which lie one after the other."""
        self.out.line("unsigned char* const cluster_memory = scratch.memory;")

    def shared_pointers(self, base: str) -> None:
        """Prints the typed pointers of the block's shared buffers."""
        for b in self.kernel.buffers:
            if b.space == "shared":
                ctype = C_TYPES[b.dtype.name]
                self.out.line(f"{ctype}* const {identifier(b.name)} = reinterpret_cast<{ctype}*>({base} + {b.offset_bytes});"
                              + (f"  // %{comment_text(b.origin)}" if b.origin else ""))

    # -- synchronisation points ----------------------------------------------------------------------------------------

    def cluster_body(self, body: tuple[Stmt, ...]) -> None:
        """Prints statements that all blocks of the cluster run. Stretches without a cluster barrier become loops over the ranks."""
        with self._names():
            for stretch, level in self._stretches(body, CLUSTER):
                if level == CLUSTER:
                    self._meet(stretch[0], self.cluster_body)
                    continue
                with self._ranks(stretch):
                    self.block_body(stretch)

    @contextlib.contextmanager
    def _ranks(self, stretch: tuple[Stmt, ...]) -> Iterator[None]:
        """A loop over the blocks of a cluster, with the names that the stretch uses."""
        index = self.scope.index_type
        with self.out.block(f"for ({index} rank = 0; rank < {self.cluster}; ++rank)"):
            if "block" in self._needed_names(stretch):
                self.out.line(f"const {index} block = group * {self.cluster} + rank;")
            self.shared_pointers(f"cluster_memory + rank * {self.kernel.launch.shared_bytes}")
            with self._names():
                self._reprint_lets(stretch, of_block=True)
                yield

    def block_body(self, body: tuple[Stmt, ...]) -> None:
        """Prints statements that all threads of a block run. Stretches without a block barrier become loops over the threads."""
        with self._names():
            for stretch, level in self._stretches(body, BLOCK):
                if level == NOWHERE:
                    self._thread_loop(stretch)
                else:
                    self._meet(stretch[0], self.block_body)

    def _stretches(self, body: tuple[Stmt, ...], wide: int) -> Iterator[tuple[tuple[Stmt, ...], int]]:
        """Cuts a body into stretches without synchronisation of scope `wide`, and single statements with it; yields each with its scope.

        Registers that several pieces name are spread over the threads. Uniform index names are printed here.
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
            # A register that is also live across a cluster barrier is spread already.
            if isinstance(s, Declare) and s.name not in self.spread and sum(s.name in used for used in names) > 1:
                self._spread(s)
        for piece, level in pieces:
            varying = set(self.lets)
            kept = tuple(s for s in piece if not (isinstance(s, Let) and self._place_let(s, wide, varying)))
            if kept and not all(isinstance(s, Let) for s in kept):
                yield kept, level
            for s in kept:
                if isinstance(s, Let):
                    self.lets[s.name] = s

    def _place_let(self, s: Let, wide: int, varying: set[str]) -> bool:
        """Prints the definition of a uniform name and returns True. Other names join `varying` and are printed where they are used."""
        if s.value.axes() & (varying | ({"thread", "rank", "block"} if wide == CLUSTER else {"thread"})):
            varying.add(s.name)
            return False
        self.out.line(f"const {self.scope.index_type} {identifier(s.name)} = {self.let_text(s)};")
        self.scope.extents[s.name] = s.extent
        return True

    def _needed_names(self, stretch: tuple[Stmt, ...]) -> frozenset[str]:
        """Index names that a stretch uses, directly or through the definitions of others."""
        names = set(index_names(stretch))
        todo = sorted(names & self.lets.keys())
        while todo:
            for name in sorted(self.lets[todo.pop()].value.axes() - names):
                names.add(name)
                if name in self.lets:
                    todo.append(name)
        return frozenset(names)

    def _spread(self, s: Declare) -> None:
        """Places a register in scratch memory, as an array over the threads of the block (of the cluster)."""
        self.spread[s.name] = Spread(s.dtype, s.size)
        ctype = C_TYPES[s.dtype.name]
        place = f"scratch.memory + {self.scratch_bytes}"
        self.spread_pointer(s, f"{ctype}* const {self.array_of(s.name)} = reinterpret_cast<{ctype}*>({place});")
        num_bytes = (s.size or 1) * s.dtype.itemsize * self.threads * self.cluster
        self.scratch_bytes += -(-num_bytes // 128) * 128

    def spread_pointer(self, s: Declare, text: str) -> None:
        """Prints the pointer of a spread register."""
        self.out.line(text)

    def _thread_loop(self, stretch: tuple[Stmt, ...]) -> None:
        if all(isinstance(s, Comment | Prefetch) for s in stretch):
            for s in stretch:
                self.statement(s)
            return
        index = self.scope.index_type
        with self.out.block(f"for ({index} thread = 0; thread < {self.running}; ++thread)"), self._names():
            self.enter_thread()
            self._reprint_lets(stretch)
            self.body(stretch)

    def _reprint_lets(self, stretch: tuple[Stmt, ...], of_block: bool = False) -> None:
        """Prints the definitions of earlier names that this stretch uses; `of_block`: only of names that are uniform over the block."""
        needed = self._needed_names(stretch)
        for name, let in list(self.lets.items()):
            if name not in needed:
                continue
            if of_block:
                if let.value.axes() & ({"thread"} | self.lets.keys()):
                    continue
                del self.lets[name]
            self.statement(let)

    def _meet(self, s: Stmt, recurse: Callable[[tuple[Stmt, ...]], None]) -> None:
        """Prints a statement at which threads synchronise."""
        match s:
            case Barrier():
                self.barrier(s)
            case For():
                self._uniform(s.start, s.stop, *((s.step,) if isinstance(s.step, Affine) else ()))
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
            case MatrixProduct() | WarpgroupProduct():
                with self._every_thread((s,)):
                    self.product(s)
            case Pipeline() | Produce() | Consume() | EachWarpgroup() | ReleaseSlots():
                self.pipelined(s, recurse, recurse == self.cluster_body)
            case InTurn(body):
                # The order of warpgroups is no order of accesses.
                recurse(body)
            case Await():
                self.await_tasks(s)
            case Publish():
                self.publish_task(s)
            case LastBlock(target, counter, index, count):
                with self.out.block(""):
                    self.out.line(f"const bool last = {self.last_block(counter, index, count)};")
                    with self._every_thread((s,)):
                        self.out.line(self.assign(target, "last"))
            case BulkCopy():
                with self._leaders(s):
                    self.out.line(self.bulk_copy(s))
            case BulkWait():
                self.bulk_wait(s)
            case TensorCopy() if meeting(s, self.cluster) == CLUSTER:
                with self._ranks((s,)):
                    for rank in receivers(self.kernel, s):
                        self.multicast(s, rank)
            case TensorCopy() | TensorStore() | TensorStoreWait():
                with self._leaders(s):
                    self.tensor_transfer(s)
            case _:
                raise InternalError(f"threads cannot synchronise at {s!r}")

    def await_tasks(self, s: Await) -> None:
        """Prints the test that the tasks that a block awaits are done."""
        await_lines(self, s)

    def publish_task(self, s: Publish) -> None:
        """Prints the publication of a block's writes."""
        publish_line(self, s)

    def bulk_wait(self, s: BulkWait) -> None:
        """Prints a comment: the host's copies are synchronous and need no wait."""
        self.out.comment("the copies have arrived")

    def multicast(self, s: TensorCopy, rank: int) -> None:
        """Prints the copy of one block's box into the shared memory of the block with this rank."""
        b = self.buffers[s.buffer]
        start = f"cluster_memory + {rank * self.kernel.launch.shared_bytes + b.offset_bytes}"
        index = self.scope.text(s.index)
        place = f"reinterpret_cast<{C_TYPES[b.dtype.name]}*>({start})" + ("" if index == "0" else f" + {index}")
        self.out.line(host_copy(self.kernel, s, place, self.scope))

    @contextlib.contextmanager
    def _leaders(self, s: Barrier | BulkCopy | BulkWait | TensorCopy | TensorStore | TensorStoreWait) -> Iterator[None]:
        """A loop over the first thread of each team; no loop for a copy of the whole block."""
        if not s.team:
            with self._names():
                yield
            return
        index = self.scope.index_type
        with self.out.block(f"for ({index} thread = 0; thread < {self.running}; thread += {s.team})"), self._names():
            self._reprint_lets((s,))
            yield

    @contextlib.contextmanager
    def _every_thread(self, used: tuple[Stmt, ...]) -> Iterator[None]:
        index = self.scope.index_type
        with self.out.block(f"for ({index} thread = 0; thread < {self.running}; ++thread)"), self._names():
            self._reprint_lets(used)
            yield

    def _uniform(self, *indices: Affine) -> None:
        """Raises: InternalError when control flow around a synchronisation point differs between threads."""
        for e in indices:
            varying = {n for n in e.axes() if n == "thread" or n in self.lets}
            if varying:
                raise InternalError(f"kernel {self.kernel.name}: a loop or branch with a barrier depends on {', '.join(sorted(varying))}")

    def _uniform_value(self, condition: KExpr, s: IfValue) -> None:
        """Prints `holds`, the condition evaluated by the first thread."""
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
            self.out.line(f"{ctype} lanes[{self.running}];")
            with self._every_thread((s,)):
                self.out.line(f"lanes[thread] = {self.register(s.source)};")
            with self._every_thread((s,)):
                self.out.line(self.assign(s.target, f"lanes[tf_lane_{s.mode}((int)thread, {s.amount}, {s.width}, {self.running})]"))
