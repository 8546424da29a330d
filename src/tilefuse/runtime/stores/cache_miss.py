"""The reason for a miss of the kernel cache: the nearest entry, and the first key field that differs."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilefuse.runtime.stores.cache_key import CacheKey


def explain_miss(key: CacheKey, records: Sequence[Mapping[str, object]]) -> str:
    """One sentence on the difference between `key` and the nearest of `records` (entries as stored).

    Nearest: most equal fields; among those the same label, then the most equal source lines.
    """
    if not records:
        return f"{key.label}: the cache is empty"
    nearest = max(records, key=lambda r: _nearness(key, r))
    fields = nearest["fields"]
    assert isinstance(fields, dict)
    names = [name for name, _ in key.fields]
    for name, value in key.fields:
        if fields.get(name) != value:
            return f"{key.label}: nearest entry {nearest['label']} differs in {name}: there {fields.get(name)!r}, here {value!r}"
    for name in fields:
        if name not in names:
            return f"{key.label}: nearest entry {nearest['label']} has a field {name} that this key lacks"
    return f"{key.label}: nearest entry {nearest['label']} differs in source, {_first_difference(str(nearest['source']), key.source)}"


def _nearness(key: CacheKey, record: Mapping[str, object]) -> tuple[int, int, int, int]:
    fields = record["fields"]
    assert isinstance(fields, dict)
    source = str(record["source"])
    same_fields = sum(fields.get(name) == value for name, value in key.fields)
    same_lines = len(set(source.splitlines()) & set(key.source.splitlines()))
    return int(source == key.source), same_fields, int(record["label"] == key.label), same_lines


def _first_difference(there: str, here: str) -> str:
    old, new = there.splitlines(), here.splitlines()
    for number, (a, b) in enumerate(zip(old, new), start=1):
        if a != b:
            return f"line {number}: there {a.strip()!r}, here {b.strip()!r}"
    return f"length: there {len(old)} lines, here {len(new)}"
