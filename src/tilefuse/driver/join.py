"""Several programs as one: results of one are inputs of the next, without leaving the device."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilefuse.base.errors import InternalError
from tilefuse.runtime.spec import CopyStep, KernelCode, KernelStep, LibraryStep, ProgramSpec, Step, Value


@dataclass(frozen=True)
class Joint:
    """One program of a sequence. `names`: its inputs and results -> their names in the sequence."""

    spec: ProgramSpec
    names: Mapping[str, str]


def joined_spec(name: str, device: str, parts: Sequence[Joint], inputs: Sequence[Value], results: Sequence[str]) -> ProgramSpec:
    """The program that runs `parts` in order.

    inputs: values that calls pass. results: the sequence's names of the results of calls; each is an input or the result of a part. Values
    passed between parts become intermediates, equal kernels are stored once.
    Raises: InternalError for a value that no part before its reader computes, or that two compute.
    """
    values: dict[str, Value] = {v.name: replace(v, role="input") for v in inputs}
    kernels: dict[KernelCode, int] = {}
    steps: list[Step] = []
    for number, part in enumerate(parts):
        called = {v.name: part.names.get(v.name, f"part{number}_{v.name}") for v in part.spec.values}
        for value in part.spec.values:
            new = called[value.name]
            match value.role:
                case "input":
                    if new not in values:
                        raise InternalError(f"part {number} of {name} reads {new}, which nothing before it computes")
                    continue
                case "result":
                    if new in values:
                        raise InternalError(f"two parts of {name} compute {new}")
                    role = "result" if new in results else "intermediate"
                    values[new] = replace(value, name=new, role=role)
                case _:
                    values[new] = replace(value, name=new, base=called.get(value.base, ""))
        numbers = [kernels.setdefault(code, len(kernels)) for code in part.spec.kernels]
        steps += [_renamed(step, called, numbers) for step in part.spec.steps]
    missing = [r for r in results if r not in values]
    if missing:
        raise InternalError(f"no part of {name} computes {', '.join(missing)}")
    return ProgramSpec(name, device, tuple(v.name for v in inputs), tuple(results), tuple(values.values()), tuple(kernels), tuple(steps))


def _renamed(step: Step, called: Mapping[str, str], kernels: Sequence[int]) -> Step:
    match step:
        case KernelStep(kernel, arguments):
            return KernelStep(kernels[kernel], tuple(called[a] if a else "" for a in arguments))
        case LibraryStep(operator, operands, results, attributes):
            return LibraryStep(operator, tuple(called[a] for a in operands), tuple(called[a] if a else "" for a in results), attributes)
        case CopyStep(source, target):
            return CopyStep(called[source], called[target])
