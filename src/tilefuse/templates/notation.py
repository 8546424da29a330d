"""The template notation of FusionStitching 5.2: records, printer and parser side by side.

    template  = statement { statement }
    statement = schedule | setting | "pack" "{" part { part } "}" [ ";" ]
    schedule  = name "[" attr { "," attr } "]" [ keep ] ";"
    attr      = step { "-" step }
    step      = ("GRID" | "CLUSTER" | "CTA" | "WARP" | "THREAD" | "LOOP") [ "_" integer ]
    keep      = destination { destination }         destination = "R" | "W" | "S" | "C" | "G"
    setting   = name "=" (integer | "true" | "false") ";"
    part      = [ integer "x" ] "{" template "}"

    reduce_1 [GRID_128-WARP_2,WARP,WARP,CTA]S;   divide [GRID,WARP,WARP,CTA];   cta_size=256;

A schedule says how the loops of one value are spread, one attribute a dimension (kept dimensions first, then reduced ones), and where its
result goes: S is the paper's; R (registers), W (a warp's registers), C (a cluster's shared memory) and G (global memory beside another
level) are ours, and so are CLUSTER and LOOP: the block goes along the dimension in turns of so many elements. Without a destination the
value goes to global memory. `#` and `//` begin a comment.
"""
from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tilefuse.base.errors import ParseError, nearest
from tilefuse.base.source import Span
from tilefuse.domain.tile import Level


class Worker(enum.Enum):
    """Who shares the steps of a loop: blocks of the grid, blocks of a cluster, threads of a block, lanes of a warp, nobody; LOOP: one
    block takes them in turns, its results carried along."""

    GRID = "GRID"
    CLUSTER = "CLUSTER"
    CTA = "CTA"
    WARP = "WARP"
    THREAD = "THREAD"
    LOOP = "LOOP"


LEVEL_BY_LETTER = {"R": Level.REGISTER, "W": Level.WARP, "S": Level.SHARED, "C": Level.CLUSTER, "G": Level.GLOBAL}
LETTER_BY_LEVEL = {level: letter for letter, level in LEVEL_BY_LETTER.items()}


@dataclass(frozen=True, slots=True)
class Step:
    """One level of tiling of one loop; `count` workers share it, None: as many as follow from the rest."""

    worker: Worker
    count: int | None = None

    def __str__(self) -> str:
        return self.worker.value if self.count is None else f"{self.worker.value}_{self.count}"


Attr = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How one value is computed and where it goes besides (or instead of) global memory."""

    name: str
    attrs: tuple[Attr, ...]
    keep: tuple[Level, ...] = ()
    span: Span | None = field(default=None, compare=False)

    def __str__(self) -> str:
        attrs = ",".join("-".join(map(str, attr)) for attr in self.attrs)
        return f"{self.name} [{attrs}]{''.join(LETTER_BY_LEVEL[k] for k in self.keep)};"


@dataclass(frozen=True, slots=True)
class Setting:
    """A parameter of the kernel that no loop shows: launch (`cta_num`, `cta_size`), vector width, pipeline stages."""

    name: str
    value: int | bool
    span: Span | None = field(default=None, compare=False)

    def __str__(self) -> str:
        value = str(self.value).lower() if isinstance(self.value, bool) else str(self.value)
        return f"{self.name}={value};"


@dataclass(frozen=True, slots=True)
class Template:
    """A kernel: schedules and settings, or the parts of a packed kernel (how many alike, and their template)."""

    schedules: tuple[Schedule, ...] = ()
    settings: tuple[Setting, ...] = ()
    parts: tuple[tuple[int, Template], ...] = ()

    def __str__(self) -> str:
        packed = ["pack { " + " ".join(f"{count} x {{ {part} }}" for count, part in self.parts) + " };"] if self.parts else []
        return " ".join([*packed, *map(str, self.schedules), *map(str, self.settings)])


def print_template(template: Template) -> str:
    """The template on one line. Exact: parsing gives the template back."""
    return str(template)


def keeps(written: tuple[Level, ...], meant: tuple[Level, ...], is_result: bool) -> bool:
    """Whether the destinations of a schedule are those of its kernel. The paper has no letter for global memory beside shared memory:
    that a value is a result as well may be left out, and so may where threads exchange it."""
    levels = set(written) - {Level.GLOBAL}
    return (not levels or levels == set(meant) - {Level.GLOBAL}) and (Level.GLOBAL not in written or is_result)


def agree(written: Attr, meant: Attr) -> bool:
    """Whether a written attribute says the same; counts may be left out, and so may a single step inside a block."""
    if len(written) == 1 and len(meant) == 2 and written[0].worker is Worker.GRID and meant[1].count == 1:
        meant = meant[:1]
    return len(written) == len(meant) and all(_same_step(a, b) for a, b in zip(written, meant))


def _same_step(written: Step, meant: Step) -> bool:
    if written.worker is meant.worker:
        return written.count is None or meant.count is None or written.count == meant.count
    # The threads of a block may be one warp.
    return ({written.worker, meant.worker} == {Worker.CTA, Worker.WARP}
            and (written.count == meant.count or written == Step(Worker.CTA)))


_TOKEN = re.compile(r"\s+|(?:#|//)[^\n]*|(?P<number>\d+)|(?P<word>[A-Za-z_%][A-Za-z0-9_.$%]*)|(?P<mark>[\[\]{},;=-])|(?P<bad>.)", re.DOTALL)


def parse_template(text: str, source: str = "<template>") -> Template:
    """The template that `text` writes. Raises: ParseError with line and caret for what is no template."""
    reader = _Reader(text, source)
    template = reader.template(closed=False)
    if not (template.schedules or template.parts):
        raise ParseError("a template has at least one schedule, as in: y [GRID-CTA_128];", where=reader.here())
    return template


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int


class _Reader:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str, source: str) -> None:
        self._text, self._source = text, source
        self._tokens = list(self._scan())
        self._at = 0

    def _scan(self) -> Iterator[_Token]:
        for match in _TOKEN.finditer(self._text):
            kind = match.lastgroup
            if kind == "bad":
                raise ParseError(f"unexpected character {match.group()!r}", where=self.span(match.start()))
            if kind is not None:
                yield _Token(kind, match.group(), match.start())
        yield _Token("end", "", len(self._text.rstrip()))

    def span(self, start: int) -> Span:
        """Where a position of the text is."""
        line = self._text.count("\n", 0, start) + 1
        first = self._text.rfind("\n", 0, start) + 1
        last = self._text.find("\n", first)
        return Span(self._source, line, start - first + 1, self._text[first:len(self._text) if last < 0 else last])

    def here(self) -> Span:
        """Where the next token is."""
        return self.span(self._tokens[self._at].start)

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _peek(self, text: str) -> bool:
        return self._tokens[self._at].text == text and self._tokens[self._at].kind != "end"

    def _expect(self, text: str, what: str) -> None:
        token = self._next()
        if token.text != text or token.kind == "end":
            raise ParseError(f"{what} wants {text!r}, not {token.text or 'the end of the text'!r}", where=self.span(token.start))

    def template(self, closed: bool) -> Template:
        template = Template()
        while not (self._peek("}") if closed else self._tokens[self._at].kind == "end"):
            token = self._next()
            if token.kind != "word":
                raise ParseError(f"a schedule or setting begins with a name, not {token.text or 'the end of the text'!r}",
                                 where=self.span(token.start))
            if token.text == "pack" and self._peek("{"):
                template = replace(template, parts=(*template.parts, *self._parts()))
            elif self._peek("="):
                template = replace(template, settings=(*template.settings, self._setting(token)))
            elif self._peek("["):
                template = replace(template, schedules=(*template.schedules, self._schedule(token)))
            else:
                raise ParseError(f"behind {token.text!r} stands '[' (a schedule) or '=' (a setting)", where=self.here())
        return template

    def _parts(self) -> tuple[tuple[int, Template], ...]:
        self._expect("{", "pack")
        parts: list[tuple[int, Template]] = []
        while not self._peek("}"):
            count = 1
            if self._tokens[self._at].kind == "number":
                count = int(self._next().text)
                self._expect("x", "a number of alike parts")
            self._expect("{", "a part")
            parts.append((count, self.template(closed=True)))
            self._expect("}", "a part")
        self._expect("}", "pack")
        if self._peek(";"):
            self._next()
        return tuple(parts)

    def _setting(self, name: _Token) -> Setting:
        self._expect("=", "a setting")
        value = self._next()
        if value.kind != "number" and value.text not in ("true", "false"):
            raise ParseError(f"setting {name.text} wants a whole number, true or false, not {value.text!r}", where=self.span(value.start))
        self._expect(";", f"setting {name.text}")
        return Setting(name.text, int(value.text) if value.kind == "number" else value.text == "true", self.span(name.start))

    def _schedule(self, name: _Token) -> Schedule:
        self._expect("[", "a schedule")
        attrs = [self._attr()]
        while self._peek(","):
            self._next()
            attrs.append(self._attr())
        self._expect("]", f"schedule {name.text}")
        keep: list[Level] = []
        if self._tokens[self._at].kind == "word":
            letters = self._next()
            for letter in letters.text:
                level = LEVEL_BY_LETTER.get(letter)
                if level is None or level in keep:
                    raise ParseError(f"schedule {name.text} goes to {letters.text!r}, which is no list of destinations",
                                     where=self.span(letters.start), hint="R registers, W warp, S shared, C cluster, G global, each once")
                keep.append(level)
        self._expect(";", f"schedule {name.text}")
        return Schedule(name.text.lstrip("%"), tuple(attrs), tuple(keep), self.span(name.start))

    def _attr(self) -> Attr:
        steps = [self._step()]
        while self._peek("-"):
            self._next()
            steps.append(self._step())
        return tuple(steps)

    def _step(self) -> Step:
        token = self._next()
        word, _, number = token.text.partition("_")
        names = [w.value for w in Worker]
        if token.kind != "word" or word not in names:
            raise ParseError(f"{token.text or 'the end of the text'!r} spreads no loop", where=self.span(token.start),
                             hint=nearest(word.upper(), names) or f"one of {', '.join(names)}, with a number as in CTA_128")
        if "_" in token.text and (not number.isdigit() or int(number) < 1):
            raise ParseError(f"{word} is shared by a whole number of workers, not {number!r}", where=self.span(token.start))
        return Step(Worker(word), int(number) if number else None)
