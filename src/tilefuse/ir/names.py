"""Names of values: which characters they have, and names that nothing else has yet."""
from __future__ import annotations

import re

_NOT_PLAIN = re.compile(r"[^0-9A-Za-z_]")


def plain_name(wanted: str) -> str:
    """`wanted` with every character outside [A-Za-z0-9_] as "_"; "v" where nothing remains."""
    return _NOT_PLAIN.sub("_", wanted) or "v"


def free_name(wanted: str, taken: set[str]) -> str:
    """`wanted`, or, if it is in use, with the first number appended that makes it new; added to `taken`."""
    name, count = wanted, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name
