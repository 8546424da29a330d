"""The template of register tiles: maps that choose between formulas by position, as transforms of tiles do.

    V[p, q, t] = sum_ij B[i, p] B[j, q] x[t, i, j], every (p, q) a formula of its own       one thread reads 36 elements and writes 36

A flat walk computes all formulas at each element and keeps one of them, and shares nothing between elements.
"""
from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import InternalError
from tilefuse.domain.access import accesses, traffic
from tilefuse.domain.resolved import Domain, Touch, resolved_walk
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Ending, Work
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.explained import LevelTile, extents_of
from tilefuse.templates.levels import LevelTraffic, run_of, with_sectors
from tilefuse.templates.neighbours import others_than
from tilefuse.templates.request import WalkedPattern
from tilefuse.templates.template import Overlaps, Resources
from tilefuse.templates.tiles.choose import choose_tile, num_tiles
from tilefuse.templates.tiles.compose import compose_tile
from tilefuse.templates.tiles.lines import line_bytes
from tilefuse.templates.tiles.notation import RegisterTileNotation
from tilefuse.templates.tiles.record import RegisterTile
from tilefuse.templates.tiles.stores import stored_runs
from tilefuse.templates.tiles.unrolled import UnrolledTile, unrolled_tile
from tilefuse.templates.walk import WalkTemplate, elementwise_thread_loss, widest_itemsize
from tilefuse.templates.walk_legality import first_refusal


class RegisterTileTemplate(WalkTemplate[RegisterTile]):
    """Kernels whose threads compute a tile of elements each."""

    record = RegisterTile
    notation = RegisterTileNotation()
    # Before flat walks, which compute every formula at every element. Their price would not show all of it: of several reads of one value
    # it counts the bytes of one.
    priority = 0

    # -- from a pattern to a program -------------------------------------------------------------------------------------------

    def choose(self, pattern: WalkedPattern) -> RegisterTile | Rejected:
        """The tile of all places by which formulas are chosen."""
        return choose_tile(pattern.domain, pattern.device, pattern.accesses)

    def _program(self, pattern: WalkedPattern, choice: RegisterTile, domain: Domain) -> TileProgram:
        """As of every walk, with the bytes and the operations of tiles: a thread reads different elements of one value, and computes equal
        parts once."""
        program = super()._program(pattern, choice, domain)
        tile = unrolled_tile(domain, choice.sides).domain
        sizes = {v: t.num_bytes for v, t in pattern.graph.type_by_name.items()}
        read: dict[str, int] = {}
        for access in accesses(tile):
            if not access.written:
                read[access.value] = min(read.get(access.value, 0) + access.elements * access.itemsize, sizes[access.value])
        return replace(program, bytes_read=sum(read.values()), flops=traffic(tile, sizes, pattern.device.fitted.flat).flops)

    def launch(self, choice: RegisterTile, domain: Domain) -> Launch:
        """A thread a tile."""
        return Launch(-(-num_tiles(domain, choice) // choice.threads), choice.threads)

    def in_one_pass(self, domain: Domain) -> Domain:
        """The domain itself: a map has no reductions to join."""
        return domain

    def keeps_elements(self, choice: RegisterTile) -> bool:
        """False: nothing is walked twice."""
        return False

    def sums_vectors(self, choice: RegisterTile) -> bool:
        """False: nothing is summed."""
        return False

    def refusal(self, choice: RegisterTile, domain: Domain, device: DeviceSpec) -> Rejected | None:
        """Blocks that no device starts."""
        most = device.max_threads_per_block
        return first_refusal((1 <= choice.threads <= most, f"{choice.threads} threads a block, and {device.name} has at most {most}",
                              "a smaller block"))

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[RegisterTile, ...]:
        """Other numbers of threads a block."""
        choice = self.choice_of(program)
        return others_than(choice, (replace(choice, threads=n) for n in (64, 128, 256, 512) if device.kind != "host"))

    # -- from a program to a kernel --------------------------------------------------------------------------------------------

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The kernel of the domain of tiles."""
        choice, tile = self.choice_of(program), self.tile_of(program)
        writer = KernelWriter(replace(program, internal=tile.domain), device, taken)
        writer.settled = settled
        for value in _values_read_again(tile, program):
            writer.emitter.cache[value] = ""
        compose_tile(writer, choice, tile, num_tiles(program.domain, choice))
        return writer.finish()

    def write(self, writer: KernelWriter, choice: RegisterTile) -> None:
        """Raises: InternalError, because a tile has a domain of its own (`compose`)."""
        raise InternalError("a register tile is written over its domain of tiles")

    def tile_of(self, program: TileProgram) -> UnrolledTile:
        """The program's tile, written out."""
        return unrolled_tile(program.domain, self.choice_of(program).sides)

    # -- work, resources, overlap ----------------------------------------------------------------------------------------------

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """As of every walk, and the operations of a thread between its loads and its stores."""
        num_threads = max(num_tiles(program.domain, self.choice_of(program)), 1)
        return replace(super().work(program, device), item_operations=program.flops / num_threads)

    def walk_traffic(self, choice: RegisterTile, program: TileProgram, device: DeviceSpec, near_bytes: int) -> LevelTraffic:
        """Every element that a tile needs once a tile: tiles share elements through the caches. Stores that are no vectors touch sectors
        in parts where elements of neighbouring tiles do not lie side by side. The first-level cache, which has shared memory's rate, gives
        a warp one line at a time, however little of it the warp's tiles read."""
        tile = self.tile_of(program)
        read = sum(a.elements * a.itemsize for a in accesses(tile.domain) if not a.written)
        single = [s for run in stored_runs(tile, device) if not run.is_vector for s in run.stores]
        stored = replace(tile.domain, outputs=[(s.value, s.key, s.offset) for s in single])
        moved = LevelTraffic(max(read + program.bytes_written, program.bytes_moved), line_bytes(tile.domain, choice.order))
        return with_sectors(moved, stored, device.fitted.traffic, run_of(choice.order, 32, tile.domain), [])

    def endings(self, choice: RegisterTile, program: TileProgram) -> tuple[Ending, ...]:
        """None: no thread waits for another."""
        return ()

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """The elements that a tile reads and those that it computes, which are partly the same registers."""
        tile = self.tile_of(program)
        reads = sum(isinstance(e, Touch) for i in tile.domain.instances for e in resolved_walk(i.body))
        elements = max(reads, len(tile.stores)) * max(widest_itemsize(program) // 4, 1)
        return Resources(device.fitted.packed.flat_registers + elements, 0)

    def overlaps(self, choice: RegisterTile) -> Overlaps:
        """Its blocks walk memory by their numbers alone."""
        return Overlaps(walks_memory=True, turns=False, waits_itself=True, fetches_settled=False)

    # -- updates in place, explanations, parts of packed kernels ---------------------------------------------------------------

    def loads_where_it_stores(self, program: TileProgram, value: str) -> bool:
        """Each thread loads the operands of its elements before it stores these; elements of other tiles may need the same."""
        return False

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """Tiles in the order of the walk."""
        choice = self.choice_of(program)
        return (LevelTile("grid", extents_of(program.domain, program.domain.kept + program.domain.reduced)),
                LevelTile("block", (("tile", launch.num_threads),)), LevelTile("thread", choice.sides))

    def part_refusal(self, program: TileProgram) -> Rejected | None:
        """A tile's registers would bound those of all parts."""
        return Rejected(Reason.OTHER_TEMPLATE, "register tiles have kernels of their own")

    def with_threads(self, program: TileProgram, threads: int, device: DeviceSpec) -> RegisterTile | None:
        """Any number of threads."""
        return replace(self.choice_of(program), threads=threads)

    def thread_loss(self, choice: RegisterTile, changed: RegisterTile, device: DeviceSpec) -> float:
        """As of elementwise walks."""
        return elementwise_thread_loss(choice, changed, device)


def _values_read_again(tile: UnrolledTile, program: TileProgram) -> list[str]:
    """Inputs of which tiles read elements that other tiles read as well: the caches must keep them."""
    read: dict[str, int] = {}
    for access in accesses(tile.domain):
        if not access.written:
            read[access.value] = read.get(access.value, 0) + access.elements
    return [v.name for v in program.graph.inputs if read.get(v.name, 0) > v.type.num_elements]
