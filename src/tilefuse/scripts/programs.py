"""From the calls of a script to one program: fusions of routines, or kernels compiled from meanings, joined in order.

Both kinds stand in one table of combinations. The template of the whole script is one entry, and the others are compared with it:
prediction takes routines only where they promise more than predictions err by.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import UnsupportedError, UserError
from tilefuse.base.options import Options
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.roofline import Parts
from tilefuse.driver.compile import Generated, generate
from tilefuse.driver.join import Joint, joined_spec
from tilefuse.plan.pattern import PlannedKernel
from tilefuse.runtime.spec import ProgramSpec, Value
from tilefuse.scripts.language.elementary import CallGraph
from tilefuse.scripts.language.meaning import graph_of_calls
from tilefuse.scripts.plan.combinations import ROUTINES, TEMPLATE, Combination, FusionImplementation, cheapest, combinations
from tilefuse.scripts.plan.fusions import Fusion, Fusions, calls_between_matrices, find_fusions
from tilefuse.scripts.plan.implementations import Candidates, bound_us, implementations, list_candidates, why_none
from tilefuse.scripts.plan.routine_times import RoutineTimes
from tilefuse.scripts.plan.work import template_us
from tilefuse.scripts.routine_programs import routine_spec
from tilefuse.scripts.schedule.names import safe_graph
from tilefuse.scripts.schedule.routines import FusedRoutines
from tilefuse.target.device import DeviceSpec

Kind = Literal["auto", "template", "routines"]
KINDS: tuple[Kind, ...] = ("auto", "template", "routines")


def kind_named(name: str) -> Kind:
    """The kind of program of this name. Raises: UserError where there is none."""
    for kind in KINDS:
        if kind == name:
            return kind
    raise UserError(f"there is no kind of program {name!r}", hint=f"one of {', '.join(KINDS)}")


@dataclass(frozen=True)
class Choice:
    """The program of a script, and the decisions behind it. Units: predicted time in microseconds.

    how          "template", or the kind and decision of each kernel: "template [0, 1]", "routines calls [2] as ..."
    combination  implementations of the program's kernels; None for the template of the whole script
    """

    spec: ProgramSpec
    how: str
    predicted_us: float
    constants: Mapping[str, object] = field(default_factory=dict)
    combination: Combination | None = None


def how(combination: Combination) -> str:
    """Kind and decision of each kernel of a combination, in words."""
    return "; ".join(f"{p.kind}: {p.decision or f'calls {list(p.calls)}'}" for p in combination.parts)


def _promising(combination: Combination, enough_us: float) -> bool:
    """Whether a combination is worth building beside the template of the whole script.

    It takes less than `enough_us`, and it has routines: templates alone would only split the kernels of the whole script's plan.
    """
    return combination.predicted_us < enough_us and any(p.kind == ROUTINES for p in combination.parts)


class ScriptSearch:
    """The programs of one script for one device: fusions, their implementations, their combinations.

    kind: the kinds of kernels that a program may have. deterministic: no atomic additions, so that results are equal from run to run.
    """

    def __init__(self, graph: CallGraph, device: DeviceSpec, options: Options, kind: Kind = "auto", deterministic: bool = False,
                 times: RoutineTimes | None = None) -> None:
        self.graph = graph
        # Names that kernels of routines see, and the script's name of each of its variables.
        self.routine_graph, self.script_name = safe_graph(graph)
        self.device = device
        self.options = options
        self.kind = kind_named(kind)
        self.deterministic = deterministic
        self.times = times
        # Template of some calls, and the script's names of its results.
        self._generated: dict[tuple[int, ...], tuple[Generated, tuple[str, ...]]] = {}
        self._fusions: Fusions | None = None
        self._candidates: dict[tuple[int, ...], Candidates] = {}

    @property
    def fusions(self) -> Fusions:
        """All fusions of the calls, and rejected sets with the reason."""
        if self._fusions is None:
            self._fusions = find_fusions(self.graph)
        return self._fusions

    def template(self, calls: tuple[int, ...] | None = None) -> FusionImplementation | None:
        """Some calls (all where None) through the ordinary pipeline; None where a function has no meaning."""
        numbers = tuple(range(len(self.graph.calls))) if calls is None else calls
        if numbers not in self._generated:
            try:
                imported = graph_of_calls(self.graph, numbers)
            except UnsupportedError:
                return None
            # Kernels beside routines stand ready at most: blocks that take rows in turns cost more there (`ScriptFigures.persistent_us`).
            early = "ready" if self.options.fetches_early else self.options.early_start
            generated = generate(
                imported.graph, constants=imported.constants, input_layouts=imported.layouts, device=self.device,
                options=replace(self.options, early_start=early), result_layouts=imported.result_layouts)
            self._generated[numbers] = generated, imported.graph.results
        plan = self._generated[numbers][0].plan
        predicted_us = sum(template_us(k, self.device) for k in plan.steps if isinstance(k, PlannedKernel))
        return FusionImplementation(numbers, TEMPLATE, predicted_us)

    def table(self, most: int | None = None) -> dict[tuple[int, ...], list[FusionImplementation]]:
        """Implementations by fusion, at most `most` of routines each."""
        table: dict[tuple[int, ...], list[FusionImplementation]] = {}
        for fusion in self.fusions.legal:
            table[fusion.calls] = [] if self.kind == "template" else self._routines(fusion, most)
        if self.kind != "routines" and self.graph.calls:
            # Templates of the whole script, and of calls between matrices, need no single kernel of routines for the same calls.
            for calls in dict.fromkeys((*table, *calls_between_matrices(self.graph), tuple(range(len(self.graph.calls))))):
                part = self.template(calls)
                if part is not None:
                    table.setdefault(calls, []).append(part)
        return table

    def unimplemented(self) -> tuple[tuple[tuple[int, ...], Rejected], ...]:
        """Fusions that no routines implement, each with the reason; empty where the kind excludes routines."""
        reasons = [] if self.kind == "template" else [
            (f.calls, why_none(self.routine_graph, f, self.device, self._listed(f), self.kernel_name(f.calls))) for f in self.fusions.legal]
        return tuple((calls, reason) for calls, reason in reasons if reason is not None)

    def _routines(self, fusion: Fusion, most: int | None) -> list[FusionImplementation]:
        return list(implementations(self.routine_graph, fusion, self.device, self.kernel_name(fusion.calls),
                                    deterministic=self.deterministic, times=self.times, most=most, candidates=self._listed(fusion)))

    def _listed(self, fusion: Fusion) -> Candidates:
        """Decisions of a fusion, predicted and not scheduled."""
        if fusion.calls not in self._candidates:
            self._candidates[fusion.calls] = list_candidates(self.graph, fusion, self.device, self.deterministic, self.times)
        return self._candidates[fusion.calls]

    def combinations(self, most: int | None = None) -> Iterator[Combination]:
        """Programs from the best predicted on, with the template of the whole script where `first` takes it.

        The whole-script template comes first on the host. Elsewhere it precedes every program that is not predicted to be faster.
        most: implementations of routines of each fusion.
        """
        ranked = combinations(self.graph, self.table(most))
        best = next(ranked, None)
        if best is None:
            return
        whole = self.template() if self.kind != "routines" and self.graph.calls else None
        first: Combination | None = None
        if whole is not None and (self.device.kind == "host" or not _promising(best, whole.predicted_us)):
            first = Combination((whole,))
            yield first
        yield from (c for c in itertools.chain((best,), ranked) if c != first)

    def build(self, combination: Combination) -> Choice:
        """The program of a combination."""
        parts: list[Joint] = []
        constants: dict[str, object] = {}
        for number, part in enumerate(combination.parts):
            spec, names, data = self.part_program(part)
            parts.append(Joint(spec, names))
            constants |= {names.get(n, f"part{number}_{n}"): v for n, v in data.items()}
        graph = self.graph
        inputs = [Value(n, v.dtype.name, v.shape, v.word_strides, "input") for n, v in ((n, graph.variables[n]) for n in graph.inputs)]
        spec = joined_spec(graph.name, self.device.kind, parts, inputs, graph.outputs)
        return Choice(spec, how(combination), combination.predicted_us, constants, combination)

    def part_program(self, part: FusionImplementation) -> tuple[ProgramSpec, dict[str, str], Mapping[str, object]]:
        """(program, names of its inputs and results -> the script's names, data of its constants) of one part of a combination."""
        if isinstance(part.content, FusedRoutines):
            spec = routine_spec(part.content, self.device, self.options)
            return spec, {v.name: self.script_name[v.name] for v in spec.values if v.role in ("input", "result")}, {}
        generated, results = self._generated[part.calls]
        names = {i: i for i in generated.spec.inputs} | dict(zip(generated.spec.results, results, strict=True))
        return generated.spec, names, generated.constants

    def whole_program(self) -> Generated | None:
        """The template of the whole script with its plan; None where a function has no meaning."""
        numbers = tuple(range(len(self.graph.calls)))
        return None if self.template() is None else self._generated[numbers][0]

    def prediction(self, part: FusionImplementation) -> Parts | None:
        """The parts of the predicted time of routines; None where the decision is not among those of this search."""
        fusion = next((f for f in self.fusions.legal if f.calls == part.calls), None)
        ranked = () if fusion is None else self._listed(fusion).ranked
        return next((c.prediction for c in ranked if c.decision == part.decision), None)

    def alone(self, calls: tuple[int, ...]) -> tuple[float, int]:
        """(predicted time, bytes moved) of calls as one kernel of routines; (0, 0) where no routines run them.

        Units: microseconds; bytes.
        """
        fusion = next((f for f in self.fusions.legal if f.calls == calls), None)
        best = next(iter(self._listed(fusion).ranked), None) if fusion is not None else None
        return (0.0, 0) if best is None else (best.prediction.us, sum(m.num_bytes for m in best.facts.moved if not m.resident))

    def first(self) -> Choice:
        """The program expected to be fastest.

        Raises: UnsupportedError where neither routines nor meanings can compute a call.
        """
        whole = self.template() if self.kind != "routines" else None
        if whole is not None and (self.kind == "template" or self.device.kind == "host"):
            return self.whole(whole)  # predictions for the host do not rank routines
        enough_us = math.inf if whole is None else whole.predicted_us
        best = self._best(enough_us, {} if whole is None else self._template_parts())
        if whole is not None and (best is None or not _promising(best, enough_us)):
            return self.whole(whole)
        if best is None:
            raise UnsupportedError(f"no kernel can compute {self.graph.name}", hint="a function without a meaning needs routines that fit")
        return self.build(best)

    def _template_parts(self) -> dict[tuple[int, ...], float]:
        """Calls that may be kernels from meanings beside kernels of routines -> lower bound on their time. Units: microseconds.

        These are the calls of each kernel of the whole script's template, unless one call spreads over several kernels, and the calls
        between matrices, whose bound is a launch: they are not compiled yet.
        """
        bounds = dict.fromkeys(calls_between_matrices(self.graph), self.device.graph_launch_us)
        generated, _ = self._generated[tuple(range(len(self.graph.calls)))]
        kernels = [k for k in generated.plan.steps if isinstance(k, PlannedKernel)]
        kernel_of = {node: n for n, k in enumerate(kernels) for node in k.pattern.nodes}
        calls_of_kernel: dict[int, list[int]] = {}
        for c, call in enumerate(self.graph.calls):
            holders = {kernel_of.get(r, -1) for r in call.results}
            if len(holders) > 1 or -1 in holders:
                return bounds
            calls_of_kernel.setdefault(holders.pop(), []).append(c)
        if len(calls_of_kernel) == len(kernels) > 1:
            bounds |= {tuple(calls): template_us(kernels[n], self.device) for n, calls in calls_of_kernel.items()}
        return bounds

    def _best(self, enough_us: float, template_bounds: Mapping[tuple[int, ...], float]) -> Combination | None:
        """The best combination of routines and of some calls from meanings; or one whose bound exceeds `enough_us`.

        Three estimates refine each other, each only for fusions of the best combination so far: the bound from bytes, the best decision's
        price, the scheduled kernel. template_bounds: `_template_parts`.
        """
        fusion_of = {f.calls: f for f in self.fusions.legal}

        def with_template_bound(calls: tuple[int, ...], routines: Sequence[FusionImplementation]) -> list[FusionImplementation]:
            template = [FusionImplementation(calls, TEMPLATE, template_bounds[calls])] if calls in template_bounds else []
            return [*routines, *template]

        def decided(calls: tuple[int, ...]) -> list[FusionImplementation]:
            best_candidate = self._listed(fusion_of[calls]).ranked[:1] if calls in fusion_of else ()
            return with_template_bound(
                calls, [FusionImplementation(calls, ROUTINES, c.prediction.us, c.decision) for c in best_candidate])

        def scheduled(calls: tuple[int, ...]) -> list[FusionImplementation]:
            routines = self._routines(fusion_of[calls], SEARCH.scripts.first_implementations) if calls in fusion_of else []
            part = self.template(calls) if calls in template_bounds else None
            return [*routines, *([part] if part is not None else [])]

        table: dict[tuple[int, ...], Sequence[FusionImplementation]] = {}
        for calls in dict.fromkeys((*fusion_of, *template_bounds)):
            bounds = [bound_us(self.graph, fusion_of[calls], self.device)] if calls in fusion_of else []
            table[calls] = with_template_bound(calls, [FusionImplementation(calls, ROUTINES, us) for us in bounds])
        best = cheapest(self.graph, table, decided, enough_us)
        return cheapest(self.graph, table, scheduled, enough_us) if best is not None and _promising(best, enough_us) else best

    def whole(self, whole: FusionImplementation) -> Choice:
        """The program of the template of the whole script."""
        generated, _ = self._generated[whole.calls]
        return Choice(generated.spec, TEMPLATE, whole.predicted_us, generated.constants)

    def kernel_name(self, calls: Sequence[int]) -> str:
        """A kernel's name, from the names of its results."""
        names = list(itertools.chain.from_iterable(self.graph.calls[c].results for c in calls))
        return "k_" + "_".join(names[:4])
