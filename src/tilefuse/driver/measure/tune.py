"""Tuning: kernels of a plan are run with templates near the chosen ones, and the fastest is stored for the device and shape.

The slowest kernels come first and each gets its share of the time. All timings are in the device's records, so an interrupted tuning
resumes. A candidate that does not compile, does not run or returns other results is counted with its reason.
"""
from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tilefuse.base import trace
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.measure.tuning_results import Tuned, TuningResults
from tilefuse.plan.pattern import Plan
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.plan.price.measure import MeasuredCost, Measurer, Records, Timing, is_faster
from tilefuse.plan.price.tuned import Form, canonical, form_of
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.neighbours import neighbours, program_with
from tilefuse.templates.notation import parse_template

# Candidates compiled at the same time before they are timed one after the other.
BATCH = 8

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of tuning for one kernel. `uses`: how often the plan launches it; `known`: it was tuned before."""

    kernel: str
    uses: int
    tuned: Tuned
    known: bool


class Tuner:
    """Tunes the kernels of plans for one device. `clock` in seconds; `tell(kernel, tried, candidates)` receives the progress."""

    def __init__(self, device: DeviceSpec, measurer: Measurer, records: Records, results: TuningResults, *, tell: Tell | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._device, self._measurer, self._results, self._clock = device, measurer, results, clock
        self._model = MeasuredCost(AnalyticCost(device), records)
        self._tell = tell or (lambda *_: None)
        # Kernels of the last call without an outcome, with reasons.
        self.untuned: list[tuple[str, str]] = []

    def tune(self, plan: Plan, seconds: float, again: bool = False) -> Iterator[Outcome]:
        """Tunes the distinct kernels of a plan, the slowest first, and yields each one's outcome when it is stored.

        Units: `seconds` for all of them; a kernel that is completely tuned costs none, except with `again`. Kernels without an outcome are
        in `untuned` with their reasons.
        """
        self.untuned = []
        deadline = self._clock() + seconds
        uses = Counter(id(k.program) for k in plan.kernels)
        cost_us = {id(k.program): k.cost.us * uses[id(k.program)] for k in plan.kernels}
        waiting = sorted(plan.programs, key=lambda p: (-cost_us[id(p)], p.name))
        while waiting:
            program = waiting.pop(0)
            form = form_of(program)
            known = self._results.find(form.key)
            if known is not None and known.done and not again:
                yield Outcome(program.name, uses[id(program)], known, True)
                continue
            left_us = cost_us[id(program)] + sum(cost_us[id(p)] for p in waiting)
            now = self._clock()
            share = max(deadline - now, 0.0) * (cost_us[id(program)] / left_us if left_us else 1.0)
            outcome = self._tune_one(program, form, now + share)
            if isinstance(outcome, str):
                self.untuned.append((program.name, outcome))
            else:
                yield Outcome(program.name, uses[id(program)], outcome, False)

    def _tune_one(self, program: TileProgram, form: Form, until: float) -> Tuned | str:
        """The best template of one kernel, stored; or the reason why there is none."""
        candidates, refused = self._candidates(program)
        if not candidates:
            return f"{program.template} kernels have no parameters to vary"
        if self._clock() >= until:
            return "no time was left for it"
        # Always run, even if its time is known: its results are the reference for candidates.
        base = self._measurer.measure(candidates[0])
        if isinstance(base, Rejected):
            trace.current().event("kernel cannot be tuned", "plan", kernel=program.name, why=str(base))
            return f"it does not run itself: {base}"
        best, best_program, trials = base, candidates[0], 1
        complete = False
        try:
            for start in range(1, len(candidates), BATCH):
                batch = candidates[start:start + BATCH]
                self._measurer.prepare([c for c in batch if not self._model.knows(c)])
                for candidate in batch:
                    self._tell(program.name, trials + sum(refused.values()), len(candidates))
                    timing = self._model.timing(candidate, self._measurer)
                    if isinstance(timing, Rejected):
                        refused[timing.reason.value] += 1
                        trace.current().line("rejected", f"{program.name} {candidate.notation}: {timing}")
                        continue
                    trials += 1
                    if timing.median_us < best.median_us and is_faster(timing, base):
                        best, best_program = timing, candidate
                if self._clock() >= until:
                    break
            complete = start + BATCH >= len(candidates) if len(candidates) > 1 else True
        finally:
            # After an interrupt, all results so far are stored.
            stored = self._stored(program, form, base, best, best_program, trials, complete, refused)
        return stored

    def _stored(self, program: TileProgram, form: Form, base: Timing, best: Timing, best_program: TileProgram, trials: int, complete: bool,
                refused: Counter[str]) -> Tuned:
        template = parse_template(best_program.notation)
        tuned = Tuned(form.key, program.name, canonical(template, form), best.median_us, base.median_us, trials, complete, dict(refused))
        self._results.keep(tuned)
        return tuned

    def _candidates(self, program: TileProgram) -> tuple[list[TileProgram], Counter[str]]:
        """The program's neighbours, its own choice first and then the most promising by prediction, and those without a schedule."""
        programs: list[TileProgram] = []
        refused: Counter[str] = Counter()
        for choice in neighbours(program, self._device):
            neighbour = program_with(program, choice, self._device)
            if isinstance(neighbour, Rejected):
                refused[neighbour.reason.value] += 1
            elif neighbour.launch.num_threads > self._device.max_threads_per_block:
                refused[Reason.ILLEGAL_TEMPLATE.value] += 1
            else:
                programs.append(replace(neighbour, name=program.name))
        predicted = AnalyticCost(self._device)
        return [*programs[:1], *sorted(programs[1:], key=lambda p: predicted.cost(p).us)], refused


def speed_up(outcomes: Sequence[Outcome]) -> float:
    """Time of all kernels before tuning over that after it; 1 for none."""
    before = sum(o.tuned.base_us * o.uses for o in outcomes)
    after = sum(o.tuned.us * o.uses for o in outcomes)
    return before / after if after else 1.0
