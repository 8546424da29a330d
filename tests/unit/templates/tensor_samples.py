"""Kernels written by hand that move a tensor box by box through shared memory, with their numpy meaning."""
from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tilefuse.ir.affine import Affine, axis, floordiv, mod, number
from tilefuse.ir.dtype import F32, DType
from tilefuse.ir.scalar import NUMPY_DTYPES, Bound, call
from tilefuse.kernel.asynchronous import BulkWait
from tilefuse.kernel.ir import Barrier, Buffer, For, If, Kernel, Let, Load, Stmt, Store
from tilefuse.kernel.launch_contract import map_parameters, pointer_parameters
from tilefuse.kernel.tensor_map import ProxyFence, TensorCopy, TensorMap, TensorStore, TensorStoreWait
from tilefuse.kernel.visit import value_identifiers
from tilefuse.printers.cuda import print_cuda
from tilefuse.printers.host import print_host
from tilefuse.runtime.spec import KernelCode, KernelStep, ProgramSpec, Value
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch

THREAD, BLOCK, RANK = axis("thread"), axis("block"), axis("rank")


def padded_strides(extents: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Row-major strides whose rows begin at multiples of 16 bytes. Units: elements."""
    strides, step = [1], -(-extents[-1] * itemsize // 16) * 16 // itemsize
    for extent in extents[-2::-1]:
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


@dataclass(frozen=True)
class BoxCopy:
    """y = x shifted: y[i] = x[i + shift], 0 where that is outside, and twice that for types that kernels compute in.

    Both tensors have gaps between rows, which y keeps.

    shift    coordinates in x of y's element 0 (they may be negative)
    """

    dtype: DType
    extents: tuple[int, ...]
    box: tuple[int, ...]
    shift: tuple[int, ...]
    swizzle: int = 0
    threads: int = 64

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of both tensors. Units: elements."""
        return padded_strides(self.extents, self.dtype.itemsize)

    @property
    def num_elements(self) -> int:
        """Elements of both buffers, the gap behind the last row included."""
        return self.extents[0] * self.strides[0] if len(self.extents) > 1 else self.extents[0]

    @property
    def tiles(self) -> tuple[int, ...]:
        """Boxes along each dimension."""
        return tuple(-(-e // b) for e, b in zip(self.extents, self.box, strict=True))

    def maps(self) -> tuple[TensorMap, TensorMap]:
        """The maps of both tensors."""
        source, target = (TensorMap(f"{b}_map", b, self.dtype, self.extents, self.strides, self.box, self.swizzle) for b in "xy")
        return source, target

    def kernel(self) -> Kernel:
        """One block a box: a copy, each element loaded and stored again by a thread, a store."""
        count = prod(self.box)
        places: list[Affine] = []
        rest = prod(self.tiles)
        for n in self.tiles:
            rest //= n
            places.append(mod(floordiv(BLOCK, rest, {"block": prod(self.tiles)}), n, {"block": prod(self.tiles)}))
        corner = tuple(p * b for p, b in zip(places, self.box, strict=True))
        start = tuple(c + s for c, s in zip(corner, self.shift, strict=True))
        e = axis("e")
        element = Load("tile", self.dtype, e)
        buffers = (Buffer("x", self.dtype, self.num_elements, "global", "in", "x"),
                   Buffer("y", self.dtype, self.num_elements, "global", "inout", "y"),
                   Buffer("tile", self.dtype, count, "shared"))

        def elements(statement: Stmt) -> For:
            return For("e", THREAD, number(count), self.threads, (statement,))

        body: tuple[Stmt, ...] = (
            TensorCopy("x_map", start, "tile", number(0), number(0)),
            BulkWait(number(0), number(0)),
            elements(Store("tile", e, call("add", element, element) if self.dtype.is_arithmetic else element)),
            ProxyFence(), Barrier(),
            TensorStore("y_map", corner, "tile", number(0)),
            TensorStoreWait(0),
        )
        shared_bytes = -(-count * self.dtype.itemsize // 128) * 128
        return Kernel("box_copy", buffers, Launch(prod(self.tiles), self.threads, 1, shared_bytes), body, num_barriers=1, maps=self.maps())

    def program(self, device: DeviceSpec, check: bool = False) -> ProgramSpec:
        """x -> y as a program of one launch for a device; the gaps of y are of no account."""
        kernel = self.kernel()
        kernel = replace(kernel, buffers=tuple(replace(b, role="out") if b.name == "y" else b for b in kernel.buffers))
        return program_of(kernel, device, {"x": (self.extents, self.strides), "y": (self.extents, self.strides)}, check)

    def inputs(self, draws: np.random.Generator) -> dict[str, np.ndarray]:
        """Both buffers: bytes at random, also in the gaps."""
        return {b: draws.integers(0, 100, self.num_elements).astype(NUMPY_DTYPES[self.dtype.name]) for b in "xy"}

    def expected(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """Contents of y."""
        result = arrays["y"].copy()
        factor = 2 if self.dtype.is_arithmetic else 1
        for index in itertools.product(*map(range, self.extents)):
            source = [i + s for i, s in zip(index, self.shift, strict=True)]
            inside = all(0 <= c < e for c, e in zip(source, self.extents, strict=True))
            at = sum(i * s for i, s in zip(index, self.strides, strict=True))
            result[at] = factor * arrays["x"][sum(c * s for c, s in zip(source, self.strides, strict=True))] if inside else 0
        return result


def program_of(kernel: Kernel, device: DeviceSpec, layouts: dict[str, tuple[tuple[int, ...], tuple[int, ...]]],
               check: bool = False) -> ProgramSpec:
    """x -> y by one launch. layouts: extents and strides of both. check: every access on the host is checked."""
    source = print_host(kernel, check) if device.kind == "host" else print_cuda(kernel, device)
    flags = ("-O0",) if device.kind == "host" else ()
    code = KernelCode(kernel.name, kernel.name, source, device.kind, device.arch, kernel.launch, pointer_parameters(kernel),
                      names=value_identifiers(kernel), maps=map_parameters(kernel), flags=flags)
    dtypes = {b.name: b.dtype.name for b in kernel.parameters}
    values = tuple(Value(n, dtypes[n], *layouts[n], role) for n, role in (("x", "input"), ("y", "result")))
    return ProgramSpec(kernel.name, device.name, ("x",), ("y",), values, (code,), (KernelStep(0, ("x", "y")),))


def ring(rows: int = 37, columns: int = 24, tile: int = 8, slots: int = 3, threads: int = 32) -> Kernel:
    """One block: y = x + x through `slots` slots of loads and two of stores, so that every wait is needed."""
    turns = -(-rows // tile)
    t, e = axis("t"), axis("e")
    count = tile * columns
    size = -(-count * 4 // 128) * 128 // 4
    maps = tuple(TensorMap(f"{b}_map", b, F32, (rows, columns), (columns, 1), (tile, columns)) for b in "xy")

    def load(turn: Affine, slot: Affine) -> TensorCopy:
        return TensorCopy("x_map", (turn * tile, number(0)), "queue", slot * size, slot)

    slot, other = mod(t, slots, {"t": turns}), mod(t, 2, {"t": turns})
    element = Load("queue", F32, slot * size + e)
    body: tuple[Stmt, ...] = (
        *(load(number(n), number(n)) for n in range(slots - 1)),
        For("t", number(0), number(turns), 1, (
            If((Bound(t, 0, turns - slots + 1),), (load(t + (slots - 1), mod(t + (slots - 1), slots, {"t": turns})),)),
            BulkWait(slot, mod(floordiv(t, slots, {"t": turns}), 2, {"t": turns})),
            TensorStoreWait(1),
            Barrier(),
            For("e", THREAD, number(count), threads, (Store("results", other * size + e, call("add", element, element)),)),
            ProxyFence(), Barrier(),
            TensorStore("y_map", (t * tile, number(0)), "results", other * size),
        )),
        TensorStoreWait(0),
    )
    buffers = (Buffer("x", F32, rows * columns, "global", "in", "x"), Buffer("y", F32, rows * columns, "global", "out", "y"),
               Buffer("queue", F32, slots * size, "shared"), Buffer("results", F32, 2 * size, "shared", offset_bytes=slots * size * 4))
    return Kernel("tensor_ring", buffers, Launch(1, threads, 1, (slots + 2) * size * 4), body, num_barriers=slots, maps=maps)


def exchange(rows: int = 29, columns: int = 16, threads: int = 32) -> Kernel:
    """Clusters of two blocks: each copies half of a tile to both, and stores twice the whole tile to its own half of y."""
    half = 4
    tiles = -(-rows // (2 * half))
    e = axis("e")
    count = 2 * half * columns
    own = floordiv(BLOCK, 2, {"block": 2 * tiles}) * (2 * half)
    load = TensorMap("x_map", "x", F32, (rows, columns), (columns, 1), (half, columns))
    store = TensorMap("y_map", "y", F32, (2, rows, columns), (rows * columns, columns, 1), (1, 2 * half, columns))
    body: tuple[Stmt, ...] = (
        Let("own", own, 2 * half * tiles),
        Barrier("cluster", memory=False),
        TensorCopy("x_map", (axis("own") + RANK * half, number(0)), "tile", RANK * (half * columns), number(0), multicast=3),
        BulkWait(number(0), number(0)),
        For("e", THREAD, number(count), threads, (Store("tile", e, call("add", Load("tile", F32, e), Load("tile", F32, e))),)),
        ProxyFence(), Barrier(),
        TensorStore("y_map", (RANK, axis("own"), number(0)), "tile", number(0)),
        TensorStoreWait(0),
    )
    buffers = (Buffer("x", F32, rows * columns, "global", "in", "x"), Buffer("y", F32, 2 * rows * columns, "global", "out", "y"),
               Buffer("tile", F32, count, "shared"))
    return Kernel("tensor_exchange", buffers, Launch(2 * tiles, threads, 2, count * 4), body, num_barriers=1, maps=(load, store))
