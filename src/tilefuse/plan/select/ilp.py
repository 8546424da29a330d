"""The integer program over candidates: chooses those that together save the most time, so that no two kernels wait for each other.

    maximise   sum_j f(P_j) X_j          X_j in {0, 1}: candidate j is one kernel of the plan
    subject to sum_(j : v in P_j) X_j <= 1                      for every node v
               sum_(j closes cycle C) X_j <= num_pairs(C) - 1   for every cycle C that a solution was seen to have

Cycle cuts are added lazily: solve, contract the chosen candidates, search for cycles, forbid them, solve again, all in one solver object.
Other conditions are added in the same way; rows that are not exact guide the search at first and prove nothing. This file knows no graphs
of tensors: nodes are numbers, candidates are sets of them with a score.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilefuse.base.construction import quickly_built
from tilefuse.base.errors import InfeasibleError, InternalError, ToolchainError
from tilefuse.base.search.limits import SEARCH
from tilefuse.plan.select.cycles import Contraction, Cycle

# Scores are microseconds; smaller differences count as equal. Source: a launch costs about one microsecond, clocks resolve thousandths.
SCORE_TOLERANCE_US = 1e-6


@quickly_built
@dataclass(frozen=True, slots=True)
class Column:
    """A candidate as a column of the program. Units: `score_us` is the time that it saves, in microseconds."""

    members: tuple[int, ...]
    score_us: float


@dataclass(frozen=True, slots=True)
class Row:
    """A linear condition that a solution broke: sum of coefficient * X <= upper, over (column, coefficient) pairs.

    exact: whether every legal choice satisfies it. A row that is not exact leads to good choices soon, and proves nothing.
    """

    terms: tuple[tuple[int, float], ...]
    upper: float
    exact: bool = True


# Further conditions that a choice of columns without a cycle breaks (peak memory); empty: none.
Separator = Callable[[Sequence[int]], list[Row]]


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen columns, and facts about the choice.

    objective_us  time that they save together
    bound_us      upper bound on the time that any choice saves; equal to the objective where `proven`
    rounds        number of solver runs; cuts: rows that were added in between; seconds: of processor time
    """

    taken: tuple[int, ...]
    objective_us: float
    bound_us: float
    rounds: int
    cuts: int
    seconds: float
    proven: bool


class IntegerProgram:
    """One program and its solver object. Columns keep their order, so equal inputs give equal solutions."""

    def __init__(self, num_nodes: int, edges: Sequence[tuple[int, int]], columns: Sequence[Column],
                 separator: Separator | None = None) -> None:
        """edges: dependences between nodes, an acyclic relation."""
        self._columns = columns
        self._contraction = Contraction(num_nodes, edges, [c.members for c in columns])
        self._separator = separator
        self._cuts: dict[Row, None] = {}
        self._solver: Any = None

    def solve(self, seconds: float, start: Sequence[int] = ()) -> Selection:
        """The best choice of columns, or the best one known when the time is over.

        start: columns known to be a legal choice; the result is never worse than it.
        Raises: InfeasibleError where the separator's conditions leave no choice; ToolchainError where the solver fails.
        """
        began = time.thread_time()
        if not self._columns and self._legal(()):
            # The solver rejects a program without columns.
            return Selection((), 0.0, 0.0, 0, 0, time.thread_time() - began, True)
        incumbent = tuple(sorted(start)) if self._legal(start) else None
        if incumbent is None and self._legal(()):
            incumbent = ()
        best = Selection(incumbent or (), self._score(incumbent or ()), sum(max(c.score_us, 0.0) for c in self._columns), 0, 0, 0.0, False)
        last_round: int | None = None
        while (seconds_left := seconds - (time.thread_time() - began)) > 0 and best.rounds != last_round:
            best = replace(best, rounds=best.rounds + 1)
            guided = any(not r.exact for r in self._cuts)
            columns, bound_us, optimal = self._run(seconds_left, best.taken)
            if columns is not None and not guided:
                best = replace(best, bound_us=min(best.bound_us, bound_us))
            rows = [] if columns is None else self._violated(columns)
            if columns is not None and not rows:
                if incumbent is None or self._score(columns) > best.objective_us or optimal and not guided:
                    incumbent, best = columns, replace(best, taken=columns, objective_us=self._score(columns))
                best = replace(best, bound_us=max(best.bound_us, best.objective_us))
                best = replace(best, proven=best.bound_us - best.objective_us <= SCORE_TOLERANCE_US)
            if not rows:
                if optimal and guided and not best.proven and last_round is None:
                    self._without_guides()
                    last_round = best.rounds + SEARCH.selection.rounds_without_guides
                    continue
                if columns is None and optimal and incumbent is None and not guided:
                    raise InfeasibleError("no choice of kernels keeps all conditions of the plan")
                break
            repaired = self._repaired(columns or ())
            if repaired is not None and (incumbent is None or self._score(repaired) > best.objective_us + SCORE_TOLERANCE_US):
                incumbent, best = repaired, replace(best, taken=repaired, objective_us=self._score(repaired))
            self._cut(r for r in rows if r.exact or last_round is None)
        if incumbent is None:
            raise InfeasibleError(f"the solver found no plan within {seconds:g} s that keeps all conditions",
                                  hint="raise plan_seconds, or the ceiling on peak memory")
        return replace(best, cuts=len(self._cuts), seconds=time.thread_time() - began)

    def _score(self, taken: Iterable[int]) -> float:
        return sum(self._columns[c].score_us for c in taken)

    # Conditions that a choice breaks

    def _legal(self, taken: Sequence[int]) -> bool:
        seen = [m for c in taken for m in self._columns[c].members]
        return len(seen) == len(set(seen)) and not self._violated(taken)

    def _violated(self, taken: Sequence[int]) -> list[Row]:
        rows = [self._cycle_row(c) for c in self._contraction.cycles(taken)]
        # Kernels that wait for each other have no order, so their peak memory is undefined.
        return rows if rows or self._separator is None else self._separator(taken)

    def _cycle_row(self, cycle: Cycle) -> Row:
        """The row that forbids the cycle, and with it every choice of other columns that would close it in the same way.

        A column that contains both the entry and the exit of a kernel on the cycle closes the cycle in the same way. Each column counts
        once, even with two such pairs, so that a column that contains a part of the cycle is not forbidden more often than necessary.
        """
        closing: dict[int, None] = {}
        for enter, leave in cycle.pairs:
            closing.update(dict.fromkeys(self._contraction.holding(enter, leave)))
        if len(cycle.pairs) == 1:
            # One kernel depends on itself through nodes outside; a column that also holds those nodes is legal.
            closing = {c: None for c in closing if not set(cycle.nodes) <= set(self._columns[c].members)}
        return Row(tuple((c, 1.0) for c in sorted(closing)), len(cycle.pairs) - 1.0)

    def _repaired(self, taken: Sequence[int]) -> tuple[int, ...] | None:
        """The choice without columns that close cycles, lowest scores removed first; None where that breaks other conditions."""
        acyclic = list(taken)
        while cycles := self._contraction.cycles(acyclic):
            on_cycles = sorted({g for cycle in cycles for g in cycle.columns})
            acyclic.remove(min(on_cycles, key=lambda c: (self._columns[c].score_us, c)))
        return None if self._separator is not None and self._separator(acyclic) else tuple(acyclic)

    # The solver

    def _run(self, seconds: float, start: Sequence[int]) -> tuple[tuple[int, ...] | None, float, bool]:
        """Chosen columns, upper bound on the score, and whether that is final for the current rows.

        (None, ..., True): no choice satisfies the rows. (None, ..., False): the time was over before a choice was known.
        """
        result = self._once(seconds, start)
        if result is None:
            self._rebuild()
            result = self._once(seconds, ())
        if result is None:
            raise ToolchainError("the integer program's solver returned a choice of another value than its optimum",
                                 hint="install another version of highspy; planner=greedy plans without it")
        return result

    def _once(self, seconds: float, start: Sequence[int]) -> tuple[tuple[int, ...] | None, float, bool] | None:
        """As `_run`; None where the solver's choice has not the value of its optimum. Without a start, none is given to the solver.

        HiGHS 1.16.0 returns the start instead of the optimum for one of about 200 small programs.
        """
        import highspy

        if self._solver is None:
            self._solver = self._built()
        solver = self._solver
        # The solver's clock continues from one call to the next.
        solver.setOptionValue("time_limit", solver.getRunTime() + seconds)
        if start:
            start_solution = highspy.HighsSolution()
            begun = set(start)
            start_solution.col_value = [1.0 if c in begun else 0.0 for c in range(len(self._columns))]
            solver.setSolution(start_solution)
        solver.run()
        status = solver.getModelStatus()
        known = highspy.HighsModelStatus
        if status in (known.kInfeasible, known.kUnboundedOrInfeasible) or not self._columns:
            return None, 0.0, True
        if status not in (known.kOptimal, known.kTimeLimit):
            raise ToolchainError(f"the integer program's solver stopped: {solver.modelStatusToString(status)}",
                                 hint="plan with planner=greedy, and please report the graph")
        info = solver.getInfo()
        has_solution = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        values = solver.getSolution().col_value if has_solution else []
        taken = tuple(c for c, x in enumerate(values) if x > 0.5)
        score_us = self._score(taken)
        # The solver's variables are whole numbers within 1e-6, so that its sum may differ by this share of all scores.
        error_us = SCORE_TOLERANCE_US * (1.0 + sum(abs(c.score_us) for c in self._columns))
        if has_solution and abs(score_us - info.objective_function_value) > error_us:
            return None
        bound_us = score_us if status == known.kOptimal else float(info.mip_dual_bound)
        return taken if has_solution else None, bound_us, status == known.kOptimal

    def _built(self) -> Any:
        """The solver with all columns, one row for each node that several columns hold, and no cuts."""
        import highspy
        import numpy

        solver = silent_solver(highspy.Highs)
        for name, value in (("threads", 1), ("parallel", "off"), ("random_seed", 0), ("mip_rel_gap", 0.0),
                            ("mip_abs_gap", SCORE_TOLERANCE_US / 2)):
            solver.setOptionValue(name, value)
        if len(self._columns) > SEARCH.selection.presolved_columns:
            for name, value in (("presolve", "off"), ("mip_detect_symmetry", False), ("mip_heuristic_effort", 0.0)):
                solver.setOptionValue(name, value)
        solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
        for column in self._columns:
            solver.addCol(column.score_us, 0.0, 1.0, 0, [], [])
        count = len(self._columns)
        integer = numpy.full(count, int(highspy.HighsVarType.kInteger), numpy.uint8)
        solver.changeColsIntegrality(count, numpy.arange(count, dtype=numpy.int32), integer)
        for rivals in dict.fromkeys(tuple(columns) for columns in self._contraction.columns_of.values() if len(columns) > 1):
            solver.addRow(-highspy.kHighsInf, 1.0, len(rivals), list(rivals), [1.0] * len(rivals))
        return solver

    def _without_guides(self) -> None:
        """Rebuilds the program with the exact cuts alone."""
        self._rebuild(exact_only=True)

    def _rebuild(self, exact_only: bool = False) -> None:
        """A new solver with the cuts so far, or with the exact ones."""
        cuts = [r for r in self._cuts if r.exact or not exact_only]
        self._solver, self._cuts = self._built(), {}
        if cuts:
            self._cut(cuts)

    def _cut(self, rows: Iterable[Row]) -> None:
        import highspy

        fresh = [r for r in dict.fromkeys(rows) if r not in self._cuts]
        if not fresh and self._cuts:
            raise InternalError("the integer program's solver broke a cut that it was given", hint="please report the graph")
        for row in fresh:
            self._cuts[row] = None
            columns, coefficients = [c for c, _ in row.terms], [k for _, k in row.terms]
            self._solver.addRow(-highspy.kHighsInf, row.upper, len(columns), columns, coefficients)


def silent_solver(kind: Any) -> Any:
    """A solver of HiGHS's class, whose constructor writes nothing to standard output.

    From 1.16 on it prints the licence where it enables callbacks, before a caller can switch its output off.
    """
    def enable(solver: Any) -> None:
        solver.setOptionValue("output_flag", False)
        kind.enableCallbacks(solver)

    return type("SilentSolver", (kind,), {"enableCallbacks": enable})()
