"""Tiled products whose operands the copy engine brings: one producer thread, boxes as wide as a swizzle's rows, multicast in clusters."""
from __future__ import annotations

from dataclasses import dataclass, replace

from tests.unit.printers.pipeline_kernels import THREAD, TiledProduct
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import BF16, F32, I8
from tilefuse.kernel.ir import Barrier, Buffer, For, Kernel, Let, Reg, Stmt, Store
from tilefuse.kernel.pipeline import WARPGROUP, panel_width
from tilefuse.kernel.tensor_map import ProxyFence, TensorCopy, TensorMap, TensorStore, TensorStoreWait

# Bytes of a row of results in shared memory.
RESULT_SWIZZLE = 128


@dataclass(frozen=True)
class CopiedProduct(TiledProduct):
    """As `TiledProduct`, with tensor copies in place of stores; elements beyond `k` arrive as 0.

    cluster: blocks that share rows of `a`, of which each copies a part to all. stored: consumers write their sums to shared memory, and
    tensor stores bring these to `c`.
    """

    producers: int = 1
    cluster: int = 1
    stored: bool = False

    def kernel(self) -> Kernel:
        """The kernel; parameters a, b, c, then the maps of a and b."""
        kernel = super().kernel()
        a = self._map("a", self.block_m // self.cluster, self.m, self.a_turned)
        kernel = replace(kernel, maps=(a, self._map("b", self.block_n, self.n, not self.b_turned)))
        return self._in_clusters(self._with_results(kernel) if self.stored else kernel)

    def _with_results(self, kernel: Kernel) -> Kernel:
        """The kernel with the shared buffer of a tile of results, in panels, and the map that stores a panel."""
        width = panel_width(RESULT_SWIZZLE, 4)
        start = -(-kernel.launch.shared_bytes // 1024) * 1024
        tiles = self.warpgroups if self.in_turn else 1
        tile = Buffer("results", self.sums, tiles * self.block_m * self.block_n, "shared", offset_bytes=start, swizzle=RESULT_SWIZZLE)
        c = TensorMap("c_map", "c", self.sums, (self.m, self.n), (self.n, 1), (self.block_m, width), RESULT_SWIZZLE)
        launch = replace(kernel.launch, shared_bytes=start + 4 * tile.num_elements)
        return replace(kernel, buffers=(*kernel.buffers, tile), maps=(*kernel.maps, c), launch=launch)

    def _store(self, rows: int) -> tuple[Stmt, ...]:
        if not self.stored:
            return super()._store(rows)
        width, lane = panel_width(RESULT_SWIZZLE, 4), THREAD % 32
        a, b, q, panel = axis("ra"), axis("cb"), axis("q"), axis("cp")
        row = THREAD // 128 * rows + 64 * a + 16 * (THREAD % 128 // 32) + lane // 4 + 8 * (q // 2)
        within = 8 * (b % (width // 8)) + 2 * (lane % 4) + q % 2
        value = Reg("sum", self.sums, self.block_n // 2 * a + 4 * b + q)
        first = axis("group") * (self.block_m * self.block_n) if self.in_turn else number(0)
        team = WARPGROUP if self.in_turn else 0
        body: tuple[Stmt, ...] = (Store("results", first + b // (width // 8) * (width * self.block_m) + row * width + within, value),)
        for name, extent in (("q", 4), ("cb", self.block_n // 8), ("ra", rows // 64)):
            body = (For(name, number(0), number(extent), 1, body, unroll=True),)
        corner = (axis("bm") * self.block_m, axis("bn") * self.block_n + panel * width)
        store = TensorStore("c_map", corner, "results", first + panel * (width * self.block_m), team=team)
        # The next tile's results, or the end of the block, come after the copy engine has read these.
        return (*body, ProxyFence(), Barrier(team=team), For("cp", number(0), number(self.block_n // width), 1, (store,)),
                TensorStoreWait(0, team=team), Barrier(team=team))

    def _in_clusters(self, kernel: Kernel) -> Kernel:
        """The kernel with control flow that is uniform over a cluster, where it has any."""
        pipeline = kernel.pipeline
        assert pipeline is not None
        loop = pipeline.body[0]
        if self.cluster == 1:
            return kernel
        assert isinstance(loop, For) and isinstance(loop.step, int) and not self.a_turned
        blocks, tiles = kernel.launch.num_blocks, loop.stop.const
        turns = For("turn", number(0), number(tiles // blocks), 1, (
            Let("tile", axis("turn") * blocks + axis("block"), tiles), *loop.body))
        rings = tuple(replace(r, cluster=True) for r in pipeline.rings)
        return replace(kernel, launch=replace(kernel.launch, cluster=self.cluster), body=(
            *kernel.body[:-1], replace(pipeline, rings=rings, body=(turns,))))

    def _map(self, name: str, rows: int, all_rows: int, across: bool) -> TensorMap:
        """The map of an operand with `all_rows` rows, of which a box takes `rows`."""
        width = panel_width(self.swizzle, self.dtype.itemsize)
        extents = (self.k, all_rows) if across else (all_rows, self.k)
        return TensorMap(f"{name}_map", name, self.dtype, extents, (extents[1], 1), (self.tile_k if across else rows, width), self.swizzle)

    def _fill(self, name: str, rows: int, first_row: Affine, all_rows: int, across: bool) -> tuple[Stmt, ...]:
        width = panel_width(self.swizzle, self.dtype.itemsize)
        lines, panels = (self.tile_k, rows // width) if across else (rows, self.tile_k // width)
        panel, at_k = axis(f"{name}p"), axis("kt") * self.tile_k
        place = axis("slot") * (rows * self.tile_k) + panel * (width * lines)
        mask = 0
        if name == "a" and self.cluster > 1:
            part = rows // self.cluster
            first_row, place, mask = first_row + axis("rank") * part, place + axis("rank") * (part * width), (1 << self.cluster) - 1
        start = (at_k, first_row + panel * width) if across else (first_row, at_k + panel * width)
        return (For(f"{name}p", number(0), number(panels), 1, (TensorCopy(f"{name}_map", start, f"{name}s", place, multicast=mask),)),)


COPIED: dict[str, CopiedProduct] = {
    "f16": CopiedProduct(),
    "f16 odd k": CopiedProduct(k=88, slots=3, held_slots=1),
    "f16 wide": CopiedProduct(n=256, block_n=256, slots=4, swizzle=128, tile_k=64, k=136),
    "f16 two panels": CopiedProduct(slots=2, swizzle=64, tile_k=64, k=200),
    "f16 persistent": CopiedProduct(m=256, n=96, block_n=32, blocks=2, slots=3, held_slots=1, k=80),
    "f16 turned": CopiedProduct(a_turned=True, b_turned=False, swizzle=128, tile_k=32, k=75, held_slots=1, slots=2),
    "bf16 half turned": CopiedProduct(BF16, b_turned=False, n=192, block_n=96, swizzle=32, tile_k=16, k=56, slots=4, held_slots=2),
    "bf16 no swizzle": CopiedProduct(BF16, swizzle=0, tile_k=32),
    "tf32": CopiedProduct(F32, tile_k=32, swizzle=128, k=68, slots=3, held_slots=1),
    "i8": CopiedProduct(I8, tile_k=64, swizzle=64, k=112, slots=3),
    "bias": CopiedProduct(BF16, bias=True, registers=(40, 232)),
    "stored": CopiedProduct(n=64, block_n=64, k=40, stored=True),
    "stored in turns": CopiedProduct(BF16, m=256, n=128, block_n=64, k=72, slots=3, held_slots=1, blocks=2, stored=True),
    "stored in ping-pong": CopiedProduct(m=192, n=64, block_m=64, block_n=32, k=72, slots=3, held_slots=1, blocks=1, stored=True,
                                         in_turn=True),
    "cluster": CopiedProduct(n=256, slots=3, swizzle=128, tile_k=64, k=136, cluster=2),
    "cluster in turns": CopiedProduct(m=256, n=128, block_n=32, slots=3, held_slots=1, swizzle=64, k=72, cluster=2, blocks=4),
}
