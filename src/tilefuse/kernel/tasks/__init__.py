"""Tasks: bodies of one kernel that hand values to each other through global memory, ordered by counters; and the proof of their order."""
