"""Prints pipelines as CUDA C++: the tree once for each role, around the transaction barriers of the rings' slots.

    if (threadIdx.x >= 256) { fewer registers; if (threadIdx.x == 256) { the producers' tree } }
    else                    { more registers;  the consumers' tree }

Each role counts slots and phases itself, in `tf_<ring>_slot` and `tf_<ring>_phase`. Source: PTX ISA, mbarrier, wgmma.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from tilefuse.base.errors import InternalError, UnsupportedDeviceError
from tilefuse.ir.affine import Affine
from tilefuse.kernel.asynchronous import AsyncCopy
from tilefuse.kernel.expression import IndexScope
from tilefuse.kernel.ir import Atomic, Barrier, Buffer, FromMemory, If, Kernel, Let, Stmt, Store, VectorStore
from tilefuse.kernel.pipeline import (
    SWIZZLE_CHUNK_BYTES,
    SWIZZLE_ROWS,
    WARPGROUP,
    WARPGROUP_INNER_BYTES,
    WARPGROUP_ROWS,
    Consume,
    EachWarpgroup,
    InTurn,
    Pipeline,
    Produce,
    ReleaseSlots,
    Ring,
    SkipSlots,
    WarpgroupProduct,
    WarpgroupWait,
)
from tilefuse.kernel.pipeline_roles import absent_tree, consumer_tree, producer_tree
from tilefuse.kernel.tensor_map import TensorCopy
from tilefuse.kernel.visit import index_names, statements
from tilefuse.kernel.writer import Writer, identifier
from tilefuse.printers.host_pipeline import ring_name
from tilefuse.printers.support.warpgroup_text import instruction_name
from tilefuse.target.device import DeviceSpec
from tilefuse.target.warpgroup import COLUMN_STEP


class StatementPrinter(Protocol):
    """The CUDA printer of one kernel, as pipelines use it."""

    kernel: Kernel
    out: Writer
    scope: IndexScope
    buffers: dict[str, Buffer]

    def body(self, body: tuple[Stmt, ...]) -> None:
        """Prints the statements of one scope."""

    def statement(self, s: Stmt) -> None:
        """Prints one statement."""


def check_device(kernel: Kernel, device: DeviceSpec) -> None:
    """Raises: UnsupportedDeviceError when a device has no pipelines or no warpgroup products; InternalError for too many registers."""
    pipeline = kernel.pipeline
    if pipeline is None:
        return
    multiplies = any(isinstance(s, WarpgroupProduct) for s in statements(pipeline.body))
    can = device.capabilities
    if not can.pipelines or multiplies and not can.warpgroup_products:
        kind = "warpgroup products" if multiplies else "a pipeline of warps with roles"
        raise UnsupportedDeviceError(f"kernel {kernel.name} contains {kind}, which {device.arch} does not have",
                                     hint="warpgroup products need compute capability 9.0, pipelines 9.0 or newer")
    threads = kernel.launch.num_threads
    launched = min(device.registers_per_multiprocessor // (threads * max(kernel.min_blocks, 1)) // 8 * 8, device.max_registers_per_thread)
    if pipeline.producer_registers > launched:
        raise InternalError(f"kernel {kernel.name}: {pipeline.producer_registers} registers per producer, which gives registers away; "
                            f"a block of {threads} threads starts with {launched} each")
    needed = pipeline.producer_registers * WARPGROUP + pipeline.consumer_registers * pipeline.consumer_threads
    if needed > launched * threads:
        raise InternalError(f"kernel {kernel.name}: {pipeline.producer_registers} registers per producer and "
                            f"{pipeline.consumer_registers} per consumer are {needed}; "
                            f"a block of {threads} threads starts with {launched * threads}")


class CudaPipeline:
    """State of one kernel's pipeline while it is printed.

    full       text of the address of the full barrier of the slot that is being filled; "" outside `Produce`
    consumers  number of consumer threads in their tree; 0 elsewhere
    warpgroups  consumer warpgroups of the pipeline
    arrays     register arrays in scope, in order of declaration
    ahead      rings whose first fillings begin before the kernel ahead has ended
    is_ahead   whether the statements at hand are those of that beginning
    """

    def __init__(self, printer: StatementPrinter) -> None:
        self.printer = printer
        self.rings: dict[str, Ring] = {}
        self.most_held: dict[str, int] = {}  # by ring: slots that its uses leave unreleased, at most
        self.full = ""
        self.consumers = 0
        self.warpgroups = 0
        self.arrays: list[str] = []
        self.ahead: frozenset[str] = frozenset()
        self.is_ahead = False
        kernel = printer.kernel
        products = [s for s in statements(kernel.body) if isinstance(s, WarpgroupProduct)]
        self.sums = {s.accumulator for s in products}
        self.swizzled = {b.name: b.swizzle for b in kernel.buffers if b.swizzle}

    def statement(self, s: Pipeline[Stmt] | Produce[Stmt] | Consume[Stmt] | EachWarpgroup[Stmt] | InTurn[Stmt] | SkipSlots | ReleaseSlots
                  | WarpgroupProduct | WarpgroupWait) -> None:
        """Prints one statement of a pipeline."""
        match s:
            case Pipeline():
                self._pipeline(s)
            case Produce():
                self._produce(s)
            case Consume():
                self._consume(s)
            case EachWarpgroup():
                self._turns(s)
            case InTurn(body):
                self._await_turn()
                for inner in body:
                    self.printer.statement(inner)
                self.printer.out.line(f"tf_pass_turn<{self.warpgroups}>(tf_turns, tf_warpgroup);")
            case SkipSlots(ring, count):
                name = ring_name(ring)
                self.printer.out.line(f"tf_skip_slots<{self.rings[ring].slots}, {count}>({name}_slot, {name}_phase);")
            case ReleaseSlots(ring):
                self._release(self.rings[ring], 0, self.most_held[ring])
            case WarpgroupProduct():
                self._product(s)
            case WarpgroupWait(pending):
                settled = " ".join(f"tf_settle({identifier(name)});" for name in self.arrays if name in self.sums)
                self.printer.out.line(f"tf_products_wait<{pending}>(); {settled}".rstrip())

    # -- roles -------------------------------------------------------------------------------------------------------------

    def make_barriers(self, s: Pipeline[Stmt]) -> None:
        """Prints the barriers of all rings, ready for use. They touch shared memory alone: a kernel that starts early makes them first."""
        out = self.printer.out
        fills, turns = _producing_threads(s), _turns_of(s)
        of_one = {u.ring for t in turns for u in statements(t.body) if isinstance(u, Consume)}
        self.warpgroups = s.consumer_threads // WARPGROUP
        for r in s.rings:
            self.rings[r.name] = r
            uses = (u.held_slots for u in statements(s.body) if isinstance(u, Consume) and u.ring == r.name)
            self.most_held[r.name] = min(max(uses, default=0), r.slots)
            full, empty = f"{ring_name(r.name)}_full", f"{ring_name(r.name)}_empty"
            out.line(f"__shared__ __align__(8) unsigned long long {full}[{r.slots}], {empty}[{r.slots}];")
            blocks = self.printer.kernel.launch.cluster if r.cluster else 1
            arrivals = (WARPGROUP if r.name in of_one else s.consumer_threads) // 32 * blocks
            out.line(f"tf_ring_init({full}, {empty}, {r.slots}, {fills.get(r.name, 1)}, {arrivals});")
        if turns or _in_order(s):
            out.line(f"__shared__ __align__(8) unsigned long long tf_turns[{self.warpgroups}];")
            out.line(f"tf_turns_init(tf_turns, {self.warpgroups});")
        out.line("tf_cluster_meet();" if self._shares_slots(s) else "tf_rings_ready();")

    def _shares_slots(self, s: Pipeline[Stmt]) -> bool:
        """Whether the blocks of a cluster fill each other's slots."""
        return any(r.cluster for r in s.rings) and self.printer.kernel.launch.cluster > 1

    def _pipeline(self, s: Pipeline[Stmt]) -> None:
        out = self.printer.out
        fills, turns = _producing_threads(s), _turns_of(s)
        producers = max(fills.values(), default=0)
        with out.block(f"if (threadIdx.x >= {s.consumer_threads})"):
            if s.producer_registers:
                out.line(f"tf_lower_registers<{s.producer_registers}>();")
            if producers:
                last = f"== {s.consumer_threads}" if producers == 1 else f"< {s.consumer_threads + producers}"
                with out.block("" if producers == WARPGROUP else f"if (threadIdx.x {last})"), self._threads(producers):
                    out.line(f"const {self.printer.scope.index_type} thread = threadIdx.x - {s.consumer_threads};")
                    self._counters(s.rings, "1u")
                    self._begin_ahead(s)
                    self.printer.body(producer_tree(s.body))
        with out.otherwise(), self._threads(s.consumer_threads):
            if s.consumer_registers:
                out.line(f"tf_raise_registers<{s.consumer_registers}>();")
            if self.ahead:
                out.line("tf_wait_for_earlier_kernel();")
            self._counters(s.rings, "0u")
            for r in s.rings:
                out.line(f"int {ring_name(r.name)}_open = 0;")
            if turns or _in_order(s):
                out.line(f"const {self.printer.scope.index_type} tf_warpgroup = tf_own_warpgroup();")
                out.line("unsigned int tf_turn_phase = tf_warpgroup ? 0u : 1u;")
            self.consumers = s.consumer_threads
            self.printer.body(consumer_tree(s.body))
            self.consumers = 0
        if self._shares_slots(s):
            # Other blocks still arrive at this block's barriers.
            out.line("tf_cluster_barrier();")

    def _begin_ahead(self, s: Pipeline[Stmt]) -> None:
        """Prints the copies that fill slots for the first time, then the wait for the kernel ahead; nothing where kernels wait first."""
        out = self.printer.out
        if not (s.early and self.printer.kernel.launch.early):
            return
        self.ahead = frozenset(p.ring for p in statements(s.body) if isinstance(p, Produce) and _copies_ahead(p))
        for ring in sorted(self.ahead):
            out.line(f"int {ring_name(ring)}_ahead = 0;")
        self.is_ahead = True
        with out.block(""):
            self.printer.body(producer_tree(s.body))
        self.is_ahead = False
        out.line("tf_begun:")
        out.line("tf_wait_for_earlier_kernel();")

    def _produce_ahead(self, s: Produce[Stmt], ring: Ring) -> None:
        """Prints the copies of one filling that begin ahead, into the slot of this number; after the last slot their end."""
        out, name = self.printer.out, ring_name(ring.name)
        out.line(f"if ({name}_ahead == {ring.slots}) goto tf_begun;")
        with out.block("" if self.printer.scope.extents["thread"] == s.threads else f"if (thread < {s.threads})"), self._threads(s.threads):
            out.line(f"const {self.printer.scope.index_type} {identifier(s.slot)} = {name}_ahead;")
            self.printer.scope.extents[s.slot] = ring.slots
            self.full = f"{name}_full + {name}_ahead"
            self.printer.body(_copies_ahead(s))
            self.full = ""
        out.line(f"++{name}_ahead;")

    def _counters(self, rings: tuple[Ring, ...], phase: str) -> None:
        for r in rings:
            self.printer.out.line(f"int {ring_name(r.name)}_slot = 0;")
            self.printer.out.line(f"unsigned int {ring_name(r.name)}_phase = {phase};")

    @contextlib.contextmanager
    def _threads(self, count: int) -> Iterator[None]:
        """A scope in which "thread" has `count` values."""
        with self.printer.scope.nested():
            self.printer.scope.extents["thread"] = count
            yield

    def _turns(self, s: EachWarpgroup[Stmt]) -> None:
        """Prints the producers' loop over the warpgroups; for a consumer its own turn, between those that it passes over."""
        out, scope, var = self.printer.out, self.printer.scope, identifier(s.group)
        index, last = scope.index_type, self.warpgroups
        if not self.consumers:
            self._over_warpgroups(s.group, f"{index} {var} = 0; {var} < {last}", self._guarded(s, s.body))
            return
        absent = self._guarded(s, absent_tree(s.body))
        if last > 1:
            self._over_warpgroups(s.group, f"{index} {var} = 0; {var} < tf_warpgroup", absent)
        with out.block(""), self._threads(WARPGROUP):
            out.line(f"const {index} {var} = tf_warpgroup;")
            if "thread" in index_names((s.body, s.after)):
                out.line(f"const {index} thread = threadIdx.x % {WARPGROUP};")
            scope.extents[s.group] = last
            ahead = _names_from_memory(s.body)
            if not ahead:
                self._await_turn()
            passed = f"tf_pass_turn<{last}>(tf_turns, tf_warpgroup);"
            # One scope: registers of the turn are read behind it, and stay in flight where no branch ends between.
            with out.block(f"if ({scope.condition(s.bounds)})") if s.bounds else contextlib.nullcontext(), scope.assuming(s.bounds):
                depth = len(self.arrays)
                for inner in ahead:
                    self.printer.statement(inner)
                if ahead:
                    self._await_turn()
                for inner in s.body[len(ahead):]:
                    self.printer.statement(inner)
                out.line(passed)
                for inner in s.after:
                    self.printer.statement(inner)
                del self.arrays[depth:]
            if s.bounds:
                with out.otherwise():
                    if ahead:
                        self._await_turn()
                    out.line(passed)
        if last > 1:
            self._over_warpgroups(s.group, f"{index} {var} = tf_warpgroup + 1; {var} < {last}", absent)

    def _await_turn(self) -> None:
        """Prints the wait for the warpgroup before."""
        self.printer.out.line("tf_bulk_wait(tf_turns + tf_warpgroup, tf_turn_phase);")
        self.printer.out.line("tf_turn_phase ^= 1u;")

    @staticmethod
    def _guarded(s: EachWarpgroup[Stmt], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return (If(s.bounds, body),) if s.bounds else body

    def _over_warpgroups(self, group: str, head: str, body: tuple[Stmt, ...]) -> None:
        with self.printer.out.block(f"for ({head}; ++{identifier(group)})"), self.printer.scope.nested():
            self.printer.scope.extents[group] = self.warpgroups
            self.printer.body(body)

    # -- slots -------------------------------------------------------------------------------------------------------------

    def _produce(self, s: Produce[Stmt]) -> None:
        out, name = self.printer.out, ring_name(s.ring)
        ring = self.rings[s.ring]
        if self.is_ahead:
            if s.ring in self.ahead:
                self._produce_ahead(s, ring)
            return
        is_role = self.printer.scope.extents["thread"] == s.threads
        with out.block("" if is_role else f"if (thread < {s.threads})"), self._threads(s.threads):
            self._slot(s.slot, ring)
            self.full = f"{name}_full + {name}_slot"
            out.line(f"tf_bulk_wait({name}_empty + {name}_slot, {name}_phase);")
            begun = _copies_ahead(s) if s.ring in self.ahead else ()
            if begun:
                with out.block(f"if ({name}_ahead == 0)"):
                    self.printer.body(begun)
                with out.otherwise():
                    out.line(f"--{name}_ahead;")
            self.printer.body(tuple(inner for inner in s.body if inner not in begun))
            if any(isinstance(inner, (Store, VectorStore, AsyncCopy, Atomic)) for inner in statements(s.body)):
                out.line("tf_proxy_fence();")
            out.line(f"tf_slot_arrive({self.full});")
            self.full = ""
        out.line(f"tf_next_slot<{ring.slots}>({name}_slot, {name}_phase);")

    def _consume(self, s: Consume[Stmt]) -> None:
        out, name = self.printer.out, ring_name(s.ring)
        ring = self.rings[s.ring]
        with out.block(""), self.printer.scope.nested():
            self._slot(s.slot, ring)
            out.line(f"tf_bulk_wait({name}_full + {name}_slot, {name}_phase);")
            self.printer.body(s.body)
            out.line(f"tf_next_slot<{ring.slots}>({name}_slot, {name}_phase);")
            out.line(f"++{name}_open;")
            self._release(ring, s.held_slots, self.most_held[s.ring] + 1 - s.held_slots)

    def _slot(self, slot: str, ring: Ring) -> None:
        index = self.printer.scope.index_type
        self.printer.out.line(f"const {index} {identifier(slot)} = {ring_name(ring.name)}_slot;")
        self.printer.scope.extents[slot] = ring.slots

    def _release(self, ring: Ring, held_slots: int, count: int) -> None:
        """Prints the release of all open slots but `held_slots`, which are `count` slots at most."""
        if not count:
            return
        blocks = self.printer.kernel.launch.cluster if ring.cluster else 1
        name = ring_name(ring.name)
        self.printer.out.line(f"tf_release_slots<{ring.slots}, {held_slots}, {count}, {blocks}>({name}_empty, {name}_slot, {name}_open);")

    # -- consumers' barriers -------------------------------------------------------------------------------------------------

    def barrier(self, s: Barrier, bits: str) -> str:
        """Text of a block barrier among consumers. bits: registers that must hold their loaded elements."""
        scope, threads = ("team", s.team) if s.team else ("consumer", self.consumers)
        return f"tf_{scope}_barrier_after<{threads}>({bits});" if bits else f"tf_{scope}_barrier<{threads}>();"

    # -- products --------------------------------------------------------------------------------------------------------------

    def _product(self, s: WarpgroupProduct) -> None:
        """Prints the instructions of one group: for every step along the inner axis, one for each 64 rows."""
        out, scope = self.printer.out, self.printer.scope
        if s.by_warps:
            self._product_of_warps(s)
            return
        right = self.printer.buffers[s.right]
        left_type = right.dtype.name if s.left_registers else self.printer.buffers[s.left].dtype.name
        itemsize = right.dtype.itemsize
        function = instruction_name(s.columns, left_type, right.dtype.name, s.left_registers)
        flags = f"<{int(s.left_turned)}, {int(not s.right_turned)}>"
        tiles, step = s.rows // WARPGROUP_ROWS, WARPGROUP_INNER_BYTES // itemsize
        with out.block(""):
            if not s.left_registers:
                self._operand("tf_left", self.printer.buffers[s.left], s.left_index, s.left_panel, s.left_turned)
            self._operand("tf_right", right, s.right_index, s.right_panel, not s.right_turned)
            out.line("tf_products_begin();")
            for k in range(0, s.inner, step):
                keep = "1" if s.term is None or k else f"{scope.operand(s.term)} != 0"
                right_at = _sum("tf_right", _inner_bytes(right, s.right_panel, not s.right_turned, k) // SWIZZLE_CHUNK_BYTES)
                for tile in range(tiles):
                    sums = _sum(identifier(s.accumulator), tile * s.columns // 2)
                    if s.left_registers:
                        words = _sum(identifier(s.left), tile * s.inner // 2 + k // 2)
                        out.line(f"{function}{flags}({sums}, tf_left_words({words}).of, {right_at}, {keep});")
                        continue
                    place = self.printer.buffers[s.left], s.left_panel, s.left_turned
                    offset = _inner_bytes(*place, k) + _row_bytes(*place, tile * WARPGROUP_ROWS)
                    out.line(f"{function}{flags}({sums}, {_sum('tf_left', offset // SWIZZLE_CHUNK_BYTES)}, {right_at}, {keep});")
            out.line("tf_products_end();")

    def _product_of_warps(self, s: WarpgroupProduct) -> None:
        """Prints the call that multiplies the rows of each warp."""
        scope, right = self.printer.scope, self.printer.buffers[s.right]
        keep = "1" if s.term is None else f"{scope.operand(s.term)} != 0"
        tiles, columns, panel_bytes = s.rows // WARPGROUP_ROWS, s.columns // COLUMN_STEP, s.right_panel * right.dtype.itemsize
        function = "tf_warp_pieces" if s.in_pieces else "tf_warp_product"
        self.printer.out.line(f"{function}<{tiles}, {columns}, {s.inner}, {panel_bytes}>({identifier(s.accumulator)}, "
                              f"{identifier(s.left)}, {self._place(right, s.right_index)}, {keep});")

    def _place(self, b: Buffer, index: Affine) -> str:
        """Text of the address of an element of a buffer."""
        text = self.printer.scope.text(index)
        return identifier(b.name) if text == "0" else f"{identifier(b.name)} + {text}"

    def _operand(self, name: str, b: Buffer, index: Affine, panel: int, across: bool) -> None:
        """Prints the descriptor of an operand. across: rows (columns) are contiguous, not the inner axis."""
        panel_bytes, group_bytes = panel * b.dtype.itemsize, SWIZZLE_ROWS * max(b.swizzle, SWIZZLE_CHUNK_BYTES)
        # Without a swizzle, the leading offset is that of core matrices along the inner axis, and the stride offset the other one.
        leading, stride = (group_bytes, panel_bytes) if across and not b.swizzle else (panel_bytes, group_bytes)
        place = self._place(b, index)
        self.printer.out.line(f"const unsigned long long {name} = tf_operand<{b.swizzle}>({place}, {leading}, {stride});")


def _producing_threads(s: Pipeline[Stmt]) -> dict[str, int]:
    """Threads that fill each ring."""
    return {p.ring: p.threads for p in statements(s.body) if isinstance(p, Produce)}


def _copies_ahead(s: Produce[Stmt]) -> tuple[Stmt, ...]:
    """The copies of a filling that begin ahead in a pipeline that begins early."""
    return tuple(inner for inner in s.body if isinstance(inner, TensorCopy) and inner.ahead)


def _turns_of(s: Pipeline[Stmt]) -> list[EachWarpgroup[Stmt]]:
    """The statements that one warpgroup after the other runs."""
    return [t for t in statements(s.body) if isinstance(t, EachWarpgroup)]


def _in_order(s: Pipeline[Stmt]) -> bool:
    """Whether warpgroups begin some statements one after another."""
    return any(isinstance(t, InTurn) for t in statements(s.body))


def _inner_bytes(b: Buffer, panel: int, across: bool, k: int) -> int:
    """Distance of inner element `k` from the operand's start. Units: bytes, without the swizzle."""
    width_bytes = max(b.swizzle, SWIZZLE_CHUNK_BYTES)
    if across:
        return k * width_bytes
    offset = k * b.dtype.itemsize
    return offset // width_bytes * panel * b.dtype.itemsize + offset % width_bytes


def _row_bytes(b: Buffer, panel: int, across: bool, row: int) -> int:
    """Distance of a row (or column) from the operand's start. Units: bytes, without the swizzle."""
    return _inner_bytes(b, panel, not across, row)


def _sum(text: str, offset: int) -> str:
    return f"{text} + {offset}" if offset else text


def _names_from_memory(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The index names at the head of a turn, where memory decides one of them: a warpgroup reads them while it waits for its turn."""
    count = next((n for n, s in enumerate(body) if not isinstance(s, Let)), len(body))
    ahead = body[:count]
    return ahead if any(isinstance(s, Let) and isinstance(s.value, FromMemory) for s in ahead) else ()
