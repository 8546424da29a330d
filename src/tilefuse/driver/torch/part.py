"""One compiled part of a torch program (inference, forward or backward graph): the program and its calling convention.

Torch passes a list and gives up its ownership ("boxed"), so that arguments can be freed after their last use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from tilefuse.driver.model import restore
from tilefuse.driver.torch.split import marked
from tilefuse.frontends.imported import Imported
from tilefuse.runtime.calls.graphs import CudaGraphs
from tilefuse.runtime.calls.replay import ReplayedProgram, may_be_replayed
from tilefuse.runtime.kept_weights import KeptWeights, split_weights
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import LibraryStep

log = logging.getLogger("tilefuse")


class CompiledPart:
    """A boxed callable over a program. `kind` is "inference", "forward" or "backward".

    moved: argument numbers that torch passes on another device than the program's (numbers as CPU tensors).
    static: names of inputs with the same address at every call (parameters). replay: whether calls become replays of a CUDA graph: never,
    auto (where the host would take longer than the device), always. lent: results that may lie in the graph's memory.
    sizes: the program's sizes, where torch traced its graph for any size.
    """

    def __init__(
        self, kind: str, program: Program, imported: Imported, moved: Sequence[int] = (), static: Sequence[str] = (), replay: str = "never",
        lent: Collection[int] = (), sizes: str = "",
    ) -> None:
        self.kind = kind
        self.sizes = sizes
        self.program = program
        self.imported = imported
        self.calls = 0
        self._places = tuple(n for n, name in enumerate(imported.arguments) if name is not None)
        self._moved = frozenset(moved)
        self._kept = tuple(sorted({o.argument for o in imported.outputs if o.argument is not None}))
        self._outputs = imported.outputs
        self._shared = _shared_results(program, imported)
        # An output is a result, an argument or a literal, given by its number among these; rarely, it is a view of a result.
        self._literals = tuple(o.literal for o in imported.outputs if o.argument is None and o.result is None)
        self._places_given = _places_given(imported, len(program.spec.results), self._kept)
        self._views = tuple(n for n, o in enumerate(imported.outputs) if o.argument is None and o.result is not None and (
            o.permutation is not None or o.expanded is not None or o.complex or self._elsewhere(o.device)))
        self._windows = (*self._views, *_view_results(program, imported)) if kind == "forward" else ()
        self._takes_all = self._places == tuple(range(len(imported.arguments)))
        self.replayed: ReplayedProgram | None = None
        split = split_weights(program.spec, static) if kind == "inference" and program.options.keep_weights else None
        self._run: Callable[[list[Any]], list[torch.Tensor]]
        if split is None:
            self._run = self._overwriting if program.spec.overwritten else self._replays(program, static, replay, lent)
        else:
            static_places = (*static, *split.kept)
            self._run = KeptWeights(program, split, lambda rest: self._replays(rest, static_places, replay, lent))

    def explain(self) -> str:
        """Explanation of the kernels as text; first the program's sizes, where its graph is called with several."""
        return (f"for {self.sizes}: " if self.sizes else "") + str(self.program.explain())

    def boxed(self) -> Callable[[list[Any]], list[Any]]:
        """The function that torch calls. Torch wraps functions and reads the mark from their own attributes, so this is a plain
        function."""

        def run(arguments: list[Any]) -> list[Any]:
            return self(arguments)

        return marked(run)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Runs the part; empties the list."""
        self.calls += 1
        if self._moved:
            return self._call_across(arguments, [arguments[n] for n in self._places])
        argument_outputs = [arguments[n] for n in self._kept]
        if self._takes_all:
            results = self._run(arguments)
        else:
            tensors = [arguments[n] for n in self._places]
            arguments.clear()
            results = self._run(tensors)
        for n in self._shared:
            results[n] = results[n].clone()
        return self._given(results, argument_outputs)

    def _given(self, results: list[Any], argument_outputs: list[Any]) -> list[Any]:
        """The part's outputs from the program's results and the arguments that are outputs."""
        sources = [*results, *argument_outputs, *self._literals]
        outputs = [sources[n] for n in self._places_given]
        for n in self._views:
            outputs[n] = restore(self._outputs[n], results, ())
        for n in self._windows:
            # No output may be a view for autograd: an output without gradient would require one as soon as its base does.
            if outputs[n]._is_view():
                outputs[n] = outputs[n].detach()
        return outputs

    def _overwriting(self, tensors: list[Any]) -> list[torch.Tensor]:
        """A boxed call of a program that reuses the memory of saved values: of copies, where a later backward reads them again.

        Torch has found at the compile that no tensor of the caller's shares their memory (`donated buffers`).
        """
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            return self.program.call_boxed(tensors)
        results: list[torch.Tensor] = self.program(*tensors)
        tensors.clear()
        return results

    def _replays(self, program: Program, static: Sequence[str], replay: str, lent: Collection[int]) -> Callable[[list[Any]], list[Any]]:
        """The program's boxed calls, as replays where they are possible and the part's settings ask for them."""
        always = replay == "always"
        places = [program.spec.inputs.index(name) for name in static]
        if self.kind != "backward":
            # Torch guards on the types of parameters and buffers. Values saved by a forward part have a new address at each direct call.
            program.trust(places)
        if replay == "never" or program.device.type != "cuda" or not may_be_replayed(program, always):
            return program.call_boxed
        # AOTAutograd passes a backward part the values saved by its forward part, and gradients in the layout that it traced.
        trusted = range(len(program.spec.inputs)) if self.kind == "backward" else ()
        self.replayed = ReplayedProgram(program, CudaGraphs(program.device), places, always=always, lent=lent,
                                        copies_kept=self.kind != "forward", trusted=trusted)
        return self.replayed

    def _call_across(self, arguments: list[Any], tensors: list[torch.Tensor]) -> list[Any]:
        """A call with arguments on another device: they are moved, and copied back where the program updates them."""
        device = self.program.device
        names = [self.imported.arguments[n] for n in self._places]
        there = [t.to(device) if n in self._moved else t for n, t in zip(self._places, tensors)]
        results = self._run(list(there))
        for n in self._shared:
            results[n] = results[n].clone()
        updated = set(self.program.spec.updates)
        for n, name, here, moved in zip(self._places, names, tensors, there):
            if n in self._moved and name in updated:
                here.copy_(moved)
        argument_outputs = [arguments[n] for n in self._kept]
        arguments.clear()
        return self._given(results, argument_outputs)

    def _elsewhere(self, device: str) -> bool:
        return bool(device) and device != self.program.device.type


def _places_given(imported: Imported, num_results: int, argument_outputs: Sequence[int]) -> tuple[int, ...]:
    """The place of each output among the program's results, `argument_outputs` and the literals, in this order."""
    place_of_kept = {n: num_results + i for i, n in enumerate(argument_outputs)}
    sources, literal = [], num_results + len(argument_outputs)
    for output in imported.outputs:
        if output.argument is not None:
            sources.append(place_of_kept[output.argument])
        elif output.result is not None:
            sources.append(output.result)
        else:
            sources.append(literal)
            literal += 1
    return tuple(sources)


def _view_results(program: Program, imported: Imported) -> tuple[int, ...]:
    """Outputs that may be views: results in another value's memory, and those of library calls."""
    spec = program.spec
    computed = {name for step in spec.steps if isinstance(step, LibraryStep) for name in step.results}
    computed |= {v.name for v in spec.values if v.role == "view"}
    names = [None if o.argument is not None or o.result is None else spec.results[o.result] for o in imported.outputs]
    return tuple(n for n, name in enumerate(names) if name in computed)


def _shared_results(program: Program, imported: Imported) -> tuple[int, ...]:
    """Results that must be copied: the program returns them as windows onto an input, or onto the memory of another result."""
    value_by_name = {v.name: v for v in program.spec.values}
    memory_of = {o.result: o.memory for o in imported.outputs if o.result is not None}
    owner: dict[str, int] = {}
    shared: list[int] = []
    for n, name in enumerate(program.spec.results):
        value = value_by_name[name]
        while value.base:
            value = value_by_name[value.base]
        mine = memory_of.get(n, -1)
        if value.role == "input" or owner.setdefault(value.name, mine) != mine:
            shared.append(n)
    return tuple(shared)
