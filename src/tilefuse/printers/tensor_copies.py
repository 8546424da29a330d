"""C++ text of tensor maps and of the statements that use them, for all printers. The support headers hold the functions."""
from __future__ import annotations

from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import Affine, mod, number
from tilefuse.kernel.expression import IndexScope
from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.tensor_map import TensorCopy, TensorMap, TensorStore, TensorStoreWait
from tilefuse.kernel.writer import identifier
from tilefuse.target.tensor_map import GRANULE_BYTES, box_alignment_bytes

# Numbers of the support header's cache policies.
POLICIES = {"": 0, "last": 1, "first": 2}
# Threads of a block at most: the default team of the support functions.
ONE_TEAM = 1024


def map_of(kernel: Kernel, s: TensorCopy | TensorStore) -> TensorMap:
    """The map of a statement. Raises: InternalError where statement, map and buffers do not belong together."""
    m, buffers = kernel.map_named(s.map), kernel.addressed
    shared, memory = buffers[s.buffer], buffers[m.buffer]
    if shared.space != "shared" or memory.space != "global" or {shared.dtype, memory.dtype} != {m.dtype}:
        raise InternalError(f"kernel {kernel.name}: tensor map {m.name} of {m.dtype} moves boxes between {memory.space} memory "
                            f"{memory.name} of {memory.dtype} and {shared.space} memory {shared.name} of {shared.dtype}")
    if m.swizzle != shared.swizzle:
        raise InternalError(f"kernel {kernel.name}: tensor map {m.name} swizzles {m.swizzle} bytes, buffer {shared.name} {shared.swizzle}")
    if len(s.coordinates) != m.rank:
        raise InternalError(f"kernel {kernel.name}: {len(s.coordinates)} coordinates for tensor map {m.name} of {m.rank} dimensions")
    # Elsewhere the instruction is illegal. Source: seen on an H200 (findings.md, tensor copies).
    if mod(s.coordinates[-1], GRANULE_BYTES // m.dtype.itemsize, {}) != number(0):
        raise InternalError(f"kernel {kernel.name}: a box of tensor map {m.name} begins at element {s.coordinates[-1]} of a row, not "
                            f"provably at a multiple of {GRANULE_BYTES} bytes")
    return m


def receivers(kernel: Kernel, s: TensorCopy) -> tuple[int, ...]:
    """Ranks of the blocks that a multicast box arrives in. Raises: InternalError for ranks that the cluster lacks."""
    ranks = tuple(r for r in range(s.multicast.bit_length()) if s.multicast >> r & 1)
    if ranks and ranks[-1] >= kernel.launch.cluster:
        raise InternalError(f"kernel {kernel.name}: a copy to ranks {ranks} of clusters of {kernel.launch.cluster}")
    return ranks


def barrier_of(kernel: Kernel, s: TensorCopy) -> Affine:
    """The copy's own transaction barrier. Raises: InternalError for a copy that completes on a pipeline's slot."""
    if s.barrier is None:
        raise InternalError(f"kernel {kernel.name}: a tensor copy of map {s.map} outside a pipeline names no barrier")
    return s.barrier


def cuda_parameter(m: TensorMap) -> str:
    """A map as a parameter of a CUDA kernel."""
    return f"const __grid_constant__ tf_tensor_map {identifier(m.name)}"


def cuda_coordinates(coordinates: tuple[Affine, ...], scope: IndexScope) -> str:
    """Coordinates as 32-bit integers."""
    texts = [scope.text(c) if scope.index_bits == 32 else f"(int){scope.operand(c)}" for c in coordinates]
    return "{" + ", ".join(texts) + "}"


def arriving_bytes(kernel: Kernel, s: TensorCopy) -> int:
    """Bytes that reach a block's barrier by one execution of the statement in each block that takes part."""
    return map_of(kernel, s).box_bytes * max(len(receivers(kernel, s)), 1)


def cuda_copy(kernel: Kernel, s: TensorCopy, place: str, scope: IndexScope, slot: str = "") -> str:
    """A call that starts a copy to shared memory at `place`. slot: inside `Produce`, the address of the full barrier of its slot."""
    m = map_of(kernel, s)
    mask = sum(1 << r for r in receivers(kernel, s))
    end = f"{arriving_bytes(kernel, s)}, {cuda_coordinates(s.coordinates, scope)});"
    if s.barrier is None and slot:
        chosen = f"<{mask}, {POLICIES[s.cache]}>" if mask or s.cache else ""
        return f"tf_slot_copy{chosen}({place}, {identifier(m.name)}, {slot}, {end}"
    chosen = f"<{s.team or ONE_TEAM}, {mask}, {POLICIES[s.cache]}>" if mask or s.cache else f"<{s.team}>" if s.team else ""
    barrier = f"tf_arrivals + {scope.operand(barrier_of(kernel, s))}"
    return f"tf_tensor_copy{chosen}({place}, {identifier(m.name)}, {barrier}, {str(s.arrive).lower()}, {end}"


def cuda_store(kernel: Kernel, s: TensorStore, place: str, scope: IndexScope) -> str:
    """A call that starts a store from shared memory at `place`."""
    m = map_of(kernel, s)
    return (f"tf_tensor_store{f'<{s.team}>' if s.team else ''}({identifier(m.name)}, {place}, "
            f"{cuda_coordinates(s.coordinates, scope)});")


def cuda_store_wait(s: TensorStoreWait) -> str:
    """A call that waits for stores."""
    return f"tf_tensor_store_wait<{s.pending}{f', {s.team}' if s.team else ''}>();"


def host_view(m: TensorMap, scope: IndexScope) -> str:
    """The definition of a map's extents, strides and box on the host."""
    def listed(values: tuple[int | Affine, ...]) -> str:
        return "{" + ", ".join(scope.text(v) if isinstance(v, Affine) else f"{v}ll" for v in values) + "}"

    return (f"const tf_tensor_view<{m.rank}> {identifier(m.name)} = {{{listed(m.extents)}, {listed(m.strides)}, {listed(m.box)}, "
            f"{m.first}ll}};")


def host_coordinates(coordinates: tuple[Affine, ...], scope: IndexScope) -> str:
    """Coordinates of a box on the host."""
    return "{" + ", ".join(scope.text(c) for c in coordinates) + "}"


def host_copy(kernel: Kernel, s: TensorCopy, place: str, scope: IndexScope) -> str:
    """A copy to shared memory at `place`, at once."""
    m = map_of(kernel, s)
    return f"tf_tensor_copy({place}, {identifier(m.buffer)}, {identifier(m.name)}, {host_coordinates(s.coordinates, scope)});"


def host_store(kernel: Kernel, s: TensorStore, place: str, scope: IndexScope) -> str:
    """A store from shared memory at `place`, at once."""
    m = map_of(kernel, s)
    return f"tf_tensor_store({identifier(m.buffer)}, {identifier(m.name)}, {place}, {host_coordinates(s.coordinates, scope)});"


def checked_copy(kernel: Kernel, s: TensorCopy, shared: str, own: str, thread: str, site: int, scope: IndexScope) -> str:
    """A checked copy into one block's shared buffer. own: text of whether it is the block that copies."""
    m = map_of(kernel, s)
    sources = max(len(receivers(kernel, s)), 1)
    # Inside a pipeline the ring's slot tells when the copies have arrived.
    barrier = "-1" if s.barrier is None else scope.text(s.barrier)
    facts = (f"{barrier}, {str(s.arrive).lower()}, {sources}, {own}, {box_alignment_bytes(m.swizzle)}, {thread}, "
             f"{site}")
    return (f"tf_tensor_copy_checked({shared}, {scope.text(s.index)}, {identifier(m.buffer)}, {identifier(m.name)}, "
            f"{host_coordinates(s.coordinates, scope)}, {facts});")


def checked_store(kernel: Kernel, s: TensorStore, thread: str, site: int, scope: IndexScope) -> str:
    """A checked store."""
    m = map_of(kernel, s)
    return (f"tf_tensor_store_checked({identifier(m.buffer)}, {identifier(m.name)}, {identifier(s.buffer)}, {scope.text(s.index)}, "
            f"{host_coordinates(s.coordinates, scope)}, {box_alignment_bytes(m.swizzle)}, {thread}, {site});")
