"""A benchmark case: a torch function, its inputs, what it must move, and how to judge its result."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

Tensors = tuple[torch.Tensor, ...]
Inputs = Callable[[torch.device, torch.Generator], Sequence[torch.Tensor]]
# "tf32" is a type of products: f32 in memory, 10 stored bits of mantissa on the matrix unit.
DTYPES = {"f64": torch.float64, "f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Sample(Protocol):
    """Judges results by some of their rows (`row_sample.RowSample`)."""

    def cut_inputs(self, inputs: Sequence[torch.Tensor]) -> Tensors:
        """The inputs that the reference needs."""

    def error(self, inputs: Sequence[torch.Tensor], outputs: Tensors, reference: Tensors) -> float:
        """Error of whole results on whole inputs against the reference of the cut inputs."""


@dataclass(frozen=True)
class Case:
    """One pattern at one size.

    name       family/dtype/size, unique
    function   the pattern in torch, without side effects
    inputs     makes one set of inputs on a device from a seeded generator
    eager      what eager runs where torch has a fused operator for the pattern (None: `function`)
    jax        the pattern in jax.numpy (None: the peer is left out)
    rank       cases of higher rank run later
    min_of_limit  share of the copy bandwidth asked of tilefuse; the issue's targets
    check      judges a result by itself where no reference exists (random operators); returns an error measure
    flops      operations that must be done at the rate of a product in `dtype`; 0 where the bytes alone decide
    min_speedup  ratio to torch.compile asked of tilefuse (None: none is)
    extra_bytes  that must move besides inputs and results: a matrix that no chip holds until it is used again
    script     what tilefuse compiles instead of `function`: a BLAS script
    sample     judges rows of the results by themselves, of large ones some (None: `relative_error` of everything)
    bare       the pattern's products alone in torch, timed beside tilefuse: what they take without neighbours (None: is not timed)
    bare_operands  operands of `bare` from the inputs (None: the inputs)
    """

    name: str
    family: str
    dtype: str
    function: Callable[..., object]
    inputs: Inputs
    eager: Callable[..., object] | None = None
    jax: Callable[..., object] | None = None
    rank: int = 0
    min_of_limit: float = 0.9
    check: Callable[[Sequence[torch.Tensor], Tensors], float] | None = None
    tags: tuple[str, ...] = field(default=())
    flops: int = 0
    min_speedup: float | None = None
    script: str = ""
    extra_bytes: int = 0
    sample: Sample | None = None
    bare: Callable[..., object] | None = None
    bare_operands: Callable[[Sequence[torch.Tensor]], Tensors] | None = None


def as_tuple(result: object) -> Tensors:
    """The tensors of a result: one, or a tuple or list of them."""
    if isinstance(result, torch.Tensor):
        return (result,)
    return tuple(t for t in result if isinstance(t, torch.Tensor))  # type: ignore[union-attr]


def ideal_bytes(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """Bytes that must move: every input read once, every output written once."""
    return sum(t.numel() * t.element_size() for t in (*inputs, *outputs))


def relative_error(outputs: Tensors, reference: Tensors) -> float:
    """Largest ||out - ref|| / ||ref|| over the results; integer results count the share of elements that differ.

    NaN or infinite where the reference is finite gives infinity.
    """
    if len(outputs) != len(reference):
        return float("inf")
    worst = 0.0
    for out, ref in zip(outputs, reference):
        if out.shape != ref.shape:
            return float("inf")
        if not ref.dtype.is_floating_point:
            worst = max(worst, (out.to(ref.device) != ref).double().mean().item())
            continue
        difference = (out.to(ref.device).double() - ref.double()).norm().item()
        scale = ref.double().norm().item()
        error = difference / scale if scale else difference
        worst = max(worst, error) if error == error else float("inf")
    return worst


def allowed_error(dtype: str) -> float:
    """Relative error in the Euclidean norm that rounding the results and the inputs' sums can explain.

    Source: eight units in the last place of the type, plus 64 of the f32 accumulator (Higham 2002, section 3.1: the
    typical growth of a sum of n terms is the root of n, and n here is at most 2^18 within one lane's partial sums).
    """
    unit = {"f64": 2.0**-53, "f32": 2.0**-24, "tf32": 2.0**-11, "f16": 2.0**-11, "bf16": 2.0**-8}[dtype]
    return 8 * unit + 512 * (2.0**-53 if dtype == "f64" else 2.0**-24)


def reference_of(case: Case, inputs: Sequence[torch.Tensor]) -> Tensors:
    """The results in double precision, from the same inputs; of a case with a sample, its rows only."""
    chosen = inputs if case.sample is None else case.sample.cut_inputs(inputs)
    wide = [t.double() if t.dtype.is_floating_point else t for t in chosen]
    with torch.no_grad():
        return as_tuple(case.function(*wide))
