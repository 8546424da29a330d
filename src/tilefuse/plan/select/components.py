"""Independent components of the integer program: each is solved by itself, equal ones once.

Two candidates belong together where they share a node, or where both can lie on one cycle. Connect the nodes of each candidate to a ring
and add every dependence: all conflicts and all cycles of any choice lie inside one strongly connected component.

    layer 0            layer 1            layer 2
    {a, b} {b, c}  ->  {d, e} {e, f}  ->  {g, h} {h, i}        three programs with two candidates each, all equal: one is solved
"""
from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from tilefuse.plan.price.known_patterns import Store
from tilefuse.plan.price.structure import digest_text
from tilefuse.plan.select.cycles import strongly_connected
from tilefuse.plan.select.ilp import SCORE_TOLERANCE_US, Column, IntegerProgram, Selection, Separator
from tilefuse.plan.select.selection_text import parse_selection, selection_text


@dataclass(frozen=True, slots=True)
class Component:
    """One component: its nodes and columns by number, ascending, and the edges between its nodes."""

    nodes: tuple[int, ...]
    columns: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]


def select(num_nodes: int, edges: Sequence[tuple[int, int]], columns: Sequence[Column], seconds: float, start: Sequence[int] = (),
           separator: Separator | None = None, known: dict[Hashable, Selection] | None = None,
           store: Store | None = None) -> Selection:
    """The best choice of columns, component by component. With a separator there is one component, since its rows may join any two columns.

    start: columns known to be a legal choice; the result is never worse than it.
    known: components solved before, for programs that are solved again with a few other columns; new ones are added.
    store: components solved in other graphs; proven solutions are added.
    Units: seconds for all components together. Raises: as `IntegerProgram.solve`.
    """
    began = time.thread_time()
    if separator is not None:
        return IntegerProgram(num_nodes, edges, columns, separator).solve(seconds, start)
    started = set(start)
    solved = {} if known is None else known
    taken: list[int] = []
    objective_us = bound_us = 0.0
    rounds = cuts = 0
    proven = True
    for part in split(num_nodes, edges, columns):
        place = {node: n for n, node in enumerate(part.nodes)}
        own = [Column(tuple(place[m] for m in columns[c].members), columns[c].score_us) for c in part.columns]
        inside = [(place[a], place[b]) for a, b in part.edges]
        begin = tuple(n for n, c in enumerate(part.columns) if c in started)
        key = (len(part.nodes), tuple(inside), tuple(own), begin)
        selection = solved.get(key)
        if selection is None:
            seconds_left = max(seconds - (time.thread_time() - began), 0.0)
            selection = solved[key] = _solved(len(part.nodes), inside, own, begin, seconds_left, store)
            rounds += selection.rounds
            cuts += selection.cuts
        taken += [part.columns[n] for n in selection.taken]
        objective_us += selection.objective_us
        bound_us += selection.bound_us
        proven = proven and selection.proven
    return Selection(tuple(sorted(taken)), objective_us, bound_us, rounds, cuts, time.thread_time() - began, proven)


def _solved(num_nodes: int, edges: Sequence[tuple[int, int]], columns: Sequence[Column], begin: Sequence[int], seconds: float,
            store: Store | None) -> Selection:
    """The best choice of one component, from the store if it is there."""
    if store is None:
        return IntegerProgram(num_nodes, edges, columns).solve(seconds, begin)
    problem_text = repr(("part", num_nodes, edges, [(c.members, c.score_us) for c in columns], begin))
    digest = digest_text(problem_text)
    text = store.get(digest)
    known = None if text is None else parse_selection(text, len(columns))
    if known is not None:
        return known
    selection = IntegerProgram(num_nodes, edges, columns).solve(seconds, begin)
    if selection.proven:
        # A search that the time limit interrupted may find a better choice next time, so it is not stored.
        store.put(digest, selection_text(selection))
    return selection


def split(num_nodes: int, edges: Sequence[tuple[int, int]], columns: Sequence[Column]) -> list[Component]:
    """The components that hold a column with a positive score, by their first node. Cost: linear in edges and members."""
    successors: dict[int, list[int]] = {node: [] for node in range(num_nodes)}
    for before, after in edges:
        successors[before].append(after)
    useful = [n for n, c in enumerate(columns) if c.score_us > SCORE_TOLERANCE_US]
    if not useful:
        return []
    for number in useful:
        members = columns[number].members
        for before, after in zip(members, (*members[1:], members[0]), strict=True):
            successors[before].append(after)
    part_of: dict[int, int] = {}
    nodes: list[tuple[int, ...]] = []
    for part in sorted(strongly_connected(successors)):
        part_of.update(dict.fromkeys(part, len(nodes)))
        nodes.append(part)
    columns_of: list[list[int]] = [[] for _ in nodes]
    edges_of: list[list[tuple[int, int]]] = [[] for _ in nodes]
    for number in useful:
        columns_of[part_of[columns[number].members[0]]].append(number)
    for before, after in edges:
        if part_of[before] == part_of[after]:
            edges_of[part_of[before]].append((before, after))
    return [Component(n, tuple(c), tuple(sorted(e))) for n, c, e in zip(nodes, columns_of, edges_of, strict=True) if c]
