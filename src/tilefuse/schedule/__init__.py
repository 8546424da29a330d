"""Floor 4: how one pattern becomes one kernel: tiles, templates, storage; feasibility and cost facts for the planner."""
