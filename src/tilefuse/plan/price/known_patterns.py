"""Patterns judged before, in another graph or another process: neither scheduled nor priced again.

    nodes and wiring + types and layouts + tiles that like patterns have here   ->  digest  ->  price and figures, or why there is no kernel

Judgements are stored up to names. The device, the options and the compiler itself are not in a digest: a `Store` holds the judgements under
one choice of them. The schedule of a kernel that a plan uses is made again from the pattern, so it has the names of its own graph.
"""
from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.plan.pattern import Cost
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.staged.stitched.record import Stitched

# In reasons, names of values are stored as their numbers in the pattern, between characters that no reason contains.
_NAMED = re.compile(r"%([A-Za-z0-9_.]+)")
_NUMBERED = re.compile("\x01(\\d+)\x02")


class Store(Protocol):
    """Texts by digest, which outlive a graph and, on disk, a process. A damaged or missing text is a miss."""

    def get(self, digest: str) -> str | None:
        """The text of a digest."""
        ...

    def put(self, digest: str, text: str) -> None:
        """Keeps a text."""
        ...


@dataclass(frozen=True, slots=True)
class Figures:
    """Facts about a kernel that planning needs before it is part of a plan. Units: as of `TileProgram`.

    several: numbers of the boundary values that several blocks compute.
    """

    template: str
    num_blocks: int
    bytes_read: int
    bytes_written: int
    several: tuple[int, ...] = ()

    @property
    def bytes_moved(self) -> int:
        """Read and written. Units: bytes."""
        return self.bytes_read + self.bytes_written

    @classmethod
    def of(cls, program: TileProgram, values: Sequence[str]) -> Figures:
        """The figures of a program with these boundary values."""
        several = kernel_template(program.choice).computed_by_several(program)
        return cls(program.template, program.launch.num_blocks, program.bytes_read, program.bytes_written,
                   tuple(n for n, value in enumerate(values) if value in several))


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict of scheduling and pricing on a pattern. `tiles`: the tiles that similar patterns copy from it, where it has products."""

    verdict: tuple[Figures, Cost, float] | Rejected
    tiles: Stitched | None = None


def judgement_text(judged: Judgement, names: Sequence[str]) -> str | None:
    """A judgement as text, up to names (those of the pattern's values, by number); None where it mentions a value outside them."""
    tiles = None if judged.tiles is None else [list(judged.tiles.tiles), judged.tiles.threads, judged.tiles.groups]
    if isinstance(judged.verdict, Rejected):
        detail = _numbered(judged.verdict.detail, {name: n for n, name in enumerate(names)})
        return None if detail is None else json.dumps([judged.verdict.reason.value, detail, tiles])
    figures, cost, limit_us = judged.verdict
    fields = [figures.template, figures.num_blocks, figures.bytes_read, figures.bytes_written, list(figures.several)]
    return json.dumps([fields, [cost.us, cost.source], limit_us, tiles])


def parse_judgement(text: str, names: Sequence[str]) -> Judgement | None:
    """The judgement in a text, with these names; None for a text that is none."""
    try:
        row = json.loads(text)
        tiles = None if row[-1] is None else Stitched(tuple(row[-1][0]), int(row[-1][1]), int(row[-1][2]))
        if isinstance(row[0], str):
            return Judgement(Rejected(Reason(row[0]), _NUMBERED.sub(lambda m: f"%{names[int(m[1])]}", row[1])), tiles)
        template, num_blocks, bytes_read, bytes_written, several = row[0]
        figures = Figures(str(template), int(num_blocks), int(bytes_read), int(bytes_written), tuple(map(int, several)))
        return Judgement((figures, Cost(float(row[1][0]), str(row[1][1])), float(row[2])), tiles)
    except (ValueError, TypeError, IndexError, KeyError):
        return None


def renamed_reason(why: Rejected, names: Sequence[str], others: Sequence[str]) -> Rejected | None:
    """A reason about a pattern's values (`names`) as a reason about another pattern's (`others`); None where it mentions a value
    outside."""
    detail = _numbered(why.detail, {name: n for n, name in enumerate(names)})
    return None if detail is None else Rejected(why.reason, _NUMBERED.sub(lambda m: f"%{others[int(m[1])]}", detail))


def _numbered(detail: str, number_of: Mapping[str, int]) -> str | None:
    outside = False

    def number(match: re.Match[str]) -> str:
        nonlocal outside
        name = match[1] if match[1] in number_of else match[1].rstrip(".")
        outside = outside or name not in number_of
        return f"\x01{number_of.get(name, 0)}\x02{match[1][len(name):]}"

    numbered = _NAMED.sub(number, detail)
    return None if outside else numbered
