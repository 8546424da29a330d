"""Rules of pipelines, warpgroup products and swizzled buffers that hold for a kernel as a whole. Both printers check them first.

The rules about order (waits, slots, products in flight) are those of the host's checking mode.
"""
from __future__ import annotations

from collections.abc import Iterator

from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import Affine
from tilefuse.kernel.asynchronous import BulkCopy
from tilefuse.kernel.ir import (
    Barrier,
    Buffer,
    ClusterLoad,
    ClusterStore,
    Comment,
    For,
    If,
    IfValue,
    Kernel,
    LastBlock,
    Let,
    MatrixProduct,
    Pointer,
    RoutineCall,
    Stmt,
)
from tilefuse.kernel.pipeline import (
    PIECES,
    SWIZZLE_LINE_BYTES,
    SWIZZLE_ROWS,
    SWIZZLES,
    TILE_ALIGNMENT_BYTES,
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
    panel_width,
)
from tilefuse.kernel.tensor_map import TensorCopy
from tilefuse.kernel.visit import NOWHERE, bodies, index_names, meeting, register_names, statements
from tilefuse.target.capabilities import BLOCK_BARRIERS
from tilefuse.target.warpgroup import COLUMN_STEP, LEAST_REGISTERS, MOST_COLUMNS, MOST_REGISTERS, REGISTER_STEP

# Alignment of a slot, for tensor copies. Units: bytes.
SLOT_ALIGNMENT_BYTES = 128
# Columns of 8-bit integer products beyond which only multiples of 16 exist.
FREE_INTEGER_COLUMNS = 24
# Element types of (left, right) operands; f32 is read as tf32.
NARROW_FLOATS = ("f16", "bf16")
PRODUCT_TYPES = frozenset({("f16", "f16"), ("bf16", "bf16"), ("f32", "f32")}
                          | {(a, b) for kinds in (("f8e4m3", "f8e5m2"), ("i8", "u8")) for a in kinds for b in kinds})
# Statements that stand in pipelines alone.
_OF_PIPELINES = (Pipeline, Produce, Consume, EachWarpgroup, InTurn, SkipSlots, ReleaseSlots, WarpgroupProduct, WarpgroupWait)


def check_pipeline(kernel: Kernel) -> None:
    """Raises: InternalError when a kernel breaks a rule of pipelines, products or swizzles; it lists every one."""
    faults = pipeline_faults(kernel)
    if faults:
        raise InternalError(f"kernel {kernel.name}: " + "; ".join(faults))


def pipeline_faults(kernel: Kernel) -> list[str]:
    """One line for every broken rule; empty for a correct kernel and for one without pipeline and swizzles."""
    buffers = kernel.addressed
    faults = [*_tensor_copies(kernel.body, 0)]
    if not any(isinstance(s, Pipeline) for s in kernel.body) and not any(b.swizzle for b in kernel.buffers):
        return faults + [f"{type(s).__name__} outside a Pipeline at the top of the kernel" for s in statements(kernel.body)
                if isinstance(s, _OF_PIPELINES)]
    faults += [*_swizzles(kernel), *_place(kernel)]
    pipeline = kernel.pipeline
    if pipeline is not None:
        faults += _multicasts(pipeline)
        faults += [*_threads(kernel, pipeline), *(f for ring in pipeline.rings for f in _ring(ring, buffers)), *_roles(pipeline)]
        faults += _begins_ahead(pipeline)
        faults += [f for s in statements(pipeline.body) if isinstance(s, WarpgroupProduct) for f in _product(s, buffers)]
    return faults


def _swizzles(kernel: Kernel) -> Iterator[str]:
    """Swizzled buffers: their place, and statements that address memory without the swizzle."""
    swizzled = {b.name: b for b in kernel.buffers if b.swizzle}
    for b in swizzled.values():
        if b.space != "shared" or b.swizzle not in SWIZZLES or b.offset_bytes % TILE_ALIGNMENT_BYTES:
            yield (f"swizzled buffer {b.name} ({b.space}, swizzle {b.swizzle}, offset {b.offset_bytes}): it must be shared, "
                   f"with a swizzle of {SWIZZLES}, at a multiple of {TILE_ALIGNMENT_BYTES} bytes")
    for s in statements(kernel.body):
        match s:
            case MatrixProduct(left=left, right=right):
                names = {left, right}
            case BulkCopy(shared=name) | ClusterLoad(buffer=name) | ClusterStore(buffer=name):
                names = {name}
            case RoutineCall(arguments=arguments):
                names = {a.buffer for a in arguments if isinstance(a, Pointer)}
            case _:
                continue
        for name in sorted(names & swizzled.keys()):
            yield f"{type(s).__name__} addresses the swizzled buffer {name}"


def _tensor_copies(body: tuple[Stmt, ...], producers: int) -> Iterator[str]:
    """Tensor copies without a barrier of their own, which complete on a ring's slot. producers: threads of the `Produce` around them."""
    for s in body:
        if isinstance(s, TensorCopy) and s.barrier is None and producers != 1:
            where = f"a Produce of {producers} threads, of which each would start it" if producers else "no Produce, and names no barrier"
            yield f"TensorCopy of map {s.map} stands in {where}"
        for inner in bodies(s):
            yield from _tensor_copies(inner, s.threads if isinstance(s, Produce) else producers)


def _begins_ahead(pipeline: Pipeline[Stmt]) -> Iterator[str]:
    """Copies that begin ahead elsewhere than at the head of a filling, where producers find them before the kernel ahead has ended."""
    own = {id(c) for p in statements(pipeline.body) if isinstance(p, Produce) for c in p.body}
    for c in statements(pipeline.body):
        if isinstance(c, TensorCopy) and c.ahead and (not pipeline.early or id(c) not in own or c.multicast or c.barrier is not None):
            yield f"TensorCopy of map {c.map} begins ahead in a branch, in other blocks, or in a pipeline that does not begin early"


def _multicasts(pipeline: Pipeline[Stmt]) -> Iterator[str]:
    """Rings whose slots other blocks fill while their own block alone decides when these are empty."""
    own = {r.name for r in pipeline.rings if not r.cluster}
    for s in statements(pipeline.body):
        if isinstance(s, Produce) and s.ring in own and any(isinstance(c, TensorCopy) and c.multicast for c in statements(s.body)):
            yield f"ring {s.ring}: a multicast copy fills slots of other blocks, and the ring is not one of the cluster"


def _place(kernel: Kernel) -> Iterator[str]:
    """The pipeline's place in the kernel, and statements of pipelines outside."""
    after = False
    for s in kernel.body:
        if after and not isinstance(s, Comment):
            yield f"{type(s).__name__} after the Pipeline, which must be the kernel's last statement"
        after = after or isinstance(s, Pipeline)
        if not isinstance(s, Pipeline):
            yield from (f"{type(inner).__name__} outside a Pipeline at the top of the kernel" for inner in statements((s,))
                        if isinstance(inner, _OF_PIPELINES))


def _threads(kernel: Kernel, s: Pipeline[Stmt]) -> Iterator[str]:
    if s.consumer_threads <= 0 or s.consumer_threads % WARPGROUP or kernel.launch.num_threads != s.consumer_threads + WARPGROUP:
        yield (f"a block of {kernel.launch.num_threads} threads with {s.consumer_threads} consumers: consumers are a multiple of "
               f"{WARPGROUP}, and {WARPGROUP} threads produce")
    registers = (s.producer_registers, s.consumer_registers)
    if any(registers) and any(r % REGISTER_STEP or not LEAST_REGISTERS <= r <= MOST_REGISTERS for r in registers):
        yield (f"registers {registers} of producers and consumers: multiples of {REGISTER_STEP} in {LEAST_REGISTERS} .. {MOST_REGISTERS}, "
               "or both 0")


def _ring(ring: Ring, buffers: dict[str, Buffer]) -> Iterator[str]:
    for name in ring.buffers:
        b = buffers.get(name)
        if b is None or b.space != "shared":
            yield f"ring {ring.name}: {name} is no shared buffer"
            continue
        slot_bytes = b.num_elements * b.dtype.itemsize // max(ring.slots, 1)
        alignment = max(SWIZZLE_ROWS * b.swizzle, SLOT_ALIGNMENT_BYTES)
        if ring.slots < 1 or b.num_elements % ring.slots or slot_bytes % alignment or b.offset_bytes % alignment:
            yield (f"ring {ring.name}: {b.num_elements} elements of {name} at byte {b.offset_bytes} are not {ring.slots} slots "
                   f"at multiples of {alignment} bytes")


def _roles(pipeline: Pipeline[Stmt]) -> Iterator[str]:
    """Where the two roles' statements stand, and the rings that they name."""
    rings = {r.name for r in pipeline.rings}
    if len(rings) != len(pipeline.rings):
        yield "two rings of one name"
    threads: dict[str, int] = {}
    for s in statements(pipeline.body):
        match s:
            case Produce(ring):
                yield from _produce(s)
                if threads.setdefault(ring, s.threads) != s.threads:
                    yield f"ring {ring}: Produce statements of {threads[ring]} and of {s.threads} threads"
            case Consume():
                yield from (f"{type(inner).__name__} inside a Consume of ring {s.ring}" for inner in statements(s.body)
                            if isinstance(inner, (Produce, EachWarpgroup))
                            or isinstance(inner, (Consume, ReleaseSlots)) and inner.ring == s.ring)
            case InTurn():
                yield from (f"{type(inner).__name__} inside an InTurn" for inner in statements(s.body)
                            if isinstance(inner, (Produce, EachWarpgroup, InTurn)))
            case Barrier("cluster", None, counter=counter) if not (counter and s.team == WARPGROUP):
                yield "a cluster barrier without a signal inside a Pipeline, which producers would not reach"
            case ClusterLoad(buffer=name):
                yield f"ClusterLoad of {name} inside a Pipeline, where exchanges order signalled stores alone"
            case ClusterStore(buffer=name, signal=None):
                yield f"ClusterStore to {name} without a signal inside a Pipeline, which no barrier there orders"
            case Barrier(team=team) if team and pipeline.consumer_threads // team > BLOCK_BARRIERS - 2:
                yield f"{pipeline.consumer_threads // team} teams inside a Pipeline: {BLOCK_BARRIERS - 2} hardware barriers are left"
        if isinstance(s, (Produce, Consume, ReleaseSlots)) and s.ring not in rings:
            yield f"{type(s).__name__} of an unknown ring {s.ring}"
    yield from _turns(pipeline)
    yield from _control(pipeline.body, frozenset({"thread"}))


def _turns(pipeline: Pipeline[Stmt]) -> Iterator[str]:
    """Statements that one warpgroup after the other runs, and the rings whose slots they use."""
    turns = [s for s in statements(pipeline.body) if isinstance(s, EachWarpgroup)]
    inside = [inner for s in turns for inner in statements((*s.body, *s.after))]
    own = {s.ring for s in inside if isinstance(s, (Produce, Consume, ReleaseSlots))}
    yield from (f"ring {s.ring}: {type(s).__name__} outside an EachWarpgroup, and others inside" for s in statements(pipeline.body)
                if isinstance(s, (Produce, Consume, ReleaseSlots)) and s.ring in own and not any(s is i for i in inside))
    for s in inside:
        if isinstance(s, EachWarpgroup):
            yield "an EachWarpgroup inside another one"
        if isinstance(s, LastBlock) or isinstance(s, Barrier) and (not s.team or WARPGROUP % s.team):
            yield f"{type(s).__name__} inside an EachWarpgroup, where other warpgroups do not meet this one"
    if turns and any(isinstance(s, InTurn) for s in statements(pipeline.body)):
        yield "an InTurn beside an EachWarpgroup, which use the same barriers"
    for t in turns:
        yield from (f"ring {s.ring}: {type(s).__name__} behind the turn of its warpgroup" for s in statements(t.after)
                    if isinstance(s, (Produce, Consume)))


def _produce(s: Produce[Stmt]) -> Iterator[str]:
    if s.threads != 1 and (s.threads % 32 or not 0 < s.threads <= WARPGROUP):
        yield f"ring {s.ring}: {s.threads} producer threads; 1, 32, 64, 96 or 128 are possible"
    declared = {getattr(d, "name", "") for d in statements(s.body)}
    outside = sorted(register_names(s.body) - declared)
    if outside:
        yield f"ring {s.ring}: a Produce uses the consumers' registers {', '.join(outside)}"
    yield from (f"ring {s.ring}: {type(inner).__name__} inside a Produce" for inner in statements(s.body)
                if isinstance(inner, (*_OF_PIPELINES, Barrier, ClusterStore))
                or not bodies(inner) and meeting(inner, 1) != NOWHERE)


def _control(body: tuple[Stmt, ...], varying: frozenset[str]) -> Iterator[str]:
    """Names of control flow around producers and inside them that differ between threads or depend on data."""
    for s in body:
        if isinstance(s, Let) and s.value.axes() & varying:
            varying |= {s.name}
        if not any(isinstance(inner, (Produce, InTurn)) for inner in statements((s,))):
            continue
        match s:
            case Produce():
                own = {inner.name for inner in statements(s.body) if isinstance(inner, Let)}
                names = index_names(s.body) - {"thread"} - own
            case For(start=start, stop=stop, step=step):
                names = start.axes() | stop.axes() | (step.axes() if isinstance(step, Affine) else frozenset())
            case If(bounds=bounds) | EachWarpgroup(bounds=bounds):
                names = frozenset().union(*(b.index.axes() for b in bounds))
            case _:
                names = frozenset()
        if isinstance(s, IfValue):
            yield "a Produce or InTurn under a condition of values, which producers do not have, or which not all threads meet"
        if names & varying:
            yield f"a Produce or InTurn depends on {', '.join(sorted(names & varying))}, which differs between threads"
        if not isinstance(s, Produce):
            for inner in bodies(s):
                yield from _control(inner, varying)


def _product(s: WarpgroupProduct, buffers: dict[str, Buffer]) -> Iterator[str]:
    """Shapes, types and alignment of a warpgroup product."""
    where = f"WarpgroupProduct into {s.accumulator}"
    operands = (s.right,) if s.left_registers else (s.left, s.right)
    if any(n not in buffers or buffers[n].space != "shared" for n in operands):
        yield f"{where}: {' and '.join(operands)} must be shared buffers"
        return
    right = buffers[s.right]
    left_type = right.dtype.name if s.left_registers else buffers[s.left].dtype.name
    itemsize = right.dtype.itemsize
    if (left_type, right.dtype.name) not in PRODUCT_TYPES or (s.arithmetic == "tf32") != (left_type == "f32"):
        yield f"{where}: no product of {left_type} and {right.dtype} with arithmetic {s.arithmetic!r}"
    integer = right.dtype.is_integer and s.columns > FREE_INTEGER_COLUMNS
    if s.rows % WARPGROUP_ROWS or s.columns % (2 * COLUMN_STEP if integer else COLUMN_STEP) or not 0 < s.columns <= MOST_COLUMNS:
        yield f"{where}: no instruction for {s.rows} rows and {s.columns} columns of {right.dtype}"
    if s.inner <= 0 or s.inner * itemsize % WARPGROUP_INNER_BYTES:
        yield f"{where}: {s.inner} inner elements are not whole instructions of {WARPGROUP_INNER_BYTES} bytes"
    narrow = left_type in NARROW_FLOATS
    if not narrow and (s.left_registers or s.left_turned or not s.right_turned):
        yield f"{where}: operands of {left_type} lie in shared memory with contiguous inner axes"
    if s.by_warps and not (narrow and s.left_registers and s.right_turned and right.swizzle == SWIZZLE_LINE_BYTES):
        yield f"{where}: warps multiply operands in registers by turned 16-bit ones in panels of {SWIZZLE_LINE_BYTES} bytes"
    if s.in_pieces and (not s.by_warps or s.inner % (PIECES * panel_width(right.swizzle, itemsize))):
        yield f"{where}: lanes hold pieces of pairs of panels that single warps multiply, and {s.inner} inner elements are none"
    sides = [(s.right, s.right_index, not s.right_turned)] + ([] if s.left_registers else [(s.left, s.left_index, s.left_turned)])
    for name, index, across in sides:
        if not _starts_whole(index, panel_width(buffers[name].swizzle, itemsize), across or s.by_warps, itemsize):
            yield f"{where}: {name}[{index}] is not the start of a swizzle's rows or of an instruction's inner elements"


def _starts_whole(index: Affine, width: int, across: bool, itemsize: int) -> bool:
    """Whether an operand may begin at `index`: groups of 8 rows of a panel; along a contiguous inner axis also whole instructions."""
    group = SWIZZLE_ROWS * width
    step = WARPGROUP_INNER_BYTES // itemsize
    return all(c % group == 0 or not across and c % step == 0 and c % group < width for c in (index.const, *(c for _, c in index.terms)))
