"""The emitter of one kernel with its buffers, shared by the templates of one walk.

It covers touches of memory held in register arrays, lanes of a vector, results, scratch memory, and the finished kernel.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from math import prod
from types import MappingProxyType

from tilefuse.domain.access import is_vector
from tilefuse.domain.online import KERNEL_MONOIDS
from tilefuse.domain.resolved import Domain, Instance, Resolved, Touch, Use, direct_touches, resolved_walk
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.windows import is_same_along
from tilefuse.emit.boundary import boundary_buffer
from tilefuse.emit.emitter import Emitter
from tilefuse.ir.affine import Affine, number, row_major_strides, substitute
from tilefuse.ir.dtype import I32, DType
from tilefuse.ir.ops import NARROW_CUDA
from tilefuse.ir.scalar import Bound, Call, const
from tilefuse.kernel.ir import (
    Assign,
    Buffer,
    Declare,
    If,
    Kernel,
    KExpr,
    Reg,
    Stmt,
    Store,
    VectorLoad,
    VectorStore,
)
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch

# Monoids of scans that use each operand once. Operands of the others are held in registers.
USED_ONCE = ("sum", "prod", "max", "min")


@dataclass(frozen=True, slots=True)
class Held:
    """A touch whose elements lie in a register array: element `chunk * width + lane` (`step`: the array holds a single chunk)."""

    touch: Touch
    array: str
    width: int
    vector: bool
    step: bool = False
    dynamic: tuple[tuple[KExpr, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """A scan whose values are recomputed during a walk.

    `value` is the running value of the thread (`before` None) or of its vector. The latter is combined with element `chunk` of `before`."""

    instance: Instance
    value: Reg
    before: Reg | None = None


class KernelWriter:
    """The emitter of one kernel with its buffers, and the state that all templates share."""

    def __init__(self, program: TileProgram, device: DeviceSpec, taken: Iterable[str] = ()) -> None:
        self.program = program
        self.device = device
        self.domain = program.domain
        self.emitter = Emitter(self.domain)
        self.emitter.names.update(taken)
        self.shared_bytes = 0
        self.num_barriers = 0
        self.scratch: list[Buffer] = []
        self.unroll = device.kind == "cuda"
        self.chunk_values: dict[int, tuple[Reg, int]] = {}  # scanned values: arrays over chunks and lanes
        self.running: list[Running] = []
        self.spare_lanes = False  # lanes outside a row are computed like the others, from arbitrary data, and their results are unused
        self.settled: Set[str] = frozenset()  # values that the kernel may fetch while the kernel ahead of it runs
        self.row_axis = ""  # axis of the rows if rows begin or end inside vectors: lanes outside a row are then skipped
        self.lane_values: dict[int, Reg] = {}  # column values: arrays over the lanes of a vector
        self.lane_expressions: dict[object, Reg] = {}  # values of parts of bodies: arrays over the lanes of a vector
        graph = program.graph
        scattered = self.domain.scatter[0] if self.domain.scatter else ""
        for value in graph.inputs:
            if scattered and value.name == graph.node_by_name[scattered].operands[0] and not self._touched(value.name):
                continue
            self._add(value.name, value.type.dtype, self._extent(value.name), "in")
        for name in graph.results:
            self._add(name, graph.type_of(name).dtype, self._extent(name), "inout" if name == scattered else "out")

    @property
    def narrow(self) -> bool:
        """Whether the rounding of the kernel's data hides hardware approximations, whose relative error is below 2^-16.

        A result with one value per element of the domain must be a float of 16 bits or fewer, or must not depend on an approximated
        function. A result with fewer values (statistics of rows or columns, losses, positions) may be wider if every float that the kernel
        reads has 16 bits or fewer. Each term then has a rounding error of 2^-12 or more. A sum of n terms in f32 has an error of up to
        n * 2^-24 of the sum of their magnitudes, to which the approximations add at most 2^-16.
        """
        graph = self.program.graph
        size = prod(self.domain.extents[a] for a in self.domain.kept + self.domain.reduced)
        read_narrow = all(v.type.dtype.bits <= 16 for v in graph.inputs if v.type.dtype.is_float)
        keys = {name: key for name, key, _ in self.domain.outputs}
        for name in graph.results:
            t = graph.type_of(name)
            if t.dtype.is_float and t.dtype.bits <= 16:
                continue
            if t.num_elements < size and read_narrow and t.dtype.name != "f64":
                continue
            if t.dtype.is_float or name not in keys or self._approximated(keys[name]):
                return False
        return True

    def _approximated(self, key: int) -> bool:
        """Whether a value depends on a function that has an approximate form."""
        needed = reachable(self.domain, [key], set())
        return any(isinstance(x, Call) and x.fn in NARROW_CUDA for i in needed for x in resolved_walk(i.body))

    def _touched(self, value: str) -> bool:
        bodies = [i.body for i in self.domain.instances]
        if self.domain.scatter is not None:
            bodies += [self.domain.scatter[1], *(t for t, _, _ in self.domain.scatter[2])]
        return any(isinstance(x, Touch) and x.value == value for b in bodies for x in resolved_walk(b))

    def _extent(self, value: str) -> int:
        """Extent of a value in memory, from its first element to its last. Units: elements."""
        return extent_in_memory(self.program, value)

    def _add(self, value: str, dtype: DType, num_elements: int, role: str) -> None:
        shape = self.program.graph.type_of(value).shape
        strides = self.program.layouts.get(value) or row_major_strides(shape)
        self.emitter.dimensions[value] = tuple(zip(shape, strides, strict=True))
        name = self.emitter.fresh(value)
        self.emitter.buffers[value] = boundary_buffer(name, dtype, num_elements, role, value, shape)
        if role == "in":
            self.emitter.cache[value] = self._cache(value, num_elements)

    def _cache(self, value: str, num_elements: int) -> str:
        """Cache hint of an input: "stream" for large values, which are read once; "keep" for values that rows or lanes share."""
        largest = max((self._extent(v.name) for v in self.program.graph.inputs), default=0)
        return "stream" if num_elements * 4 >= largest and num_elements >= self.device.fitted.traffic.streamed_elements else "keep"

    @property
    def leaving(self) -> str:
        """Cache hint of result stores: "stream" if the kernel moves more bytes than L2 holds, else "".

        Results of such a kernel would leave L2 before they are read. Other results get the usual priority, so they do not leave L2 before
        lines that are not read again. Rows that blocks read, reduce and store one after another get the usual priority too.

        Source: H200, chains of kernels that read the previous kernel's results: usual priority 3 % faster at 16 + 16 MiB, equal at 4 + 4
        and below. H200, 60 patterns of rows above the size of L2: usual priority up to 1.8 % faster for rows, up to 3 % slower for
        elementwise and persistent kernels.
        """
        return "stream" if self.floods and self.program.choice.streams_results else ""

    @property
    def floods(self) -> bool:
        """Whether the kernel moves more bytes than L2 holds."""
        return self.program.bytes_moved > self.device.l2_bytes

    def shared(self, stem: str, dtype: DType, num_elements: int) -> str:
        """Reserves shared memory, 16-byte aligned; returns the buffer's name."""
        name = self.emitter.fresh(stem)
        offset = -(-self.shared_bytes // 128) * 128 if num_elements * dtype.itemsize >= 1024 else -(-self.shared_bytes // 16) * 16
        self.scratch.append(Buffer(name, dtype, num_elements, "shared", "", "", offset))
        self.shared_bytes = offset + num_elements * dtype.itemsize
        return name

    def workspace(self, stem: str, dtype: DType, num_elements: int) -> str:
        """A global scratch parameter."""
        name = self.emitter.fresh(stem)
        self.scratch.append(Buffer(name, dtype, num_elements, "global", "workspace"))
        return name

    def counter(self, stem: str, num_elements: int) -> str:
        """A global counter parameter: zero before and after every launch."""
        name = self.emitter.fresh(stem)
        self.scratch.append(Buffer(name, I32, num_elements, "global", "counter"))
        return name

    # -- touches in register arrays --------------------------------------------------------------------------------

    def touches(self, bodies: Iterable[Resolved]) -> list[Touch]:
        """Distinct unguarded direct touches of bodies, in order, without those of empty values."""
        distinct = dict.fromkeys(t for body in bodies for t in direct_touches(body))
        return [t for t in distinct if self.emitter.buffers[t.value].num_elements]

    def runs(self, touch: Touch, width: int, lane: str, env: dict[str, Affine]) -> bool:
        """Whether a touch is one aligned vector. `env` maps root axes with `lane` as the vector's variable."""
        return is_vector(substitute(touch.offset, env, self.emitter.extents | {lane: width}), lane, width)

    def held(self, touch: Touch, chunks: int, width: int, vector: bool, step: bool = False) -> Held:
        """Declares a register array of `chunks` vectors for a touch."""
        array = self.emitter.fresh(touch.value + "_v")
        self.emitter.emit(Declare(array, touch.dtype, chunks * width))
        return Held(touch, array, width, vector, step)

    def fill(self, held: Held, chunk: Affine, lane_env: dict[str, Affine], lane: str) -> None:
        """Loads one vector of a held touch; `lane_env` maps root axes with `lane` as the vector's variable."""
        e = self.emitter
        offset = substitute(held.touch.offset, lane_env, e.extents | {lane: held.width})
        buffer = e.buffers[held.touch.value].name
        cache = e.cache.get(held.touch.value, "")
        start = chunk * held.width

        def load_lanes() -> None:
            with e.lanes(held.width, self.unroll) as v:
                if self.spare_lanes:
                    e.emit(Assign(Reg(held.array, held.touch.dtype, start + v), const(0, held.touch.dtype)))
                with e.when(self._lane_in_row(lane_env, lane, v)):
                    e.emit(VectorLoad(held.array, start + v, buffer, substitute(offset, {lane: v}), 1, cache))

        if held.width == 1 or held.vector:
            whole = VectorLoad(held.array, start, buffer, substitute(offset, {lane: number(0)}), held.width, cache)
            inside = Bound(whole.index, 0, e.buffers[held.touch.value].num_elements - held.width + 1) if self.spare_lanes else None
            self._whole_or_lanes(whole, load_lanes, lane_env, lane, held.width, inside)
        else:
            load_lanes()

    def _lane_in_row(self, lane_env: Mapping[str, Affine], lane: str, at: Affine) -> tuple[Bound, ...]:
        """Bounds that hold if lane `at` is an element of the row; () if rows are whole vectors."""
        if not self.row_axis:
            return ()
        place = substitute(lane_env[self.row_axis], {lane: at}, self.emitter.extents)
        return (Bound(place, 0, self.domain.extents[self.row_axis]),)

    def _whole_or_lanes(self, whole: Stmt, by_lanes: Callable[[], None], lane_env: Mapping[str, Affine], lane: str, width: int,
                        inside: Bound | None = None) -> None:
        """Emits `whole` for vectors inside the row, and the statements of `by_lanes` for vectors that the row's start or end cuts.

        inside: condition under which `whole` is legal; by default, that all lanes belong to the row.
        """
        e = self.emitter
        if not self.row_axis or width == 1:
            with e.when(self._lane_in_row(lane_env, lane, number(0))):
                e.emit(whole)
            return
        if inside is None:
            first = substitute(lane_env[self.row_axis], {lane: number(0)}, e.extents)
            inside = Bound(first, 0, self.domain.extents[self.row_axis] - width + 1)
        with e.nested() as otherwise:
            by_lanes()
        e.emit(If((inside,), (whole,), tuple(otherwise.statements)))

    def bind(self, held: Iterable[Held], chunk: Affine, lane: Affine) -> None:
        """Binds touches held in arrays to their registers, in the current lane frame."""
        e = self.emitter
        for key, (reg, width) in self.chunk_values.items():
            e.frame.values[key] = Reg(reg.name, reg.dtype, chunk * width + lane)
        for h in held:
            start = number(0) if h.step else chunk * h.width
            e.frame.loads[h.touch.value, e.index(h.touch.offset), h.dynamic] = Reg(h.array, h.touch.dtype, start + lane)
        for scan in self.running:
            join, name = partial(self.joined, scan.instance), scan.instance.node.name
            have, work = e.dtype(scan.instance.body), scan.value.dtype
            x = e.expression(scan.instance.body)
            e.emit(Assign(scan.value, join(scan.value, x if work == have else Call(work.name, (x,)))))
            value: KExpr = scan.value if work == have else Call(have.name, (scan.value,))
            if scan.before is not None:
                before = Reg(scan.before.name, scan.before.dtype, chunk)
                value = e.register(join(before, value), scan.value.dtype, name)
            e.frame.values[scan.instance.key] = value

    def joined(self, scan: Instance, *parts: KExpr) -> KExpr:
        """The combination of two parts of a scan's row, the earlier one first."""
        e = self.emitter
        dtype = next((p.dtype for p in parts if isinstance(p, Reg)), e.dtype(scan.body))
        if scan.node.detail not in USED_ONCE:
            parts = tuple(p if isinstance(p, Reg) else e.register(p, dtype, scan.node.name + "_part") for p in parts)
        first, second = parts
        combined: KExpr = KERNEL_MONOIDS[scan.node.detail].combine((first,), (second,), dtype)[0]
        return combined

    # -- writing ----------------------------------------------------------------------------------------------------

    def write_lanes(self, outputs: list[tuple[str, int, Affine]], width: int, held: list[Held], chunk: Affine,
                    lane_env: dict[str, Affine], lane: str, also: Callable[[Affine], None] | None = None) -> None:
        """Computes `width` lanes of the outputs at the current point and stores them, as vectors where their addresses are aligned.

        also: emits further computations of each lane.
        """
        e = self.emitter
        plans: list[tuple[str, int, Affine, str | None]] = []
        for name, key, offset in outputs:
            at = substitute(offset, e.env | lane_env, e.extents | {lane: width})
            array = None
            if width > 1 and is_vector(at, lane, width):
                array = e.fresh(name + "_out")
                e.emit(Declare(array, e.buffers[name].dtype, width))
            plans.append((name, key, at, array))
        with self.lanes(width, lane_env, lane) as v:
            self.bind(held, chunk, v)
            if also is not None:
                also(v)
            # All outputs are computed before one is stored: a store may overwrite an operand of another output.
            values = [e.value(key) for _, key, _, _ in plans]
            for value, (name, _, at, array) in zip(values, plans, strict=True):
                if array is not None:
                    e.emit(Assign(Reg(array, e.buffers[name].dtype, v), value))
                else:
                    with e.when(self.writers(name)):
                        e.emit(Store(e.buffers[name].name, substitute(at, {lane: v}, e.extents), value, (), self.leaving))
        for name, _, at, array in plans:
            if array is not None:
                with e.when(self.writers(name, {a: substitute(x, {lane: number(0)}, e.extents) for a, x in lane_env.items()})):
                    self._store_vector(name, array, at, lane_env, lane, width)

    def _store_vector(self, name: str, array: str, at: Affine, lane_env: Mapping[str, Affine], lane: str, width: int) -> None:
        """Stores the computed lanes of a result as one aligned vector."""
        e = self.emitter
        buffer = e.buffers[name]

        def store_lanes() -> None:
            with e.lanes(width, self.unroll) as v, e.when(self._lane_in_row(lane_env, lane, v)):
                e.emit(Store(buffer.name, substitute(at, {lane: v}, e.extents), Reg(array, buffer.dtype, v), (), self.leaving))

        whole = VectorStore(buffer.name, substitute(at, {lane: number(0)}, e.extents), array, number(0), width, self.leaving)
        self._whole_or_lanes(whole, store_lanes, lane_env, lane, width)

    def writers(self, name: str, at: Mapping[str, Affine] = MappingProxyType({})) -> tuple[Bound, ...]:
        """Bounds under which a row writes a result: the first of the rows that compute the same element. `at`: axes not yet in `env`."""
        e, domain = self.emitter, self.domain
        used = next(offset.axes() for result, _, offset in domain.outputs if result == name)
        return tuple(Bound(at[a] if a in at else e.env[a], 0, 1) for a in domain.kept if a not in used and domain.extents[a] > 1)

    def write_values(self, outputs: Sequence[tuple[str, int, Affine]]) -> None:
        """Computes the outputs at the current point, then stores them. A store may overwrite an operand of another output."""
        e = self.emitter
        values = [e.value(key) for _, key, _ in outputs]
        for value, (name, _, offset) in zip(values, outputs, strict=True):
            with e.when(self.writers(name)):
                e.emit(Store(e.buffers[name].name, e.index(offset), value))

    @contextlib.contextmanager
    def lanes(self, width: int, lane_env: dict[str, Affine], lane: str) -> Iterator[Affine]:
        """A loop over the lanes of a vector, with the root axes set for each lane; yields the lane variable."""
        e = self.emitter
        saved = dict(e.env)
        with e.lanes(width, self.unroll) as v, e.nested() as inner:
            e.env = saved | {a: substitute(x, {lane: v}, e.extents) for a, x in lane_env.items()}
            inner.values.update({k: r if width == 1 else Reg(r.name, r.dtype, v) for k, r in self.lane_values.items()})
            inner.expressions.update({k: Reg(r.name, r.dtype, v) for k, r in self.lane_expressions.items()})
            e.neighbours += width > 1
            with e.when(() if self.spare_lanes else self._lane_in_row(lane_env, lane, v)):
                yield v
            e.neighbours -= width > 1
            e.frames[-2].statements.extend(inner.statements)
        e.env = saved

    def finish(self) -> Kernel:
        """The finished kernel: buffers in parameter order, launch, header. `compose` decides the width of its indices."""
        e = self.emitter
        program = self.program
        buffers = tuple(e.buffers.values()) + tuple(self.scratch)
        launch = Launch(program.launch.num_blocks, program.launch.num_threads, program.launch.cluster, self.shared_bytes,
                        self.device.starts_early)
        header = (f"nodes: {', '.join('%' + n.name for n in program.graph.nodes)}", f"schedule: {program.notation}",
                  f"reads {program.bytes_read} bytes, writes {program.bytes_written} bytes")
        resident = self.device.bounded_blocks(program.choice.resident, launch.num_threads)
        return Kernel(program.name, buffers, launch, tuple(e.frame.statements), header, min_blocks=resident,
                      num_barriers=self.num_barriers, narrow=self.narrow)


def extent_in_memory(program: TileProgram, value: str) -> int:
    """Extent of a boundary value in memory, from its first element to its last. Units: elements."""
    shape = program.graph.type_of(value).shape
    strides = program.layouts.get(value)
    if prod(shape) == 0:
        return 0
    if strides is None:
        return prod(shape)
    return 1 + sum((e - 1) * s for e, s in zip(shape, strides, strict=True))


def reachable(domain: Domain, keys: Iterable[int], stop: set[int]) -> list[Instance]:
    """Instances that `keys` need, in evaluation order. Those in `stop` are already computed and are not visited."""
    seen: set[int] = set()
    todo = [k for k in keys if k not in stop]
    while todo:
        key = todo.pop()
        if key in seen:
            continue
        seen.add(key)
        todo.extend(u for u in domain.instances[key].uses if u not in stop)
    return [domain.instances[k] for k in sorted(seen)]


def hoist_without_lane(writer: KernelWriter, bodies: Sequence[Resolved], lane_env: dict[str, Affine], lane: str, width: int,
                       held: list[Held]) -> None:
    """Emits before the lane loop the loads and the single-thread reductions that are equal in all `width` lanes of the vector."""
    e = writer.emitter
    loaded = {h.touch for h in held}
    saved = dict(e.env)
    # A value that depends on the loop of a single-thread reduction does not exist outside that loop.
    loops = writer.domain.serial_loops
    extents = e.extents | {lane: width}
    at = saved | lane_env
    same = [t for t in writer.touches(bodies) if t not in loaded and not t.offset.axes() & loops
            and lane not in substitute(t.offset, at, extents).axes()]
    sums = [i.key for i in _always_computed(writer.domain) if i.serial and not i.depends & loops
            and is_same_along(writer.domain, i, at, lane, extents)] if width > 1 else []
    e.env = saved | {a: substitute(x, {lane: number(0)}, e.extents) for a, x in lane_env.items()}
    for touch in same:
        e.touch(touch, False)
    for key in sums:
        e.value(key)
    e.env = saved


def _always_computed(domain: Domain) -> list[Instance]:
    """Instances that every point computes: those of the outputs, except those used only behind guards or in loops of reductions."""
    keys: set[int] = set()
    todo = [key for _, key, _ in domain.outputs]
    while todo:
        key = todo.pop()
        if key in keys:
            continue
        keys.add(key)
        if not domain.instances[key].serial:
            todo.extend(_used(domain.instances[key].body))
    return [domain.instances[key] for key in sorted(keys)]


def _used(body: Resolved) -> list[int]:
    match body:
        case Use(key):
            return [key]
        case Call(_, args):
            return [key for a in args for key in _used(a)]
    return []
