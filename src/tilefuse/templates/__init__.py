"""Floor 4: how one pattern becomes one kernel: tiles, templates, storage; feasibility and cost facts for the planner."""
from __future__ import annotations

from tilefuse.templates.packed.packed import Known
from tilefuse.templates.pattern import pattern_graph, schedule_pattern

__all__ = ["Known", "pattern_graph", "schedule_pattern"]
