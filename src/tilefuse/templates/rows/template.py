"""Reductions along memory as a template."""
from __future__ import annotations

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.construction import replace
from tilefuse.domain.access import Access, accesses
from tilefuse.domain.online import with_online_sums
from tilefuse.domain.resolved import Domain
from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Ending, Work
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.target.capabilities import WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.walks import TrafficFigures
from tilefuse.target.launch import Launch
from tilefuse.templates.early import beside_others
from tilefuse.templates.exchanges import exchange_by_lanes
from tilefuse.templates.explained import LevelTile, extents_of, length_of
from tilefuse.templates.levels import LevelTraffic, repeated_bytes, run_of, with_sectors
from tilefuse.templates.neighbours import others_than
from tilefuse.templates.overwrites import has_one_value_a_row, reads_end_at_sums
from tilefuse.templates.request import WalkedPattern, walked_pattern
from tilefuse.templates.rows.choose import choose_rows, choose_shared, shares_vectors
from tilefuse.templates.rows.choose_carried import choose_carried
from tilefuse.templates.rows.compose import compose_rows
from tilefuse.templates.rows.legality import row_refusal
from tilefuse.templates.rows.modes import Held, Rows, Split, Streamed
from tilefuse.templates.rows.neighbours import rows_neighbours
from tilefuse.templates.rows.packing import row_part_refusal, row_thread_loss, rows_with_threads
from tilefuse.templates.rows.shared.prepared import prepared_reads, prepared_values
from tilefuse.templates.rows.shared.queue import slot_bytes, waits_once
from tilefuse.templates.rows.text.notation import RowsNotation
from tilefuse.templates.template import Overlaps, Resources
from tilefuse.templates.walk import WalkTemplate, further_reductions


class RowsTemplate(WalkTemplate[Rows]):
    """Reductions and scans whose elements lie one after another in memory."""

    record = Rows
    notation = RowsNotation()

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """The walk's work, and the exchange of a row's threads where no other row hides it. Of rows beside a shared vector all bytes of the
        queue are in flight, the first of them before the kernel ahead has ended; the vector comes behind that, and each row reads it where
        it was prepared."""
        work, choice, domain = super().work(program, device), self.choice_of(program), program.domain
        fitted = device.fitted.stitch
        if not choice.groups or waits_once(choice):
            work = replace(work, exchange=exchange_by_lanes(domain, choice.threads, fitted))
        if not waits_once(choice):
            return work
        vectors = sum(v.node.type.dtype.itemsize for v in prepared_values(domain).vectors)
        return replace(work, flight_bytes=choice.slots * slot_bytes(choice, domain), fetches_early=True,
                       exchange=replace(work.exchange, wait_cycles=work.exchange.wait_cycles + fitted.global_cycles),
                       shared_bytes=work.shared_bytes + domain.num_kept * domain.num_reduced * vectors)

    def walk_traffic(self, choice: Rows, program: TileProgram, device: DeviceSpec, near_bytes: int) -> LevelTraffic:
        """Each block reads its rows once, and what all rows share again."""
        domain = program.domain
        tiles = -(-domain.num_kept // choice.rows)
        once = prepared_reads(domain) if choice.groups else frozenset()
        moved = sum(_read_again(a, domain, choice, program.launch.num_blocks if a.value in once else tiles, device.fitted.traffic)
                    for a in accesses(domain))
        staged = 2 * program.bytes_read if choice.slots else 0
        lanes = min(choice.threads, WARP) * choice.vector
        down = run_of(choice.kept_order, max(WARP // choice.threads, 1), domain)
        # A thread finds the start of a row's next vectors in the first-level cache, from the last ones.
        whole = run_of(choice.reduced_order, domain.num_reduced, domain)
        return with_sectors(LevelTraffic(max(moved, program.bytes_moved), staged), domain, device.fitted.traffic,
                            run_of(choice.reduced_order, lanes, domain) + down, whole + down, near_bytes)

    def endings(self, choice: Rows, program: TileProgram) -> tuple[Ending, ...]:
        """Rows in turns end at different times; the last block adds up split rows."""
        if choice.groups:
            return (Ending("persistent", 0),)
        return (Ending("last block", program.launch.num_blocks),) if choice.split > 1 else ()

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """The vectors of a row that a thread holds, and the slots of a queue."""
        c, domain = self.choice_of(program), program.domain
        least = device.fitted.packed.reduction_registers
        shared_bytes = 1024
        if waits_once(c):
            vectors = sum(v.node.type.dtype.itemsize for v in prepared_values(domain).vectors)
            shared_bytes += c.slots * slot_bytes(c, domain) + domain.num_reduced * vectors
        values = c.vector * (c.chunks if c.in_registers else c.batch) * len(program.graph.inputs)
        return Resources(least + values + c.lanes * further_reductions(domain, device), shared_bytes)

    def overlaps(self, choice: Rows) -> Overlaps:
        """Blocks of one row or a few walk memory by their numbers; rows in turns and clusters have an order of their own."""
        return Overlaps(walks_memory=True, turns=not choice.groups and choice.cluster == 1,
                        waits_itself=isinstance(choice.mode, Held | Streamed) and choice.cluster == 1 or waits_once(choice),
                        fetches_settled=choice.slots > 0 and choice.cluster == 1,
                        one_wave=waits_once(choice), prefetches=waits_once(choice))

    def write(self, writer: KernelWriter, choice: Rows) -> None:
        """The walks over a row, by its mode."""
        compose_rows(writer, choice)

    def refusal(self, choice: Rows, domain: Domain, device: DeviceSpec) -> Rejected | None:
        """The rules of the choice's mode."""
        return row_refusal(choice, domain, device)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[Rows, ...]:
        """Other threads, rows a block, clusters, splits and modes."""
        base = self.choice_of(program)
        return others_than(base, rows_neighbours(base, program.domain, device))

    # -- from a pattern to a program -------------------------------------------------------------------------------------------

    priority = 1

    def choose(self, pattern: WalkedPattern) -> Rows | Rejected:
        """Rows of reduced axes, or sums carried from row to row; kept axes along memory are columns, but for scans and a single row."""
        domain, device = pattern.domain, pattern.device
        if not pattern.exchanges_values:
            return Rejected(Reason.OTHER_TEMPLATE, "threads share no results of reductions")
        if pattern.carries_sums:
            return choose_carried(domain, device, pattern.accesses)
        if pattern.sums_columns:
            return Rejected(Reason.OTHER_TEMPLATE, "kept axes run along memory")
        choice = choose_rows(domain, device, pattern.accesses)
        queued = None if pattern.is_part else choose_shared(domain, device, pattern.accesses, pattern.fetches_early,
                                                            device.num_multiprocessors)
        if queued is None or isinstance(choice, Rejected):
            return choice if queued is None else queued
        return min((choice, queued), key=lambda c: self._price_us(self._program(pattern, c, domain), device))

    def _price_us(self, program: TileProgram, device: DeviceSpec) -> float:
        """Time of the kernel as one of many. Units: microseconds. Source: `domain/roofline.py`."""
        return price_work(beside_others(self.work(program, device), self.overlaps(self.choice_of(program)), program, device), device).us

    def launch(self, choice: Rows, domain: Domain) -> Launch:
        """Blocks (or clusters) for all rows, or as many as walk them in turns."""
        groups = choice.groups or -(-domain.num_kept // choice.rows)
        return Launch(groups * choice.cluster * choice.split, choice.threads * choice.rows, choice.cluster)

    def in_one_pass(self, domain: Domain) -> Domain:
        """Maximum and sum of exponentials in one pass over a row."""
        return with_online_sums(domain)

    def keeps_elements(self, choice: Rows) -> bool:
        """Whether registers or a queue hold the row."""
        return choice.in_registers or choice.slots > 0

    def sums_vectors(self, choice: Rows) -> bool:
        """Whether one thread has a row and reads it in vectors."""
        return choice.threads == 1 < choice.vector

    # -- updates in place, explanations, parts of packed kernels ---------------------------------------------------------------

    def loads_where_it_stores(self, program: TileProgram, value: str) -> bool:
        """Whether one thread stores the value of each row: of the last block to arrive, where several blocks share a row.

        Rows in turns load operands of a later row while they work on this one.
        """
        return isinstance(self.choice_of(program).mode, Held | Streamed | Split) and has_one_value_a_row(program, value)

    def reads_end_before_writes(self, program: TileProgram, value: str, target: str) -> bool:
        """Whether the threads of a row have read `target` when they meet at the row's sum."""
        choice = self.choice_of(program)
        meet = choice.split > 1 or choice.threads > WARP or choice.threads == 1
        return (meet and self.loads_where_it_stores(program, value)
                and reads_end_at_sums(program.domain, value, target, choice.rows, choice.in_registers))

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """Rows of a block, and the shares of a row of its threads."""
        c, domain = self.choice_of(program), program.domain
        kept, reduced = "*".join(c.kept_order) or "row", "*".join(c.reduced_order) or "element"
        share = -(-length_of(domain, c.reduced_order) // (c.cluster * c.split))
        rows = c.carried_rows or c.rows
        rows_of_warp = min(max(WARP // c.threads, 1), rows)
        cluster = (LevelTile("cluster", ((kept, rows), (reduced, share * c.cluster))),) if c.cluster > 1 else ()
        return (LevelTile("grid", extents_of(domain, (*c.kept_order, *c.reduced_order))), *cluster,
                LevelTile("block", ((kept, rows), (reduced, share))),
                LevelTile("warp", ((kept, rows_of_warp), (reduced, min(share, min(c.threads, WARP) * c.vector * c.chunks)))),
                LevelTile("thread", ((kept, 1), (reduced, min(share, c.vector * c.chunks)))))

    def part_refusal(self, program: TileProgram) -> Rejected | None:
        """Clusters and persistent grids need a launch of their own."""
        return row_part_refusal(self.choice_of(program), program)

    def with_threads(self, program: TileProgram, threads: int, device: DeviceSpec) -> Rows | None:
        """More rows a block, or more threads a row."""
        return rows_with_threads(self.choice_of(program), program.domain, threads, device)

    def in_turns(self, program: TileProgram, blocks: int, fetches_early: bool, device: DeviceSpec) -> TileProgram | None:
        """Queues of rows beside vectors that all rows share."""
        if not shares_vectors(program.domain, device, fetches_early):
            return None
        pattern = walked_pattern(program.graph, program.layouts, device)
        choice = None if isinstance(pattern, Rejected) else choose_shared(pattern.domain, device, pattern.accesses, fetches_early, blocks)
        if isinstance(pattern, Rejected) or choice is None or not waits_once(choice):
            return None
        queued = self.program_by(pattern, choice)
        return None if isinstance(queued, Rejected) else queued

    def turns_bytes(self, program: TileProgram) -> int:
        """All rows of a block, those beyond the last one too."""
        choice, domain = self.choice_of(program), program.domain
        turns = -(-domain.num_kept // (choice.groups * choice.rows)) if waits_once(choice) else 0
        return turns * slot_bytes(choice, domain)

    def thread_loss(self, choice: Rows, changed: Rows, device: DeviceSpec) -> float:
        """Less where only the rows a block change."""
        return row_thread_loss(choice, changed, device.fitted.packed)


def _read_again(access: Access, domain: Domain, choice: Rows, tiles: int, fitted: TrafficFigures) -> int:
    """Bytes of an access of a row kernel that come from L2."""
    size = access.elements * access.itemsize
    return size + int((repeated_bytes(access, choice.kept_order, choice.rows, tiles, domain) - size) * fitted.again_share)
