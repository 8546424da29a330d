"""The code that one tree generates for a case, for a device that need not be present.

The suites run as on the host, but the compiler takes the host for the other device, and a case ends where its program would be built. All
from passes to sources is as on that device; only torch's trace is the host's. `one_side.py` loads this file beside another tree's package.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


class Planned(Exception):
    """A program is complete up to its machine code; nothing has to run."""

    def __init__(self, spec: Any) -> None:
        super().__init__(spec.name)
        self.spec = spec


@contextmanager
def planned_for(device_name: str) -> Iterator[None]:
    """Inside, programs for the host are planned for a device of the catalog, and building one raises `Planned`."""
    from tilefuse.driver import compile as whole
    from tilefuse.runtime.program import Program
    from tilefuse.target.catalog import device_by_name

    device = device_by_name(device_name)

    def end(_self: Any, spec: Any, *_arguments: Any, **_named: Any) -> None:
        raise Planned(spec)

    def no_early_compiles(*_arguments: Any) -> AbstractContextManager[None]:
        return nullcontext()

    with replaced(Program, "__init__", end), replaced(whole, "host_device", lambda: device), \
            replaced(whole, "compiled_early", no_early_compiles):
        yield


@contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, an attribute of a module or class has another value."""
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


def spec_of(run: Callable[[], object]) -> Any:
    """The first program that a function would build, inside `planned_for`. Raises: RuntimeError where it builds none."""
    try:
        run()
    except Planned as ended:
        return ended.spec
    raise RuntimeError("the case built no program")


def empty_inputs(make: Callable[[torch.device, torch.Generator], Sequence[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """Inputs like those of a case, on the host and without data: only their types count. Large ones take no memory until they are written.

    A case whose inputs depend on data gets them as they are.
    """
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

    host, generator = torch.device("cpu"), torch.Generator().manual_seed(0)
    try:
        with FakeTensorMode():
            types = [(t.shape, t.stride(), t.dtype) for t in make(host, generator)]
    except (DataDependentOutputException, DynamicOutputShapeException):
        return tuple(make(host, generator))
    return tuple(torch.empty_strided(shape, strides, dtype=dtype) for shape, strides, dtype in types)
