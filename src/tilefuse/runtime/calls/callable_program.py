"""The protocol of a callable program: the part of `runtime.program.Program` that recording, timing and replaying need."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from tilefuse.runtime.calls.arguments import Argument
from tilefuse.runtime.calls.frame import Frame, Operation
from tilefuse.runtime.spec import ProgramSpec

# Runs one operation of a step: (number of the step, operation) -> the operation's code.
AroundStep = Callable[[int, Operation], int | None]


class CallableProgram(Protocol):
    """A program whose calls run on frames. `arguments`: the compiled form of each input; `device`: where kernels run."""

    spec: ProgramSpec
    device: torch.device
    arguments: tuple[Argument, ...]

    def __call__(self, *tensors: Any, **named: Any) -> list[torch.Tensor]:
        """Runs the program; the results in order."""

    def call_boxed(self, tensors: list[Any]) -> list[torch.Tensor]:
        """A call that empties `tensors`."""

    def new_frame(self, stream: int) -> Frame:
        """A frame for `stream` that no call has yet."""

    def run_frame(self, frame: Frame, tensors: Sequence[Any], around: AroundStep | None = None, consume: bool = False
                  ) -> list[torch.Tensor]:
        """One call on a frame of the current stream, each operation of a step run by `around` where it is given."""

    @property
    def library_operators(self) -> tuple[str, ...]:
        """Names of the library operators that the program calls."""
