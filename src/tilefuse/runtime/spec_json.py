"""A program's spec as JSON and back. Every tuple is an array; floats that JSON lacks are written as {"float": "nan"}."""
from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from tilefuse.base.errors import UserError
from tilefuse.runtime.spec import Attribute, CopyStep, KernelCode, KernelStep, LibraryStep, ProgramSpec, Step, Value
from tilefuse.target.launch import Launch, Parameter
from tilefuse.target.tensor_map import MapParameter

FORMAT = 1
_STEPS: dict[str, type[KernelStep] | type[LibraryStep] | type[CopyStep]] = {"kernel": KernelStep, "library": LibraryStep, "copy": CopyStep}
_STEP_NAMES = {kind: name for name, kind in _STEPS.items()}


def spec_to_json(spec: ProgramSpec, indent: int | None = 1) -> str:
    """The spec as JSON text; `spec_from_json` gives an equal spec back. indent: None is a text in one line, made several times faster."""
    record = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec) if f.compare}
    record["values"] = [_fields(v) for v in spec.values]
    record["kernels"] = [_kernel_record(k) for k in spec.kernels]
    record["steps"] = [_step_record(s) for s in spec.steps]
    return json.dumps({"format": FORMAT, **record}, indent=indent, allow_nan=False)


def _kernel_record(k: KernelCode) -> dict[str, Any]:
    rows = {"parameters": [_fields(p) for p in k.parameters], "maps": [_fields(m) for m in k.maps]}
    return _fields(k) | {"launch": _fields(k.launch), **rows}


def _fields(record: Value | KernelCode | Launch | Parameter | MapParameter) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}


def _step_record(step: Step) -> dict[str, Any]:
    record = {f.name: getattr(step, f.name) for f in dataclasses.fields(step)}
    if isinstance(step, LibraryStep):
        record["attributes"] = [[name, _encode(value)] for name, value in step.attributes]
    return {"step": _STEP_NAMES[type(step)], **record}


def _encode(value: Attribute) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return [_encode(v) for v in value] if isinstance(value, tuple) else value


def _decode(value: Any) -> Any:
    match value:
        case {"float": text}:
            return float(text)
        case list():
            return tuple(_decode(v) for v in value)
        case _:
            return value


def spec_from_json(text: str) -> ProgramSpec:
    """The spec of a JSON text. Raises: UserError when it is none, or of another format."""
    try:
        record = json.loads(text)
        if record.pop("format") != FORMAT:
            raise UserError("the program was saved by another version of tilefuse", hint="compile and save it again")
        record["values"] = tuple(Value(**_tuples(v)) for v in record["values"])
        record["kernels"] = tuple(_kernel(k) for k in record["kernels"])
        record["steps"] = tuple(_step(s) for s in record["steps"])
        return ProgramSpec(**_tuples(record))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"not a saved program: {error}") from error


def _tuples(record: dict[str, Any]) -> dict[str, Any]:
    return {name: _decode(value) for name, value in record.items()}


def _kernel(record: dict[str, Any]) -> KernelCode:
    launch = Launch(**record.pop("launch"))
    parameters = tuple(Parameter(**p) for p in record.pop("parameters"))
    maps = tuple(MapParameter(**_tuples(m)) for m in record.pop("maps", ()))
    return KernelCode(launch=launch, parameters=parameters, maps=maps, **_tuples(record))


def _step(record: dict[str, Any]) -> Step:
    return _STEPS[record.pop("step")](**_tuples(record))
