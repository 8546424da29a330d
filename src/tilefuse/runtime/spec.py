"""A compiled program as plain data: buffers, kernels, steps. It serialises to JSON; `program.py` runs it."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from tilefuse.base.errors import NameLookupError, nearest
from tilefuse.target.launch import Launch, Parameter
from tilefuse.target.tensor_map import MapParameter

Attribute = Union[int, float, bool, str, None, tuple["Attribute", ...]]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the program. Units: extents and strides in elements.

    role: "input", "constant", "intermediate", "result", or "view" (no memory of its own: `base`, `offset`, `strides`).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    role: str
    base: str = ""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class KernelCode:
    """One kernel's source and launch. `nodes` are the graph nodes it computes; `limit_us` the time its bytes need.

    target: "cuda" or "host"; arch: e.g. "sm_90a". `entry` is the symbol's name. `flags` are compiler flags besides the usual
    ones (part of the kernel's cache key). `one_structure`: on a GPU the pointers are the fields of a single argument. `names` are the
    identifiers in the source that stand for values: two sources that differ in them alone are one kernel. `maps` are tensor maps, which
    follow the pointers on a GPU; host code needs none. Machine code does not depend on their extents. `tasks` are (stage, its tasks), in
    order, of a kernel that records its tasks (`task_records.py`).
    """

    name: str
    entry: str
    source: str
    target: str
    arch: str
    launch: Launch
    parameters: tuple[Parameter, ...]
    nodes: tuple[str, ...] = ()
    bytes_read: int = 0
    bytes_written: int = 0
    limit_us: float = 0.0
    flags: tuple[str, ...] = ()
    one_structure: bool = False
    names: tuple[str, ...] = ()
    maps: tuple[MapParameter, ...] = ()
    tasks: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class KernelStep:
    """Launches kernel number `kernel` of the program; `arguments` are value names (workspace and counter parameters: "")."""

    kernel: int
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LibraryStep:
    """Calls a library operator of `runtime.calls.library` on operand values; each result is stored to a value ("" = unused)."""

    operator: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    attributes: tuple[tuple[str, Attribute], ...] = ()


@dataclass(frozen=True, slots=True)
class CopyStep:
    """target = source, element by element (used to bring an update back into an input's storage)."""

    source: str
    target: str


Step = Union[KernelStep, LibraryStep, CopyStep]


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """A whole program. `inputs` and `results` are value names in call order (constants are not among the inputs).

    Constants' data is stored beside the spec (name -> array). `updates` are inputs that the program writes. Titles are the source's names
    of inputs and results, in the same order, where they are no value names ("layer/out"); empty where the names are the same.
    weight_titles: (name, the source's name) of constants with another name there.
    given_up: inputs that only the call references (saved by a training step's forward part); their memory is free after their last use.
    overwritten: those inputs whose memory later values take over. A call that is not boxed copies them first.
    """

    name: str
    device: str
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    values: tuple[Value, ...]
    kernels: tuple[KernelCode, ...]
    steps: tuple[Step, ...]
    updates: tuple[str, ...] = ()
    plan_text: str = ""
    explanation: str = ""
    input_titles: tuple[str, ...] = ()
    result_titles: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    overwritten: tuple[str, ...] = ()
    weight_titles: tuple[tuple[str, str], ...] = ()
    # Planning time: the only field that differs from run to run, so it is neither compared nor saved.
    plan_seconds: float | None = field(default=None, compare=False)
    # Operator, module and source place of the nodes given to the compiler, where the explanation comes from an equal graph compiled
    # earlier.
    places: Mapping[str, tuple[str, str, str]] = field(default_factory=dict, compare=False)

    @property
    def told_inputs(self) -> tuple[str, ...]:
        """Inputs by the source's names, in call order."""
        return self.input_titles or self.inputs

    @property
    def told_results(self) -> tuple[str, ...]:
        """Results as the source calls them, in order."""
        return self.result_titles or self.results

    def source(self, kernel: str | None = None) -> str:
        """Source text of one kernel, or of all. Raises: NameLookupError for an unknown kernel."""
        if kernel is None:
            return "\n".join(k.source for k in self.kernels)
        for code in self.kernels:
            if code.name == kernel:
                return code.source
        raise NameLookupError(f"program {self.name} has no kernel {kernel!r}", hint=nearest(kernel, [k.name for k in self.kernels]))
