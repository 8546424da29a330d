"""The statements of each kind of step of a fused kernel's schedule."""
from __future__ import annotations

from tilefuse.base.errors import InternalError
from tilefuse.kernel.ir import Barrier, Stmt
from tilefuse.scripts.compose.partials import finish, gather
from tilefuse.scripts.compose.probe import fill, keep
from tilefuse.scripts.compose.writer import Iteration, RoutineWriter
from tilefuse.scripts.schedule import steps


def write_step(w: RoutineWriter, s: steps.Step, iteration: Iteration) -> tuple[Stmt, ...]:
    """The statements of one step."""
    elements = w.fused.elements
    match s:
        case steps.BlockBarrier():
            return (Barrier(),)
        case steps.Load(name):
            return w.transfer(elements[name], iteration, "load")
        case steps.Store(name):
            return w.transfer(elements[name], iteration, "store")
        case steps.Compute():
            return w.compute(s, iteration)
        case steps.Clear(name):
            return w.clear(elements[name])
        case steps.Put(source, target):
            return w.put(elements[source], elements[target])
        case steps.Get(source, target):
            return w.get(elements[source], elements[target])
        case steps.Mask(name, k, parameter):
            return w.mask(elements[name], k, parameter, iteration)
        case steps.Gather(name, slab):
            return gather(w, elements[name], slab)
        case steps.Finish(name, slab):
            return finish(w, elements[name], slab, iteration)
        case steps.Fill(name, again):
            return fill(w, elements[name], again)
        case steps.Keep(name):
            return keep(w, elements[name])
    raise InternalError(f"not a step of a fused kernel: {s!r}")
