"""A solved component of the integer program as text, by which another process looks it up."""
from __future__ import annotations

import json

from tilefuse.plan.select.ilp import Selection


def selection_text(chosen: Selection) -> str:
    """A solved component of the integer program as text."""
    return json.dumps([list(chosen.taken), chosen.objective_us, chosen.bound_us, chosen.rounds, chosen.cuts])


def parse_selection(text: str, num_columns: int) -> Selection | None:
    """The proven choice that a text stores; None where the text stores none."""
    try:
        taken, objective_us, bound_us, rounds, cuts = json.loads(text)
        columns = tuple(int(n) for n in taken)
        if any(not 0 <= n < num_columns for n in columns):
            return None
        return Selection(columns, float(objective_us), float(bound_us), int(rounds), int(cuts), 0.0, True)
    except (ValueError, TypeError):
        return None
