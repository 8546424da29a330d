"""Boxes around steps: the modules of the user's model, repeated layers where it names none, and runs of steps where nothing repeats.

```text
steps   conv k conv k add | conv k conv k add | softmax        ->    layer 1, layer 2 as layer 1, softmax
paths   layers.0.norm, layers.0.linear, layers.1.norm          ->    layers > 0 > norm ...
```

A group never holds more than `MAX_CHILDREN` boxes, so a page of ten thousand nodes opens with a few and each opened box adds a few.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_CHILDREN = 48
MAX_PERIOD = 64
# Fewer steps are read at a glance: no layers are looked for among them.
FEW_STEPS = 10


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel or call to be grouped. `form`: equal for steps that do the same to other values; `path`: its module, "" for none;
    reads, writes: values that other steps make or read."""

    key: str
    form: str
    path: str
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()


@dataclass(slots=True)
class Group:
    """A box around steps and groups, in order of execution. `form` is equal for groups of equal members."""

    label: str
    members: list[Group | Step] = field(default_factory=list)

    @property
    def form(self) -> str:
        """Equal for groups of steps of equal forms."""
        return "(" + " ".join(m.form for m in self.members) + ")"

    @property
    def reads(self) -> frozenset[str]:
        """Values that its steps read."""
        return frozenset[str]().union(*(m.reads for m in self.members))

    @property
    def writes(self) -> frozenset[str]:
        """Values that its steps write."""
        return frozenset[str]().union(*(m.writes for m in self.members))

    @property
    def num_steps(self) -> int:
        """Number of steps, those of inner groups included."""
        return sum(m.num_steps if isinstance(m, Group) else 1 for m in self.members)


def grouped(steps: Sequence[Step]) -> list[Group | Step]:
    """The outermost boxes: by module where any step has one, else by repetition; long lists are cut into runs."""
    members = _by_path(steps, 0) if any(s.path for s in steps) else _by_repetition(steps)
    if len(members) == 1 and isinstance(members[0], Group):
        members = members[0].members
    return _cut(members, "")


def _by_path(steps: Sequence[Step], depth: int) -> list[Group | Step]:
    """Consecutive steps that agree in the next part of their paths form one group; a module that is left and entered again has several, so
    that no group waits for itself."""
    members: list[Group | Step] = []
    for step in steps:
        parts = step.path.split(".") if step.path else []
        if len(parts) <= depth:
            members.append(step)
            continue
        label = ".".join(parts[:depth + 1])
        if not (members and isinstance(members[-1], Group) and members[-1].label == label):
            members.append(Group(label))
        group = members[-1]
        assert isinstance(group, Group)
        group.members.append(step)
    deeper: list[Group | Step] = []
    for member in members:
        if isinstance(member, Step):
            deeper.append(member)
            continue
        member.members = _by_path([m for m in member.members if isinstance(m, Step)], depth + 1)
        # A box around one box says nothing; the inner one's label is the longer path.
        deeper += member.members if len(member.members) == 1 else [member]
    return _numbered(deeper)


def _numbered(members: list[Group | Step]) -> list[Group | Step]:
    """Groups of one label get their number behind it."""
    counts = Counter(m.label for m in members if isinstance(m, Group))
    seen: Counter[str] = Counter()
    for m in members:
        if isinstance(m, Group) and counts[m.label] > 1:
            seen[m.label] += 1
            m.label = f"{m.label} ({seen[m.label]} of {counts[m.label]})"
    return members


def _by_repetition(steps: Sequence[Step]) -> list[Group | Step]:
    """Sequences of forms that occur again and again become groups: that which explains most first, then the rest in the same way."""
    members: list[Group | Step] = list(steps)
    if len(steps) <= FEW_STEPS:
        return members
    while (repeated := _most_repeated(members)) is not None:
        members = _with_groups(members, repeated)
    _number_layers(members, "")
    return members


def _number_layers(members: Sequence[Group | Step], outer: str) -> None:
    """Labels as "layer 2" and, inside it, "layer 2.1"."""
    for number, group in enumerate((m for m in members if isinstance(m, Group)), 1):
        group.label = f"layer {outer}{number}"
        _number_layers(group.members, f"{outer}{number}.")


def _most_repeated(members: Sequence[Group | Step]) -> tuple[str, ...] | None:
    """The sequence of forms with the highest worth: (occurrences - 1) x (steps - values that cross its border).

    Of a residual block's rotations that is the one that begins and ends where a single value passes. None: nothing repeats.
    Cost: linear in the steps times MAX_PERIOD.
    """
    best: tuple[float, tuple[str, ...]] | None = None
    forms = [m.form for m in members]
    for length in range(2, min(MAX_PERIOD, len(members) // 2) + 1):
        seen: dict[tuple[str, ...], tuple[int, int, int]] = {}  # (occurrences, first start, end of the last)
        for start in range(len(members) - length + 1):
            count, first, end = seen.get(window := tuple(forms[start:start + length]), (0, start, 0))
            if start >= end:
                seen[window] = (count + 1, first, start + length)
        for window, (count, first, _) in seen.items():
            if count < 2 or _repeats_itself(window):
                continue
            num_steps = sum(_num_steps(m) for m in members[first:first + length])
            if best is not None and (count - 1) * num_steps <= best[0]:
                continue
            worth = (count - 1) * (num_steps - _crossing(members, first, first + length))
            if worth > 0 and (best is None or worth > best[0]):
                best = (worth, window)
    return None if best is None else best[1]


def _repeats_itself(window: tuple[str, ...]) -> bool:
    """Whether a sequence is a shorter one several times: then that one is the layer."""
    length = len(window)
    return any(length % period == 0 and window == window[:period] * (length // period) for period in range(1, length // 2 + 1))


def _num_steps(member: Group | Step) -> int:
    return member.num_steps if isinstance(member, Group) else 1


def _crossing(members: Sequence[Group | Step], start: int, end: int) -> int:
    """Values that members start .. end - 1 read from those before, and give to those behind."""
    inside = frozenset[str]().union(*(m.writes for m in members[start:end]))
    needed = frozenset[str]().union(*(m.reads for m in members[start:end]))
    behind = frozenset[str]().union(*(m.reads for m in members[end:]))
    return len(needed - inside) + len(inside & behind)


def _with_groups(members: Sequence[Group | Step], forms: tuple[str, ...]) -> list[Group | Step]:
    """Every occurrence of the forms becomes one group."""
    grouped: list[Group | Step] = []
    number = 0
    while number < len(members):
        window = members[number:number + len(forms)]
        if tuple(m.form for m in window) == forms:
            # One group and steps beside it are the same layer, seen whole; several groups stay groups inside.
            alone = sum(isinstance(m, Group) for m in window) == 1
            grouped.append(Group("", [inner for m in window for inner in (m.members if alone and isinstance(m, Group) else [m])]))
            number += len(forms)
        else:
            grouped.append(members[number])
            number += 1
    return grouped


def _cut(members: list[Group | Step], title: str) -> list[Group | Step]:
    """The list, or runs of it where it is longer than a group may be; groups inside are cut too."""
    for m in members:
        if isinstance(m, Group):
            m.members = _cut(m.members, f"{m.label}: ")
    while len(members) > MAX_CHILDREN:
        size = min(max(-(-len(members) // MAX_CHILDREN), 8), MAX_CHILDREN)
        runs: list[Group | Step] = [Group("", list(members[i:i + size])) for i in range(0, len(members), size)]
        at = 0
        for run in runs:
            assert isinstance(run, Group)
            run.label = f"{title}steps {at + 1} to {at + run.num_steps}"
            at += run.num_steps
        members = runs
    return members
