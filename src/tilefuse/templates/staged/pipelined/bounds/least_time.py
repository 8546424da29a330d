"""Lower bounds on the prices of a product's tiles, from which the search leaves tiles out before they are placed.

Facts of the product are worked out once: there are hundreds of tiles for each of the many patterns that hold a product.
"""
from __future__ import annotations

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.roofline import Parts, clock_hz, launches_us, powered_us
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.pipelined.energy import energy_pj
from tilefuse.templates.staged.pipelined.form import ProductForm
from tilefuse.templates.staged.pipelined.plan import fillings_of_part, operand_tile, products_together, shared_room, why_no_copies
from tilefuse.templates.staged.pipelined.product_work import meetings_of, multiplied_columns, rate_of, slot_port_cycles
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.swapped.stream_work import IN_USE, Weights, step_cycles_of, stream_us
from tilefuse.templates.staged.pipelined.thread_work import loading_cycles


class LeastTimes:
    """Bounds for one product. flops: operations on one element of the results. boundary: the price of the boundary values.

    Source: the cycles of `with_work`, of which the bounds leave out most waits, and stores from registers.
    """

    def __init__(self, form: ProductForm, flops: int, boundary: Parts, device: DeviceSpec) -> None:
        fitted = device.fitted.pipelined
        self._form, self._flops, self._boundary, self._device = form, flops, boundary, device
        self._boundary_us, self._exchanges = boundary.us, len(form.reduced.stages)
        self._leads, self._rows, self._columns, self._products = form.num_leads, form.rows, form.columns, len(form.products)
        self._inner, self._rate, self._clock_hz = form.walked_inner, rate_of(form, device), clock_hz(device)
        self._left_bytes, self._right_bytes = form.left.port_bytes, sum(p.right.port_bytes for p in form.products)
        self._us_of_cycle = fitted.overlap.counted_share / self._clock_hz * 1e6
        self._launch_us = launches_us(1, device)
        stores = min(fitted.staged_instructions, fitted.stored_instructions) * len(form.tile_results)
        self._instructions = flops + stores
        self._weights: Weights | None = None
        # Tiles of unlike depths and parts share these.
        self._slot_by_tile: dict[tuple[int, int, int], tuple[int, float]] = {}
        self._room_by_resident: dict[int, int] = {}
        self._together_by_tile: dict[tuple[int, int, bool], int] = {}
        self._energy_by_tile: dict[tuple[int, int, int, float, int], float] = {}
        self._meeting_by_parts: dict[tuple[int, int, int, int], float] = {}

    def of(self, choice: Pipelined) -> tuple[float, float, float]:
        """Bounds on the price of a choice with any number of slots, on the time of its blocks, and on that of their products alone.

        Units: microseconds.
        """
        fitted, device, rows, split = self._device.fitted.pipelined, self._device, choice.rows, choice.split
        items = self._leads * -(-self._rows // rows) * -(-self._columns // choice.columns) * split
        turns, fillings = -(-items // choice.blocks), fillings_of_part(self._inner, choice)
        together = self._together(choice) if self._products > 1 else 1
        multiply_cycles = rows * multiplied_columns(self._form, choice, together, device) * choice.depth / self._rate
        num_bytes, filling = self._slot(choice)
        step_cycles = self._step_cycles(choice, min(choice.blocks, items * choice.cluster))
        main = fillings * max(multiply_cycles, step_cycles, self._copy_cycles(choice, num_bytes))
        columns = choice.columns if split == 1 else choice.result_columns
        ending = fitted.tile_cycles + rows * columns * self._result_cycles(choice)
        if self._exchanges and choice.cluster_columns > 1:
            ending += self._exchanges * (fitted.scattered_exchange_cycles if choice.scattered else fitted.exchange_cycles)
        meetings = self._meeting_cycles(choice) if split > 1 else 0.0
        behind = meetings + ending if meetings and turns == 1 else 0.0
        beside = 0.0 if behind else meetings + ending
        if choice.pingpong:
            # Warpgroups that take turns: the results of one beside the main loop of the other, and those of the last tile behind.
            turn = max(main, (fillings - 1 / turns) * filling) + fitted.turn_cycles
            cycles = turns * max(turn, (turn + beside) / 2) + beside
        else:
            # The first slot of a block is filled while it starts.
            cycles = max(turns * main, turns * fillings * filling - min(filling, fitted.load_cycles)) + turns * beside
        stream = self._stream_us(choice) * self._clock_hz / 1e6
        blocks_us = self._us_of_cycle * (max(cycles, stream) + fitted.fill_cycles)
        multiplying = turns * fillings * max(multiply_cycles, fitted.step_cycles)
        computed = powered_us(blocks_us, self._energy_pj(choice, together), device) + self._launch_us
        return (max(self._boundary_us, computed) + behind / self._clock_hz * 1e6, blocks_us,
                self._us_of_cycle * max(multiplying, stream))

    def _step_cycles(self, choice: Pipelined, blocks: int) -> float:
        """Cycles of one filling beside its products: steps of consumers, or the port to L2."""
        if choice.swapped:
            # Warpgroups that expand elements share the steps of a swapped product.
            return 0.0
        step = step_cycles_of(choice, self._device)
        rows, columns = choice.rows * self._left_bytes * choice.depth, choice.columns * self._right_bytes * choice.depth
        # Blocks of a cluster bring parts of a left tile to each other.
        rows /= choice.cluster if choice.multicast else 1
        return max(step, slot_port_cycles(choice, blocks, rows, columns, self._device))

    def _copy_cycles(self, choice: Pipelined, slot_bytes: int) -> float:
        """Latency of a filling's copies where as many slots are ahead of the products as shared memory holds without results; 0 where none
        is."""
        most = SEARCH.pipelines.swapped_slots if choice.swapped else SEARCH.pipelines.slots
        if choice.resident not in self._room_by_resident:
            self._room_by_resident[choice.resident] = shared_room(choice, self._device)
        ahead = min(self._room_by_resident[choice.resident] // slot_bytes, most) - IN_USE
        return self._device.fitted.pipelined.copy_cycles / ahead if ahead > 0 else 0.0

    def _together(self, choice: Pipelined) -> int:
        """As `products_together`."""
        key = choice.columns, choice.depth, choice.split > 1
        together = self._together_by_tile.get(key)
        if together is None:
            together = self._together_by_tile[key] = products_together(self._form, choice)
        return together

    def _result_cycles(self, choice: Pipelined) -> float:
        """Cycles of the instructions of an element's results, whichever way these are stored."""
        return self._instructions / (self._device.fitted.pipelined.issued_per_cycle * (choice.rows // choice.warpgroup_rows))

    def _stream_us(self, choice: Pipelined) -> float:
        """As `stream_us`, which is 0 for most tiles."""
        several = self._columns > choice.columns if choice.swapped else self._rows > choice.rows
        if several:
            return 0.0
        if self._weights is None:
            self._weights = Weights.of(self._form, self._device)
        return stream_us(self._form, choice, self._device, self._weights)

    def _energy_pj(self, choice: Pipelined, together: int) -> float:
        """As `energy_pj`. Units: picojoules."""
        key = choice.rows, choice.columns, choice.band, choice.blocks / choice.split, together
        energy = self._energy_by_tile.get(key)
        if energy is None:
            energy = self._energy_by_tile[key] = energy_pj(self._form, choice, self._boundary.global_bytes, self._flops, self._device,
                                                               together)
        return energy

    def _meeting_cycles(self, choice: Pipelined) -> float:
        """Cycles of a block that finishes a tile, in which the sums of its parts meet."""
        key = choice.rows, choice.columns, choice.cluster, choice.split
        cycles = self._meeting_by_parts.get(key)
        if cycles is None:
            meetings = meetings_of(choice, self._products, self._device)
            cycles = self._meeting_by_parts[key] = float(sum(m.alone_cycles for m in meetings))
        return cycles

    def slot_bytes(self, choice: Pipelined) -> int:
        """Shared memory of one slot."""
        return self._slot(choice)[0]

    def _slot(self, choice: Pipelined) -> tuple[int, float]:
        """Bytes of a slot, and cycles in which producing threads fill it, as far as no tensor copies bring its tiles."""
        key = choice.rows, choice.columns, choice.depth
        if key not in self._slot_by_tile:
            form, num_bytes, cycles = self._form, 0, 0.0
            for n, operand in enumerate(form.operands):
                lines = choice.rows if operand.line == form.row_axis else choice.columns
                tile = operand_tile(form, f"right{n - 1}" if n else "left", operand, lines, choice.depth)
                num_bytes += tile.slot_bytes
                if why_no_copies(form, tile):
                    cycles += loading_cycles(form, tile, self._device)
            self._slot_by_tile[key] = num_bytes, cycles
        return self._slot_by_tile[key]
