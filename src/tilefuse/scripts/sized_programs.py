"""Programs of scripts whose sizes calls give: kernels of routines for each case of sizes, arguments of their launches, and the workspace.

    case          sizes up to      indices    rows of matrices
    aligned       2^28 words       32 bits    begin at 16 bytes
    any           2^28 words       32 bits    anywhere
    aligned_wide, any_wide         64 bits

Every case computes the same; a call takes the first whose limits its sizes keep. Kernels from meanings (templates) have fixed sizes: their
tiles, walks and guards are chosen for the sizes that they are planned for.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilefuse.base.errors import InternalError, UnsupportedError
from tilefuse.base.options import Options
from tilefuse.ir.counts import Operand, count_value, times
from tilefuse.kernel.ir import Kernel
from tilefuse.scripts.compose.compose import compose_routines
from tilefuse.scripts.language.elementary import CallGraph
from tilefuse.scripts.programs import Choice, ScriptSearch
from tilefuse.scripts.routine_programs import OWN_ROLES, moved_bytes, starting
from tilefuse.scripts.schedule.routines import LARGEST_INT32, FusedRoutines
from tilefuse.scripts.schedule.sizes import CASES, Case, expected_sizes, indexed_words, size_names
from tilefuse.target.device import DeviceSpec


@dataclass(frozen=True)
class Scratch:
    """Words of the workspace, in use from step `first` to step `last`. counter: zero before a program runs, and zero again after it."""

    name: str
    num_bytes: Operand
    first: int
    last: int
    counter: bool


@dataclass(frozen=True)
class Launched:
    """One kernel of a program: its forms by case, and for each buffer the name of its variable or scratch."""

    kernels: tuple[Kernel, ...]
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class SizedProgram:
    """A script's program for sizes that calls give.

    sizes     names of the sizes, in the order of arguments
    expected  sizes that the program was chosen for
    limits    for each case (description, count, largest count), the same rows in all cases
    strides   (matrix, stride, words): rows begin at 16 bytes if the stride is a multiple of `words`
    """

    graph: CallGraph
    sizes: tuple[str, ...]
    expected: dict[str, int]
    cases: tuple[Case, ...]
    limits: tuple[tuple[tuple[str, Operand, int], ...], ...]
    strides: tuple[tuple[str, str, int], ...]
    steps: tuple[Launched, ...]
    scratch: tuple[Scratch, ...]


def sized_program(search: ScriptSearch, choice: Choice, device: DeviceSpec, options: Options) -> SizedProgram:
    """The program of a choice among routines, over a graph with named sizes.

    Raises: UnsupportedError if a kernel is compiled from meanings, with the calls that it computes.
    """
    graph = search.routine_graph
    combination = choice.combination
    if combination is None:
        raise UnsupportedError(f"the kernels of {search.graph.name} are compiled from meanings, for one set of sizes")
    fusions: list[FusedRoutines] = []
    for part in combination.parts:
        if not isinstance(part.content, FusedRoutines):
            names = ", ".join(dict.fromkeys(search.graph.calls[c].function.name for c in part.calls))
            raise UnsupportedError(f"the kernels of {names} are compiled from meanings, for one set of sizes")
        fusions.append(part.content)
    return _Builder(graph, device, options).program(fusions)


class _Builder:
    """Builds one program."""

    def __init__(self, graph: CallGraph, device: DeviceSpec, options: Options) -> None:
        self.graph, self.device, self.options = graph, device, options
        self.expected = expected_sizes(graph)
        matrices = [v for v in graph.variables.values() if len(v.sizes) == 2]
        across = ((v, s) for v in matrices for s in v.named_strides if isinstance(s, str))
        self.strides = tuple((v.name, s, 16 // v.dtype.itemsize) for v, s in across)
        # Without matrices the aligned cases equal the others.
        self.cases = tuple(c for c in CASES if self.strides or not c.aligned)

    def program(self, fusions: Sequence[FusedRoutines]) -> SizedProgram:
        """The program of all fusions, in order."""
        steps: list[Launched] = []
        scratch: list[Scratch] = []
        limits: list[list[tuple[str, Operand, int]]] = [[] for _ in self.cases]
        for rows, case in zip(limits, self.cases, strict=True):
            rows += [(name, name, case.most_extent) for name in size_names(self.graph)]
        for fused in fusions:
            for limit, case in zip(limits, self.cases, strict=True):
                limit += [row for row in self._indexed(fused, case) if row not in limit]
            first = len(steps)
            launched = self._kernels(fused)
            for forms in zip(*launched, strict=True):
                arguments = []
                for b in forms[0].parameters:
                    is_scratch = b.name not in self.graph.variables
                    arguments.append(f"{fused.name}_{b.name}" if is_scratch else b.name)
                    if is_scratch:
                        self._scratch(scratch, arguments[-1], forms, b.name, len(steps))
                steps.append(Launched(forms, tuple(arguments)))
            for limit, case in zip(limits, self.cases, strict=True):
                limit += self._launched(fused, steps[first:], case)
        scratch += self._intermediates(steps)
        names = size_names(self.graph)
        return SizedProgram(self.graph, names, {n: self.expected[n] for n in names}, self.cases, tuple(map(tuple, limits)), self.strides,
                            tuple(steps), tuple(sorted(scratch, key=lambda s: not s.counter)))

    def _kernels(self, fused: FusedRoutines) -> list[list[Kernel]]:
        """The kernels of a fusion for each case, each under its own name."""
        kernels_by_case = []
        for case in self.cases:
            sized = None if fused.sized is None else replace(fused.sized, case=case)
            kernels = []
            for kernel in compose_routines(replace(fused, sized=sized)):
                blocks = self._expected_blocks(kernel)
                expected = replace(kernel, launch=replace(kernel.launch, num_blocks=blocks))
                moved = moved_bytes(kernel, fused, self.expected)
                started = starting(expected, moved, self.device, self.options)
                launch = replace(started.launch, num_blocks=kernel.launch.num_blocks)
                blocks_count = kernel.blocks if kernel.blocks is not None else kernel.launch.num_blocks
                kernels.append(replace(started, name=f"{kernel.name}_{case.name}", launch=launch, blocks=blocks_count))
            kernels_by_case.append(kernels)
        return kernels_by_case

    def _expected_blocks(self, kernel: Kernel) -> int:
        return kernel.launch.num_blocks if kernel.blocks is None else count_value(kernel.blocks, self.expected)

    def _scratch(self, scratch: list[Scratch], name: str, forms: Sequence[Kernel], buffer: str, step: int) -> None:
        """Adds a kernel's buffer to the workspace; it has the same words in all cases."""
        counts = {(b.role, _bytes(b.num_elements if b.count is None else b.count, b.dtype.itemsize))
                  for k in forms for b in k.parameters if b.name == buffer}
        if len(counts) > 1:
            raise InternalError(f"kernels of {forms[0].name} need different numbers of words for different sizes; please report")
        ((role, num_bytes),) = counts
        place = next((n for n, s in enumerate(scratch) if s.name == name), None)
        if place is None:
            scratch.append(Scratch(name, num_bytes, step, step, role == "counter"))
        else:
            scratch[place] = replace(scratch[place], last=step)
        assert role in (*OWN_ROLES, "in", "out")

    def _intermediates(self, steps: Sequence[Launched]) -> list[Scratch]:
        """Variables that are neither arguments nor results."""
        outer = {*self.graph.inputs, *self.graph.outputs}
        intermediates: dict[str, Scratch] = {}
        for n, step in enumerate(steps):
            for name, b in zip(step.arguments, step.kernels[0].parameters, strict=True):
                if name in self.graph.variables and name not in outer:
                    num_bytes = _bytes(b.num_elements if b.count is None else b.count, b.dtype.itemsize)
                    first = intermediates.get(name)
                    intermediates[name] = Scratch(name, num_bytes, n, n, False) if first is None else replace(first, last=n)
        return list(intermediates.values())

    def _indexed(self, fused: FusedRoutines, case: Case) -> list[tuple[str, Operand, int]]:
        """Largest offsets that routines of the fusion compute, which must fit their indices."""
        tiles = {size: fused.tiles[d] for d, size in fused.grid.named.items()}
        names = dict.fromkeys(n for k in range(len(fused.decision.calls)) for _, n, _ in fused.call(k).operands)
        variables = [self.graph.variables[n] for n in names]
        return [(f"words of {v.name}", indexed_words(v, tiles), case.most_indexed) for v in variables if v.sizes]

    @staticmethod
    def _launched(fused: FusedRoutines, steps: Sequence[Launched], case: Case) -> list[tuple[str, Operand, int]]:
        """Limits on the blocks of the fusion's kernels and on partial values in the workspace."""
        limits: list[tuple[str, Operand, int]] = []
        for step in steps:
            kernel = step.kernels[0]
            if kernel.blocks is not None and not isinstance(kernel.blocks, int):
                limits.append((f"blocks of {kernel.name.removesuffix('_aligned').removesuffix('_any')}", kernel.blocks, LARGEST_INT32))
            for b in kernel.parameters:
                if b.role in ("workspace", "out") and b.count is not None and b.name.endswith("_blocks"):
                    limits.append((f"partial values of {b.origin}", b.count, case.most_handed))
        return limits


def _bytes(count: Operand, itemsize: int) -> Operand:
    return times(count, itemsize)
