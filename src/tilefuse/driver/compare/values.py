"""Compares two results of one computation element by element: which elements differ, by how much, and which of the two is nearer to f64.

The rule, in the order in which it is applied:

1. Integers and booleans must be equal. NaN must stand where NaN stands, and infinities where they stand, with their sign.
2. |ours - theirs| <= atol + rtol * |theirs| for every other element. By default `rtol` is u^(2/3), u the unit roundoff of the data type:
   rounding may cost a third of a result's digits. `atol` is rtol times the root mean square of theirs, so that elements near zero are held
   against the size of the whole result.
3. Where an independent reference in f64 is at hand, elements outside may still pass: where ours is nearer to the reference than
   `FACTOR` times the largest error of theirs. Then the two differ by rounding, and it is theirs that is as far off.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tilefuse.runtime.calls.library import COMPLEX_DTYPES, DTYPE_NAMES

# Unit roundoff: half the distance from 1 to the next number.
UNIT_ROUNDOFF: Mapping[torch.dtype, float] = {
    torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e5m2: 2.0**-3}
TF32_UNIT = 2.0**-11
LOST_DIGITS = 2.0 / 3.0
# Two bits: sums of another order, and products of another blocking, differ by that much in their largest error.
FACTOR = 4.0

EQUAL, WITHIN, AS_EXACT, DIFFERS = "equal", "within tolerance", "as exact", "differs"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Tolerances chosen by the user: relative to each element, and absolute. None: by the data type and the result's size.

    tf32: products and convolutions of f32 may round their operands to 11 bits, since torch is set to allow it (`allows_tf32`).
    """

    rtol: float | None = None
    atol: float | None = None
    tf32: bool = False

    def of(self, dtype: torch.dtype, size: float) -> tuple[float, float]:
        """(rtol, atol) for results of a data type whose root mean square is `size`. With only an atol, the relative part is zero."""
        rtol = self.rtol
        if rtol is None:
            unit = TF32_UNIT if self.tf32 and dtype == torch.float32 else UNIT_ROUNDOFF.get(dtype, 0.0)
            rtol = 0.0 if self.atol is not None else unit ** LOST_DIGITS
        return rtol, self.atol if self.atol is not None else rtol * size if self.rtol is None else 0.0


BY_DTYPE = Tolerance()


@dataclass(frozen=True, slots=True)
class Worst:
    """The element furthest outside the tolerance: its place, both values, and the reference's if there is one."""

    index: tuple[int, ...]
    ours: float
    theirs: float
    reference: float | None = None


@dataclass(frozen=True, slots=True)
class ValueReport:
    """One result compared.

    max_abs, max_rel      largest difference of finite elements, absolute and relative to theirs
    num_outside           elements outside the tolerance, misplaced NaN and infinities among them
    num_special           NaN and infinities that stand in one of the two only
    our_error, their_error  largest error against the reference; None without one. Infinite: a NaN or infinity in the wrong place
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    verdict: str
    num_elements: int = 0
    num_outside: int = 0
    num_special: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    rtol: float = 0.0
    atol: float = 0.0
    worst: Worst | None = None
    our_error: float | None = None
    their_error: float | None = None
    reason: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the two values do not differ."""
        return self.verdict != DIFFERS

    def as_data(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


def allows_tf32(device: torch.device, operators: Iterable[str]) -> bool:
    """Whether torch is set to allow tf32 for one of these library operators on this device. By default it is for convolutions."""
    if device.type != "cuda":
        return False
    convolves = torch.backends.cudnn.allow_tf32 and any("convolution" in o for o in operators)
    return bool(convolves or torch.backends.cuda.matmul.allow_tf32)


@dataclass(frozen=True, slots=True)
class Reference:
    """A result in f64. independent: computed without tilefuse, so that it can contradict either side."""

    value: torch.Tensor
    independent: bool


def dtype_name(dtype: torch.dtype) -> str:
    """A data type in the words of graphs."""
    return (DTYPE_NAMES | {d: name for name, d in COMPLEX_DTYPES.items()}).get(dtype, str(dtype).removeprefix("torch."))


def compare_values(name: str, ours: torch.Tensor, theirs: torch.Tensor, tolerance: Tolerance = BY_DTYPE,
                   reference: Reference | None = None) -> ValueReport:
    """Compares ours with theirs by the rule of the module, on the host."""
    kind = dtype_name(ours.dtype)
    shape = tuple(ours.shape)
    if shape != tuple(theirs.shape):
        return ValueReport(name, kind, shape, DIFFERS, reason=f"shape {list(shape)} against {list(theirs.shape)}")
    if ours.dtype != theirs.dtype and (not _is_float(ours) or not _is_float(theirs)):
        return ValueReport(name, kind, shape, DIFFERS, reason=f"{kind} against {dtype_name(theirs.dtype)}")
    coarser = max(ours.dtype, theirs.dtype, key=lambda d: UNIT_ROUNDOFF.get(_real_dtype(d), 0.0))
    a, b = _wide(ours), _wide(theirs)
    exact = reference is not None and tuple(_wide(reference.value).shape) == tuple(a.shape)
    r = _wide(reference.value) if reference is not None and exact else None
    if not a.dtype.is_floating_point:
        return _integers(name, kind, shape, a, b, r, reference)
    return _floats(name, kind, shape, a, b, _real_dtype(coarser), tolerance, r, reference is not None and reference.independent)


def _is_float(tensor: torch.Tensor) -> bool:
    return bool(tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _real_dtype(dtype: torch.dtype) -> torch.dtype:
    return {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the host in f64 (complex numbers as pairs), or unchanged if it holds integers."""
    host = tensor.detach().cpu()
    if host.dtype.is_complex:
        host = torch.view_as_real(host.to(torch.complex128).resolve_conj())
    return host.double() if host.dtype.is_floating_point else host


def _integers(name: str, kind: str, shape: tuple[int, ...], a: torch.Tensor, b: torch.Tensor, r: torch.Tensor | None,
              reference: Reference | None) -> ValueReport:
    unequal = a != b
    count = int(unequal.sum())
    if not count:
        return ValueReport(name, kind, shape, EQUAL, a.numel())
    gap = (a.double() - b.double()).abs()
    place = _place(gap)
    has_reference = r is not None and not r.dtype.is_floating_point
    ours_wrong, theirs_wrong = (int((a != r).sum()), int((b != r).sum())) if r is not None and has_reference else (None, None)
    worst = Worst(place, float(a[place]), float(b[place]), float(r[place]) if r is not None and has_reference else None)
    verdict, reason = DIFFERS, "integers must be equal"
    if ours_wrong == 0 and reference is not None and reference.independent:
        verdict, reason = AS_EXACT, f"ours is that of f64 everywhere, theirs is not in {theirs_wrong} places"
    elif ours_wrong is not None:
        reason += f"; against f64, ours is wrong in {ours_wrong} places and theirs in {theirs_wrong}"
    return ValueReport(name, kind, shape, verdict, a.numel(), count, 0, float(gap.max()), 0.0, worst=worst, reason=reason)


def _floats(name: str, kind: str, shape: tuple[int, ...], a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, tolerance: Tolerance,
            r: torch.Tensor | None, independent: bool) -> ValueReport:
    same = (a == b) | a.isnan() & b.isnan()
    if bool(same.all()):
        errors = _error(a, r, dtype) if r is not None else None
        return ValueReport(name, kind, shape, EQUAL, a.numel(), our_error=_largest(errors), their_error=_largest(errors))
    finite = a.isfinite() & b.isfinite()
    special = ~same & ~finite
    sizes = b[b.isfinite()]
    rtol, atol = tolerance.of(dtype, float(sizes.square().mean().sqrt()) if sizes.numel() else 0.0)
    gap = torch.where(finite, (a - b).abs(), torch.zeros_like(a))
    bound = atol + rtol * torch.where(b.isfinite(), b.abs(), torch.zeros_like(b))
    outside = special | (gap > bound)
    # Relative only to elements of theirs that are more than a rounding of zero.
    relative = torch.where(b.abs() > atol, gap / b.abs().clamp_min(1e-300), torch.zeros_like(gap))
    excess = torch.where(special, torch.full_like(gap, torch.inf), gap - bound)
    place = _place(excess)
    worst = Worst(place, float(a[place]), float(b[place]), float(r[place]) if r is not None else None)
    facts: dict[str, Any] = {"num_elements": a.numel(), "num_outside": int(outside.sum()), "num_special": int(special.sum()),
                             "max_abs": float(gap.max()), "max_rel": float(relative.max()), "rtol": rtol, "atol": atol, "worst": worst}
    verdict, reason = DIFFERS if facts["num_outside"] else WITHIN, ""
    if r is not None:
        ours, theirs = _error(a, r, dtype), _error(b, r, dtype)
        facts |= {"our_error": _largest(ours), "their_error": _largest(theirs)}
        if verdict == DIFFERS:
            verdict, reason = _judged(ours, theirs, r, rtol, atol, independent)
    if facts["num_special"] and verdict == DIFFERS:
        special_text = f"NaN or infinity stands in one of the two only in {facts['num_special']} places"
        reason = f"{special_text}; {reason}" if reason else special_text
    return ValueReport(name, kind, shape, verdict, reason=reason, **facts)


def _judged(ours: torch.Tensor, theirs: torch.Tensor, r: torch.Tensor, rtol: float, atol: float, independent: bool) -> tuple[str, str]:
    """Rule 3 of the module: verdict and reason for a result outside the tolerance, from the errors of both sides."""
    allowed = FACTOR * float(theirs[theirs.isfinite()].max()) if bool(theirs.isfinite().any()) else 0.0
    right = bool(((ours <= atol + rtol * r.abs()) | (ours <= allowed)).all())
    a, b = _largest(ours), _largest(theirs)
    assert a is not None and b is not None
    if right and independent:
        return AS_EXACT, f"largest error against f64: ours {a:.3g}, theirs {b:.3g}"
    whose = "ours" if a > b else "theirs" if b > a else "neither more than the other"
    return DIFFERS, f"largest error against f64: ours {a:.3g}, theirs {b:.3g}: {whose} is off"


def _error(x: torch.Tensor, r: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distance of every element from the reference; infinite where one of the two is NaN or infinite and the other is not.

    An infinity is right where the reference rounds to it.
    """
    rounded = r.to(dtype).double()
    right = (x == rounded) | (x == r) | x.isnan() & r.isnan()
    gap = torch.where(x.isfinite() & r.isfinite(), (x - r).abs(), torch.full_like(x, torch.inf))
    return torch.where(right & ~x.isfinite(), torch.zeros_like(x), gap)


def _largest(errors: torch.Tensor | None) -> float | None:
    return None if errors is None else float(errors.max()) if errors.numel() else 0.0


def _place(gap: torch.Tensor) -> tuple[int, ...]:
    """Subscripts of the largest element; NaN counts as largest."""
    if not gap.dim():
        return ()
    at = int(torch.where(gap.isnan(), torch.full_like(gap, torch.inf), gap).argmax())
    subscripts: list[int] = []
    for extent in reversed(gap.shape):
        at, here = divmod(at, extent)
        subscripts.append(here)
    return tuple(reversed(subscripts))
