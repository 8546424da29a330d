"""Empirical search over the programs of a script: combinations from the best predicted on are built, checked and timed.

Every measured time is written at once, so that an interrupted search resumes. Later compiles take the fastest measured program of a script
and its sizes. Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 4.2 (empirical search).
"""
from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import DeviceError, ToolchainError, UnsupportedError
from tilefuse.base.options import Options
from tilefuse.base.search.limits import SEARCH
from tilefuse.driver.measure.lone_kernel import drawn_inputs
from tilefuse.driver.measure.measure import INPUT_SETS, LAUNCHES, TOLERANCE_BY_DTYPE, build_together, same, time_program
from tilefuse.runtime.program import Program
from tilefuse.runtime.stores.cache import cache_of
from tilefuse.runtime.stores.measurements import Journal, journal_path
from tilefuse.scripts.language.elementary import CallGraph
from tilefuse.scripts.plan.combinations import ROUTINES, TEMPLATE, Combination, FusionImplementation
from tilefuse.scripts.programs import Choice, ScriptSearch, how
from tilefuse.scripts.schedule.elements import Decision
from tilefuse.scripts.schedule.routines import FusedRoutines, schedule_routines
from tilefuse.target.device import DeviceSpec

KIND = "scripts"
# Hexadecimal digits of a key.
KEY_DIGITS = 24
# Method by which programs are timed. It is part of every key, so that times of another method are not compared with new ones.
CLOCK = "results rotate"


@dataclass(frozen=True)
class Trial:
    """One program of the search. Units: microseconds.

    rank      place in the order of predicted times, from 0
    measured  its time, or the reason for which it has none
    known     the time is of an earlier search
    """

    rank: int
    how: str
    predicted_us: float
    measured: float | Rejected
    known: bool


def script_key(graph: CallGraph, options: Options | None = None) -> str:
    """A digest of the calls with their sizes and strides. Names of variables do not matter.

    Texts of routines and meanings, and options that decide code, are part of it: other texts and options have other times.
    """
    number = {name: n for n, name in enumerate(graph.variables)}
    rows = [[number[n], v.dtype.name, list(v.shape), list(v.word_strides)] for n, v in graph.variables.items()]
    calls = [[c.function.timed_name, [number[a] if isinstance(a, str) else float(a).hex() for a in c.arguments],
              [number[r] for r in c.results]] for c in graph.calls]
    code_options = dict((options or Options()).code_key())
    code = [[name, repr(value)] for name, value in sorted((options or Options()).changed().items()) if name in code_options]
    text = json.dumps([CLOCK, rows, calls, [number[o] for o in graph.outputs], code])
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def num_sets(moved_bytes: int, cache_bytes: int) -> int:
    """Number of sets of inputs that calls rotate through, for inputs of so many bytes.

    Source: H200, sixteen sets of 3 MiB: the data of a call stayed in L2 until their next call, and programs looked up to twice as fast.
    """
    return max(min(-(-SEARCH.scripts.caches_filled * cache_bytes // max(moved_bytes, 1)), SEARCH.scripts.input_sets), INPUT_SETS)


def script_journal(device: DeviceSpec, options: Options) -> Journal:
    """Times and best programs of scripts on a device, in the cache that the options name."""
    return Journal(journal_path(cache_of(options.cache, options.cache_dir).folder, KIND, f"{device.name}-{device.num_multiprocessors}"))


def written(combination: Combination) -> list[dict[str, Any]]:
    """A combination as plain data."""
    return [{"kind": p.kind, "calls": list(p.calls), "decision": asdict(p.decision) if p.decision else None} for p in combination.parts]


def read_back(search: ScriptSearch, rows: Sequence[Mapping[str, Any]]) -> Combination | None:
    """The combination from plain data; None where it does not fit the library any more (fewer implementations, other calls)."""
    parts: list[FusionImplementation] = []
    for row in rows:
        calls = tuple(row["calls"])
        if row["kind"] == TEMPLATE:
            part = search.template(calls)
        else:
            fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row["decision"].items()}
            try:
                fused = schedule_routines(search.routine_graph, Decision(**fields), search.kernel_name(calls), search.device)
            except (IndexError, TypeError, KeyError):
                return None
            part = FusionImplementation(calls, ROUTINES, 0.0, Decision(**fields), fused) if isinstance(fused, FusedRoutines) else None
        if part is None:
            return None
        parts.append(part)
    return Combination(tuple(parts))


def best_known(search: ScriptSearch) -> Choice | None:
    """The fastest program that an earlier search measured for these sizes on this device; None without one."""
    key = f"{script_key(search.graph, search.options)}:best:{search.kind}:{search.deterministic}"
    row = script_journal(search.device, search.options).find(key)
    if row is None or not isinstance(row.get("parts"), list):
        return None
    combination = read_back(search, row["parts"])
    return None if combination is None else search.build(combination)


class ScriptTuner:
    """Searches the programs of one script on one device."""

    def __init__(self, search: ScriptSearch, place: str) -> None:
        self.search = search
        self.place = place
        self.journal = script_journal(search.device, search.options)
        self.key = script_key(search.graph, search.options)
        self._reference: list[Any] | None = None
        self._drawn: list[dict[str, Any]] = []

    def trials(self, most: int, seconds: float, each: int = 8) -> Iterator[Trial]:
        """Programs in order of predicted time, at most `most` of them and for at most `seconds`; `each`: implementations of a fusion.

        The results of the first program that runs are the reference of all others.
        """
        deadline = time.monotonic() + seconds
        ranked = enumerate(itertools.islice(self.search.combinations(each), most))
        best_us = float("inf")
        while chunk := list(itertools.islice(ranked, SEARCH.scripts.programs_built_together)):
            build_together((k for _, c in chunk if self._known(c) is None for k in self.search.build(c).spec.kernels), self.search.options)
            for rank, combination in chunk:
                known = self._known(combination)
                measured = known if known is not None else self._measured(combination)
                if known is None:
                    self._keep(combination, measured)
                if isinstance(measured, float) and measured < best_us:
                    best_us = measured
                    self.journal.keep(f"{self.key}:best:{self.search.kind}:{self.search.deterministic}",
                                      {"label": self.search.graph.name, "us": measured, "parts": written(combination)})
                yield Trial(rank, how(combination), combination.predicted_us, measured, known is not None)
                if time.monotonic() > deadline:
                    return

    def _row_key(self, combination: Combination) -> str:
        text = json.dumps(written(combination))
        return f"{self.key}:{hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]}"

    def _known(self, combination: Combination) -> float | Rejected | None:
        row = self.journal.find(self._row_key(combination))
        if row is None:
            return None
        if "us" in row:
            return float(row["us"])
        return Rejected(Reason(row["reason"]), str(row.get("detail", "")))

    def _keep(self, combination: Combination, measured: float | Rejected) -> None:
        row: dict[str, Any] = {"label": self.search.graph.name, "predicted_us": combination.predicted_us, "parts": written(combination)}
        row |= {"us": measured} if isinstance(measured, float) else {"reason": measured.reason.value, "detail": measured.detail}
        self.journal.keep(self._row_key(combination), row)

    def _measured(self, combination: Combination) -> float | Rejected:
        try:
            choice = self.search.build(combination)
            program = Program(choice.spec, choice.constants, self.place, self.search.options)
        except ToolchainError as error:
            return Rejected(Reason.DOES_NOT_COMPILE, str(error).partition("\n")[0])
        except DeviceError as error:
            return Rejected(Reason.DOES_NOT_RUN, str(error).partition("\n")[0])
        except UnsupportedError as error:
            return Rejected(Reason.ILLEGAL_TEMPLATE, str(error).partition("\n")[0])
        try:
            sets = self._inputs(program)
            results = [r.clone() for r in program(*sets[0])]
            if self._reference is None:
                self._reference = results
            graph = self.search.graph
            for name, result, reference in zip(graph.outputs, results, self._reference, strict=True):
                if not same(result, reference, TOLERANCE_BY_DTYPE.get(graph.variables[name].dtype.name, 0.0)):
                    return Rejected(Reason.WRONG_RESULT, f"{name} differs from the first program's")
            return time_program(program, sets, max(LAUNCHES, len(sets)), kept=len(sets)).median_us
        except (DeviceError, RuntimeError) as error:
            return Rejected(Reason.DOES_NOT_RUN, str(error).partition("\n")[0])

    def _inputs(self, program: Program) -> list[list[Any]]:
        """Sets of inputs in the program's order; all programs get the same.

        On a GPU calls rotate through so many sets that the data of a call do not stay in L2 until their next call.
        """
        names = program.spec.inputs
        if not self._drawn:
            count = INPUT_SETS if program.device.type == "cuda" else 1
            self._drawn = [dict(zip(names, drawn_inputs(program, seed), strict=True)) for seed in range(count)]
            if program.device.type == "cuda":
                moved = sum(t.numel() * t.element_size() for t in self._drawn[0].values())
                count_needed = num_sets(moved, self.search.device.l2_bytes)
                self._drawn += [{n: t.clone() for n, t in self._drawn[k % count].items()} for k in range(count, count_needed)]
        return [[drawn[n] for n in names] for drawn in self._drawn]
