"""Tuning: kernels of a plan are run with templates near the chosen ones, and the fastest is stored for the device and shape.

The slowest kernels come first and each gets its share of the time. All timings are in the device's records, so an interrupted tuning
resumes. A candidate that does not compile, does not run or returns other results is counted with its reason.

Before the kernels, the library's calls of products are timed, so that later compiles choose between kernel and call by measurements:

    plan by predictions -> calls timed, kernels tuned -> plan by these times -> its new kernels tuned -> ...
"""
from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilefuse.base import trace
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.measure.product_calls import ProductCalls
from tilefuse.driver.measure.tuning_results import Tuned, TunedCall, TuningResults
from tilefuse.ir.graph import Node
from tilefuse.plan.pattern import Plan, is_library
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.plan.price.measure import MeasuredCost, Measurer, Records, Timing, is_complex, is_faster
from tilefuse.plan.price.tuned import Form, canonical, form_of
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.neighbours import neighbours, program_with
from tilefuse.templates.notation import parse_template

# Candidates compiled at the same time before they are timed one after the other.
BATCH = 8
# Most of the time of a tuning that goes to library calls: they need no compiler, and few templates are missed for them.
CALLS_SHARE = 0.25
# Plans of one tuning: times of calls and kernels change the plan, and the new plan has kernels without a time.
MAX_PLANS = 3

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of tuning for one kernel. `uses`: how often the plan launches it; `known`: it was tuned before."""

    kernel: str
    uses: int
    tuned: Tuned
    known: bool


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The time of one product's library call. products: nodes of the plan that are this call; known: it was timed before."""

    products: tuple[str, ...]
    timed: TunedCall
    known: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """A tuned kernel beside the calls of the products that it holds. Units: microseconds.

    calls_us: measured times of the calls. others_us: predicted time of its other nodes, each in a kernel of its own: where they share
    kernels they take less.
    """

    kernel: str
    products: tuple[str, ...]
    kernel_us: float
    calls_us: float
    others_us: float

    @property
    def is_kernel_faster(self) -> bool:
        """Whether the kernel takes less than the calls and the kernels of the other nodes."""
        return self.kernel_us < self.calls_us + self.others_us


class Tuner:
    """Tunes the kernels of plans for one device. `clock` in seconds; `tell(kernel, tried, candidates)` receives the progress."""

    def __init__(self, device: DeviceSpec, measurer: Measurer, records: Records, results: TuningResults, *, tell: Tell | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._device, self._measurer, self._results, self._clock = device, measurer, results, clock
        self._model = MeasuredCost(AnalyticCost(device), records)
        self._tell = tell or (lambda *_: None)
        # Kernels and calls without an outcome, with reasons.
        self.untuned: list[tuple[str, str]] = []
        self.calls: list[CallOutcome] = []
        self.comparisons: list[Comparison] = []

    def run(self, plan_with: Callable[[bool], Plan], seconds: float, again: bool = False) -> Iterator[Outcome]:
        """Times the calls of a plan's products, tunes its kernels, and does the same for the plan that these times lead to.

        plan_with: the plan without tuning results (False), and with those on disk (True). Each kernel's outcome is yielded once; `calls`
        and `comparisons` tell about products. Units: `seconds` for everything but planning.
        """
        self.calls, self.comparisons, tuned = [], [], set[str]()
        spent, untuned = 0.0, list[tuple[str, str]]()
        for number in range(MAX_PLANS):
            plan = plan_with(number > 0)
            if number and all(form_of(p).key in tuned for p in plan.programs):
                break
            started = self._clock()
            self.time_calls(plan, (seconds - spent) * CALLS_SHARE, again)
            untuned += self.untuned
            outcomes: dict[str, Outcome] = {}
            for outcome in self.tune(plan, seconds - spent - (self._clock() - started), again, tuned):
                outcomes[outcome.kernel] = outcome
                yield outcome
            tuned.update(form_of(p).key for p in plan.programs)
            untuned += self.untuned
            self.comparisons += self._compared(plan, outcomes)
            spent += self._clock() - started
            if not self.calls or spent >= seconds:
                break
        self.untuned = untuned

    def time_calls(self, plan: Plan, seconds: float, again: bool = False) -> None:
        """Times the library's calls for products of a plan, in `seconds`: those that kernels hold, and those that a kernel could hold.

        Products of patterns whose prediction is uncertain (`is_complex`) come first. Each distinct call is timed once, and its time is
        stored; `calls` has the outcomes, `untuned` the calls without one.
        """
        self.untuned = []
        deadline = self._clock() + seconds
        done = {o.timed.key for o in self.calls}
        calls = ProductCalls.of(plan, self._device, self._results)
        nodes_by_key: dict[str, list[Node]] = {}
        for node in _choices(plan, calls):
            nodes_by_key.setdefault(calls.call(node).key, []).append(node)
        for key, nodes in nodes_by_key.items():
            if key in done:
                continue
            outcome = self._time_call(calls, nodes, deadline, again)
            if isinstance(outcome, str):
                self.untuned.append((f"call {nodes[0].detail} for %{nodes[0].name}", outcome))
            else:
                self.calls.append(outcome)

    def _time_call(self, calls: ProductCalls, nodes: Sequence[Node], deadline: float, again: bool) -> CallOutcome | str:
        """The time of the nodes' call, stored; or the reason why there is none."""
        call, names = calls.call(nodes[0]), tuple(n.name for n in nodes)
        known = calls.timed(nodes[0])
        if known is not None and not again:
            return CallOutcome(names, known, True)
        if self._clock() >= deadline:
            return "no time was left for it"
        timing = self._measurer.measure_call(call) if again else self._model.timing(call, self._measurer)
        if isinstance(timing, Rejected):
            return str(timing)
        shapes = " by ".join("x".join(map(str, calls.graph.type_of(v).shape)) for v in nodes[0].operands[:2])
        label = f"{nodes[0].detail} {calls.graph.type_of(nodes[0].operands[0]).dtype} {shapes}"
        timed = TunedCall(call.key, label, timing.median_us, timing.spread_us, call.predicted_us)
        self._results.keep_call(timed)
        return CallOutcome(names, timed, False)

    def _compared(self, plan: Plan, outcomes: Mapping[str, Outcome]) -> list[Comparison]:
        """The tuned kernels of a plan whose products all have a timed call."""
        us_by_name = {name: o.timed.us for o in self.calls for name in o.products}
        us_by_name |= ProductCalls.of(plan, self._device, self._results).us_by_name
        compared = []
        for kernel in {id(k.program): k for k in reversed(plan.kernels)}.values():
            products = tuple(n for n in kernel.pattern.nodes if is_library(plan.graph.node_by_name[n]))
            outcome = outcomes.get(kernel.program.name)
            if outcome is None or not products or not us_by_name.keys() >= set(products):
                continue
            others_us = sum(plan.alone_us.get(n, 0.0) for n in kernel.pattern.nodes if n not in products)
            compared.append(Comparison(kernel.program.name, products, outcome.tuned.us, sum(us_by_name[n] for n in products), others_us))
        return compared

    def tune(self, plan: Plan, seconds: float, again: bool = False, but: Collection[str] = ()) -> Iterator[Outcome]:
        """Tunes the distinct kernels of a plan, the slowest first, and yields each one's outcome when it is stored.

        but: keys of forms that were tuned in this run already.

        Units: `seconds` for all of them; a kernel that is completely tuned costs none, except with `again`. Kernels without an outcome are
        in `untuned` with their reasons.
        """
        self.untuned = []
        deadline = self._clock() + seconds
        uses = Counter(id(k.program) for k in plan.kernels)
        cost_us = {id(k.program): k.cost.us * uses[id(k.program)] for k in plan.kernels}
        form_by_id = {id(p): form_of(p) for p in plan.programs}
        waiting = sorted((p for p in plan.programs if form_by_id[id(p)].key not in but), key=lambda p: (-cost_us[id(p)], p.name))
        while waiting:
            program = waiting.pop(0)
            form = form_by_id[id(program)]
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


def _choices(plan: Plan, calls: ProductCalls) -> list[Node]:
    """Products of a plan for which kernel and call are alternatives: those of complex patterns first, then the longest calls."""
    is_complex_by_name = {n: is_complex(k.program.graph) for k in plan.kernels for n in k.pattern.nodes
                          if is_library(plan.graph.node_by_name[n])}
    called = [v for c in plan.library_calls for _, v in c.results if calls.predicted.may_be_held(plan.graph.node_by_name[v])]
    nodes = [plan.graph.node_by_name[n] for n in dict.fromkeys((*is_complex_by_name, *called))]
    return sorted(nodes, key=lambda n: (not is_complex_by_name.get(n.name, False), -calls.predicted.us(n), n.name))


def speed_up(outcomes: Sequence[Outcome]) -> float:
    """Time of all kernels before tuning over that after it; 1 for none."""
    before = sum(o.tuned.base_us * o.uses for o in outcomes)
    after = sum(o.tuned.us * o.uses for o in outcomes)
    return before / after if after else 1.0
