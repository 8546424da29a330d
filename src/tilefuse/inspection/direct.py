"""Calls of a compiled object without recordings: steps of a replayed CUDA graph cannot be timed one by one."""
from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from tilefuse.inspection.subject import Part
from tilefuse.runtime.calls.step_times import own_attribute


@contextlib.contextmanager
def direct_calls(parts: Iterable[Part]) -> Iterator[list[Any]]:
    """Inside, calls of the parts run their programs step by step; yields these programs, which are more where weights are stored."""
    programs: list[Any] = []
    with contextlib.ExitStack() as stack:
        for part in parts:
            programs.append(part.program)
            holder = part.holder
            kind = type(holder).__name__
            if kind == "CompiledPart":
                programs += _direct_part(holder, stack)
            elif kind == "CompiledModel":
                stack.enter_context(own_attribute(holder, "_run", holder.program))
                stack.enter_context(own_attribute(holder, "_replay", False))
            elif kind == "Compiled":
                stack.enter_context(own_attribute(holder, "_results", lambda entry, arguments: entry.program(*arguments)))
        yield programs


def _direct_part(holder: Any, stack: contextlib.ExitStack) -> list[Any]:
    """Makes a part of torch call its programs; yields those besides its own that compute stored weights."""
    run = holder._run
    if type(run).__name__ == "ReplayedProgram":
        stack.enter_context(own_attribute(holder, "_run", run.program.call_boxed))
    elif type(run).__name__ == "KeptWeights":
        rest = getattr(run._rest, "program", None) or getattr(run._rest, "__self__", None)
        if rest is not None:
            stack.enter_context(own_attribute(run, "_rest", rest.call_boxed))
            return [run._weights, rest]
    return []

