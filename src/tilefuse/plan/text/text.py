"""The text form of a plan: printer and parser side by side.

    plan @softmax for h200 objective 2.1us unfused 8.4us {
      search by ilp saved 6.300us bound 6.300us proven rounds 2 cuts 1 greedy 2.100us peak 0 bytes from connect 3, substitution 1
      kernel k0 = {%m, %e, %s, %y} -> {%y} by connect cost 2.1us from bandwidth as k_e_s_y_12ab34cd
      edge %m -> %e in k0 register
      library matmul {%y, %w} -> {0: %z}
      view %v of %x offset 0 strides [1, 4]
      layout %z [1, 4]
      rejected {%a, %b} not-convex: "a path leaves the pattern and comes back"
    }

The text holds the decisions (`Outline`) and not the tile programs, which follow from them. `//` begins a comment.
"""
from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import ParseError, nearest
from tilefuse.base.source import Span
from tilefuse.domain.tile import EdgeLevel, Level
from tilefuse.plan.pattern import Cost, LibraryCall, Pattern, Plan, PlannedKernel, RejectedMerge, Search, View

E = TypeVar("E", Level, Reason)


@dataclass(frozen=True, slots=True)
class KernelOutline:
    """A kernel's decisions: its nodes and results, its generator, its cost, and the symbol that it shares with equal kernels."""

    name: str
    pattern: Pattern
    generator: str
    cost: Cost
    symbol: str
    levels: tuple[EdgeLevel, ...] = ()


@dataclass(frozen=True, slots=True)
class Outline:
    """Contents of a plan's text. Units: microseconds, to three decimals."""

    name: str
    device: str
    objective_us: float
    unfused_us: float
    steps: tuple[KernelOutline | LibraryCall, ...] = ()
    views: tuple[View, ...] = ()
    layouts: tuple[tuple[str, tuple[int, ...]], ...] = ()
    rejected: tuple[RejectedMerge, ...] = ()
    search: Search | None = None


def outline_of(plan: Plan) -> Outline:
    """The decisions of a plan, with times rounded as in the text."""
    steps: list[KernelOutline | LibraryCall] = []
    for step in plan.steps:
        if isinstance(step, PlannedKernel):
            cost = Cost(round(step.cost.us, 3), step.cost.source)
            steps.append(KernelOutline(step.name, step.pattern, step.generator, cost, step.program.name, step.levels))
        else:
            steps.append(step)
    return Outline(plan.graph.name, plan.device, round(plan.objective_us, 3), round(plan.unfused_us, 3), tuple(steps), plan.views,
                   tuple(sorted(plan.layouts.items())), plan.rejected, _rounded(plan.search))


def _rounded(search: Search | None) -> Search | None:
    """Facts about a search in the text: no seconds (they differ from run to run), no counts of rejected candidates."""
    if search is None:
        return None
    return replace(search, objective_us=round(search.objective_us, 3), bound_us=round(search.bound_us, 3), seconds=0.0,
                   greedy_us=round(search.greedy_us, 3), rejected=())


def print_plan(plan: Plan | Outline) -> str:
    """The text of a plan. Exact: equal outlines give equal texts, and parsing gives the outline back."""
    o = outline_of(plan) if isinstance(plan, Plan) else plan
    lines = [f"plan @{o.name} for {o.device} objective {_us(o.objective_us)} unfused {_us(o.unfused_us)} {{"]
    if o.search is not None:
        lines.append("  " + _search_line(o.search))
    for step in o.steps:
        if isinstance(step, LibraryCall):
            results = ", ".join(f"{number}: %{value}" for number, value in step.results)
            lines.append(f"  library {step.operator} {_set(step.operands)} -> {{{results}}}")
            continue
        lines.append(f"  kernel {step.name} = {_set(step.pattern.nodes)} -> {_set(step.pattern.written)} by {step.generator} "
                     f"cost {_us(step.cost.us)} from {step.cost.source} as {step.symbol}")
        lines += [f"  edge %{e.producer} -> %{e.user} in {step.name} {e.level.value}" for e in step.levels]
    lines += [f"  view %{v.value} of %{v.base} offset {v.offset} strides {_list(v.strides)}" for v in o.views]
    lines += [f"  layout %{value} {_list(strides)}" for value, strides in o.layouts]
    lines += [f"  rejected {{%{r.first}, %{r.second}}} {r.rejected.reason.value}: {json.dumps(r.rejected.detail)}" for r in o.rejected]
    return "\n".join([*lines, "}"]) + "\n"


def _search_line(s: Search) -> str:
    return (f"search by {s.planner} saved {_us(s.objective_us)} bound {_us(s.bound_us)} {'proven' if s.proven else 'unproven'} "
            f"rounds {s.rounds} cuts {s.cuts} greedy {_us(s.greedy_us)} peak {s.peak_bytes} bytes from "
            + ", ".join(f"{generator} {count}" for generator, count in s.candidates)).rstrip()


def _us(us: float) -> str:
    return f"{us:.3f}us"


def _set(names: tuple[str, ...]) -> str:
    return "{" + ", ".join(f"%{n}" for n in names) + "}"


def _list(numbers: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, numbers)) + "]"


_NAME = r"[A-Za-z0-9_.$-]+"
_SET = r"\{([^}]*)\}"
_US = r"(\d+(?:\.\d+)?)us"
_HEAD = re.compile(rf"plan @({_NAME}) for ({_NAME}) objective {_US} unfused {_US} \{{$")
_LINES = {
    "search": re.compile(rf"search by ({_NAME}) saved {_US} bound {_US} (proven|unproven) rounds (\d+) cuts (\d+) greedy {_US} "
                         rf"peak (\d+) bytes from ?((?:{_NAME} \d+(?:, )?)*)$"),
    "kernel": re.compile(rf"kernel ({_NAME}) = {_SET} -> {_SET} by ({_NAME}) cost {_US} from ({_NAME}) as ({_NAME})$"),
    "edge": re.compile(rf"edge %({_NAME}) -> %({_NAME}) in ({_NAME}) ({_NAME})$"),
    "library": re.compile(rf"library ({_NAME}) {_SET} -> {_SET}$"),
    "view": re.compile(rf"view %({_NAME}) of %({_NAME}) offset (-?\d+) strides \[([^\]]*)\]$"),
    "layout": re.compile(rf"layout %({_NAME}) \[([^\]]*)\]$"),
    "rejected": re.compile(rf"rejected \{{%({_NAME}), %({_NAME})\}} ({_NAME}): (\".*\")$"),
}

_EXAMPLES = {
    "search": "search by both saved 3.5us bound 3.5us proven rounds 1 cuts 0 greedy 4.0us peak 0 bytes from connect 3",
    "kernel": "kernel k0 = {%m, %y} -> {%y} by connect cost 1.5us from bandwidth as k_m_y",
    "edge": "edge %m -> %y in k0 register",
    "library": "library l0 {%p} -> {%p}",
    "view": "view %v of %x offset 0 strides [4, 1]",
    "layout": "layout %c [0, 2, 3, 1]",
    "rejected": 'rejected {%m, %y} shared-memory: "why"',
}


def parse_plan(text: str, source: str = "<plan>") -> Outline:
    """The outline that `text` describes. Raises: ParseError with line and column for text that is no plan."""
    lines = _numbered(text)
    number, line = next(lines, (1, ""))
    head = _HEAD.match(line)
    if head is None:
        raise ParseError("a plan begins with: plan @name for device objective 1.0us unfused 2.0us {", where=Span(source, number, 1, line))
    reader = _Reader(source)
    closed = False
    for number, line in lines:
        if closed:
            raise ParseError("text behind the plan's closing brace", where=Span(source, number, 1, line))
        if line == "}":
            closed = True
            continue
        reader.line(number, line)
    if not closed:
        raise ParseError("the plan's closing brace is missing", where=Span(source, number, 1, line))
    steps = tuple(KernelOutline(s.name, s.pattern, s.generator, s.cost, s.symbol, tuple(reader.levels[s.name]))
                  if isinstance(s, KernelOutline) else s for s in reader.steps)
    return Outline(head[1], head[2], float(head[3]), float(head[4]), steps, tuple(reader.views), tuple(reader.layouts),
                   tuple(reader.rejected), reader.search)


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r"\s*//[^\"]*$", "", line).strip()
        if bare:
            yield number, bare


class _Reader:
    """Collects a plan's lines."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.steps: list[KernelOutline | LibraryCall] = []
        self.levels: dict[str, list[EdgeLevel]] = {}
        self.views: list[View] = []
        self.layouts: list[tuple[str, tuple[int, ...]]] = []
        self.rejected: list[RejectedMerge] = []
        self.search: Search | None = None

    def line(self, number: int, line: str) -> None:
        """Reads one line. Raises: ParseError."""
        where = Span(self.source, number, 1, line)
        word = line.split(" ", 1)[0]
        if word not in _LINES:
            raise ParseError(f"a plan has no {word!r} lines", where=where, hint=nearest(word, _LINES) or f"lines: {', '.join(_LINES)}")
        match = _LINES[word].match(line)
        if match is None:
            raise ParseError(f"this {word} line is not complete", where=where, hint=f"for example: {_EXAMPLES[word]}")
        parts = match.groups()
        match word:
            case "search":
                self.search = _search_of(*parts)
            case "kernel":
                name, nodes, written, generator, us, cost_source, kernel_name = parts
                pattern = Pattern(_names(nodes, where), _names(written, where))
                self.steps.append(KernelOutline(name, pattern, generator, Cost(float(us), cost_source), kernel_name))
                self.levels[name] = []
            case "edge":
                if parts[2] not in self.levels:
                    raise ParseError(f"no kernel {parts[2]} above this edge", where=where, hint=nearest(parts[2], self.levels))
                self.levels[parts[2]].append(EdgeLevel(parts[0], parts[1], _member(Level, parts[3], where)))
            case "library":
                self.steps.append(LibraryCall(parts[0], _names(parts[1], where), _numbered_names(parts[2], where)))
            case "view":
                self.views.append(View(parts[0], parts[1], int(parts[2]), _integers(parts[3], where)))
            case "layout":
                self.layouts.append((parts[0], _integers(parts[1], where)))
            case _:
                why = Rejected(_member(Reason, parts[2], where), _quoted(parts[3], where))
                self.rejected.append(RejectedMerge(parts[0], parts[1], why))


def _search_of(planner: str, saved: str, bound: str, proven: str, rounds: str, cuts: str, greedy: str, peak: str,
               candidates: str) -> Search:
    """The search of a plan's text: the groups of its line."""
    pairs = (p.split() for p in candidates.split(",") if p.strip())
    counts = tuple((name, int(count)) for name, count in pairs)
    return Search(planner, float(saved), float(bound), int(rounds), int(cuts), 0.0, proven == "proven", float(greedy), int(peak), counts)


def _names(text: str, where: Span) -> tuple[str, ...]:
    names = [n.strip() for n in text.split(",") if n.strip()]
    for name in names:
        if not re.fullmatch(f"%{_NAME}", name):
            raise ParseError(f"{name!r} is not a value name", where=where, hint="names begin with %")
    return tuple(n[1:] for n in names)


def _numbered_names(text: str, where: Span) -> tuple[tuple[int, str], ...]:
    """Results of a library call: each number with its value."""
    numbered: list[tuple[int, str]] = []
    for pair in (p.strip() for p in text.split(",")):
        number, _, name = (part.strip() for part in pair.partition(":"))
        if not re.fullmatch(r"\d+", number):
            raise ParseError(f"{pair!r} is no result of a call", where=where, hint="a number and a value, as in 0: %y")
        numbered += [(int(number), n) for n in _names(name, where)] or [(int(number), "")]
        if not numbered[-1][1]:
            raise ParseError(f"result {number} of the call has no value", where=where, hint="a number and a value, as in 0: %y")
    return tuple(numbered)


def _quoted(text: str, where: Span) -> str:
    """Contents of a text in quotes."""
    try:
        return str(json.loads(text))
    except json.JSONDecodeError as cause:
        raise ParseError(f"{text} is no text in quotes: {cause.msg}", where=where) from cause


def _integers(text: str, where: Span) -> tuple[int, ...]:
    words = [n.strip() for n in text.split(",") if n.strip()]
    for word in words:
        if not re.fullmatch(r"-?\d+", word):
            raise ParseError(f"{word!r} is not a whole number", where=where)
    return tuple(map(int, words))


def _member(kind: type[E], text: str, where: Span) -> E:
    known = [member.value for member in kind]
    if text not in known:
        hint = nearest(text, known) or f"one of {', '.join(known)}"
        raise ParseError(f"{text!r} is not a {kind.__name__.lower()}", where=where, hint=hint)
    return kind(text)
