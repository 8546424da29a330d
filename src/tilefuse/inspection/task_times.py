"""A timeline of the tasks of a program's last call, as chrome-trace JSON that Perfetto reads: a row for each multiprocessor."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tilefuse.runtime.task_records import TaskTime, task_times

__all__ = ["TaskTime", "task_times", "write_timeline"]


def write_timeline(compiled: Any, path: Path | str) -> Path:
    """Writes the timeline of the last call of a compiled model; returns the file. Units: microseconds since the first task began.

    Raises: UserError for a program without recorded tasks (options `grid_level` and `task_times`).
    """
    program = getattr(compiled, "program", compiled)
    target = Path(path)
    target.write_text(json.dumps({"traceEvents": timeline(task_times(program)), "displayTimeUnit": "ns"}), encoding="utf-8")
    return target


def timeline(times: list[TaskTime]) -> list[dict[str, Any]]:
    """Events of a chrome trace: one process for each kernel, one thread for each multiprocessor."""
    first_ns = min(t.start_ns for t in times)
    kernels = {name: n for n, name in enumerate(dict.fromkeys(t.kernel for t in times))}
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
                                    for name, pid in kernels.items()]
    for t in times:
        events.append({"ph": "X", "name": t.stage, "pid": kernels[t.kernel], "tid": t.place, "ts": (t.start_ns - first_ns) / 1e3,
                       "dur": (t.end_ns - t.start_ns) / 1e3, "args": {"task": t.number, "part": t.part}})
    return events
