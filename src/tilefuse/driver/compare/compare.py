"""A compiled model against another execution of the same model: `tilefuse.compare`, and `tilefuse run --compare`.

    outputs of the program -> each against the peer's (compare_values) -> outside? the same model in f64 says whose error is larger
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tilefuse.base.errors import UserError
from tilefuse.driver.compare.fault import Fault, find_fault
from tilefuse.driver.compare.peers import MEANING_OF_PEER, Run, Subject, flat_tensors, kind_of, peer, reference
from tilefuse.driver.compare.values import AS_EXACT, BY_DTYPE, DIFFERS, Reference, Tolerance, ValueReport, allows_tf32, compare_values
from tilefuse.driver.compile import compile_model
from tilefuse.driver.onnx.model_file import opened
from tilefuse.driver.torch.arguments import as_tensors


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every output of a program against another execution's. `reference`: how the outputs in f64 were computed, "" if they were not
    needed."""

    model: str
    device: str
    against: str
    outputs: tuple[ValueReport, ...]
    reference: str = ""
    missing: str = ""

    @property
    def agrees(self) -> bool:
        """Whether no output differs, and none is missing."""
        return not self.missing and all(o.agrees for o in self.outputs)

    @property
    def first(self) -> ValueReport | None:
        """The first output that differs."""
        return next((o for o in self.outputs if not o.agrees), None)

    def as_data(self) -> dict[str, Any]:
        """The comparison as plain data."""
        return {"model": self.model, "device": self.device, "against": self.against, "agrees": self.agrees, "reference": self.reference,
                "missing": self.missing, "outputs": [o.as_data() for o in self.outputs]}

    def text(self) -> str:
        """One paragraph an output, the verdict first."""
        num = sum(o.agrees for o in self.outputs)
        head = f"against {self.against} on {self.device}: {num} of {len(self.outputs)} outputs agree"
        lines = [head + (f"; {self.missing}" if self.missing else "")]
        for output in self.outputs:
            lines += report_lines(output, self.against)
        if self.reference:
            lines.append(f"reference: {self.reference}")
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return self.text()


def report_lines(found: ValueReport, against: str) -> list[str]:
    """A compared value in words: verdict and largest differences, then its worst element where they differ."""
    head = f"  {found.name}: {found.dtype}{list(found.shape)}  {found.verdict.upper() if found.verdict == DIFFERS else found.verdict}"
    if found.worst is None:
        return [head + (f": {found.reason}" if found.reason else "")]
    share = f"{found.num_outside} of {found.num_elements} outside rtol {found.rtol:.2g}, atol {found.atol:.2g}"
    lines = [f"{head}: max abs {found.max_abs:.3g}, max rel {found.max_rel:.3g}; {share}"]
    if found.verdict in (DIFFERS, AS_EXACT):
        worst_text = f"ours {found.worst.ours:.9g}, {against} {found.worst.theirs:.9g}"
        worst_text += f", f64 {found.worst.reference:.9g}" if found.worst.reference is not None else ""
        lines.append(f"    worst at [{', '.join(map(str, found.worst.index))}]: {worst_text}")
        lines += [f"    {found.reason}"] if found.reason else []
    return lines


def compare_outputs(model: str, names: Sequence[str], ours: Sequence[torch.Tensor], against: str, theirs: Sequence[torch.Tensor],
                    subject: Subject | None = None, tolerance: Tolerance = BY_DTYPE) -> Comparison:
    """The outputs of one run against those of another. subject: the model for the reference, where some output is outside the tolerance."""
    tolerance = replace(tolerance, tf32=subject.tf32) if subject is not None else tolerance
    missing = "" if len(ours) == len(theirs) else f"{len(ours)} outputs against {len(theirs)}"
    reports = [compare_values(n, a, b, tolerance) for n, a, b in zip(names, ours, theirs)]
    reference_text = ""
    if subject is not None and not all(r.agrees for r in reports):
        exact, independent, reference_text = reference(subject)
        if exact is not None and len(exact) == len(ours):
            # Results that the user passed are the expected ones, right or wrong.
            speaks = independent and against in MEANING_OF_PEER
            reports = [r if r.agrees else compare_values(n, a, b, tolerance, Reference(e, speaks))
                       for r, n, a, b, e in zip(reports, names, ours, theirs, exact)]
    device = str(ours[0].device) if ours else "host"
    return Comparison(model, "host" if device == "cpu" else device, against, tuple(reports), reference_text, missing)


def compare_with(model: str, names: Sequence[str], ours: Sequence[torch.Tensor], against: str, run: Run, subject: Subject,
                 tolerance: Tolerance = BY_DTYPE) -> Comparison:
    """As `compare_outputs`, with the peer's outputs from one run. Raises: errors of the peer."""
    return compare_outputs(model, names, ours, against, run(), subject, tolerance)


def fault_of_model(model: Any, example_inputs: Sequence[Any] | None, *, device: Any, shapes: Mapping[str, Sequence[int]] | None,
                   example_kwargs: Mapping[str, Any] | None, rtol: float | None, atol: float | None, seconds: float,
                   **options: Any) -> Fault:
    """See `tilefuse.bisect`. Raises: as `compare_model`."""
    _, subject = _compiled(model, example_inputs, device, shapes, example_kwargs, options)
    return find_fault(subject, Tolerance(rtol, atol), seconds)


def _compiled(model: Any, example_inputs: Sequence[Any] | None, device: Any, shapes: Mapping[str, Sequence[int]] | None,
              example_kwargs: Mapping[str, Any] | None, options: Mapping[str, Any]) -> tuple[Any, Subject]:
    """A model compiled for some inputs, with these on its device. Raises: UserError without inputs."""
    if example_inputs is None and not example_kwargs:
        raise UserError("outputs are compared for given inputs, and none were given", hint="tilefuse.compare(model, (x, y))")
    model = opened(model)
    kind = kind_of(model)
    listed = list(example_inputs) if isinstance(example_inputs, list | tuple) else [] if example_inputs is None else [example_inputs]
    program = compile_model(model, listed, device=device, shapes=shapes, example_kwargs=example_kwargs, **options)
    place = getattr(program, "program", program).device
    placed, named = pytree.tree_map_only(torch.Tensor, lambda t: t.to(place), (as_tensors(listed), as_tensors(dict(example_kwargs or {}))))
    if kind != "torch" and named:
        placed, named = list(program.in_order(tuple(placed), named)), {}
    return program, subject_of(kind, model, program, placed, named, shapes, options)


def compare_model(model: Any, example_inputs: Sequence[Any] | None, against: Any, *, device: Any,
                  shapes: Mapping[str, Sequence[int]] | None, example_kwargs: Mapping[str, Any] | None, rtol: float | None,
                  atol: float | None, **options: Any) -> Comparison:
    """See `tilefuse.compare`. Raises: UserError without inputs; as compiling and running the model."""
    program, subject = _compiled(model, example_inputs, device, shapes, example_kwargs, options)
    with torch.no_grad():
        fresh, by_name = subject.fresh()
        ours = flat_tensors(program(*fresh, **by_name))
    names = result_names(program, len(ours))
    if isinstance(against, str):
        run, against_text = peer(against, subject), against
    else:
        arguments, named = subject.fresh()
        expected = flat_tensors(against(*arguments, **named) if callable(against) else against)
        run, against_text = (lambda: expected), "the given results"
    return compare_with(program.spec.name, names, ours, against_text, run, subject, Tolerance(rtol, atol))


def result_names(program: Any, count: int) -> list[str]:
    """Names of a program's outputs, by their keys in its results if they have any; numbered where two names are equal."""
    names: list[str] = []
    by_key = getattr(program, "output_names", [])
    known = by_key if len(by_key) == count else list(program.spec.told_results)
    for number in range(count):
        name = known[number] if number < len(known) else f"result{number}"
        names.append(name if name not in names else f"{name}.{number}")
    return names


def subject_of(kind: str, model: Any, program: Any, arguments: Sequence[Any], named: Mapping[str, Any],
               shapes: Mapping[str, Sequence[int]] | None = None, options: Mapping[str, Any] | None = None) -> Subject:
    """The compared model, its compiled form, and the arguments for a call of both."""
    leaves = getattr(program, "leaves", None)
    tensors = list(leaves(arguments, named)) if leaves is not None else list(arguments)
    spec = program.spec
    device = getattr(program, "program", program).device
    return Subject(kind, model, arguments, named, dict(zip(spec.inputs, tensors)), dict(zip(spec.told_inputs, tensors)), device, shapes,
                   dict(options or {}), allows_tf32(device, {s.operator for s in spec.steps if hasattr(s, "operator")}))
