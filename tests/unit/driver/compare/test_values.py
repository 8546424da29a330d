"""The rule by which two results are compared: types, places of NaN and infinities, tolerances, and the reference that says who is wrong."""
from __future__ import annotations

import pytest
import torch

from tilefuse.driver.compare.values import (
    AS_EXACT,
    DIFFERS,
    EQUAL,
    UNIT_ROUNDOFF,
    WITHIN,
    Reference,
    Tolerance,
    allows_tf32,
    compare_values,
)

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", [d for d in UNIT_ROUNDOFF if d.itemsize > 1])
def test_rounding_of_the_type_is_within_and_a_thousand_times_as_much_is_not(dtype: torch.dtype) -> None:
    x = torch.linspace(0.5, 2.0, 64, dtype=torch.float64)
    u = UNIT_ROUNDOFF[dtype]
    assert compare_values("y", x.to(dtype), (x * (1 + u)).to(dtype)).verdict in (EQUAL, WITHIN)
    off = x.clone()
    off[7] *= 1 + 30 * u ** (2 / 3)
    found = compare_values("y", off.to(dtype), x.to(dtype))
    assert found.verdict == DIFFERS and found.num_outside == 1 and found.worst is not None and found.worst.index == (7,)


def test_elements_near_zero_are_held_against_the_size_of_the_result() -> None:
    theirs = torch.tensor([1.0, -1.0, 0.0])
    assert compare_values("y", theirs + torch.tensor([0.0, 0.0, 1e-6]), theirs).verdict == WITHIN
    assert compare_values("y", theirs + torch.tensor([0.0, 0.0, 1e-3]), theirs).verdict == DIFFERS


def test_where_tf32_is_allowed_f32_may_differ_by_its_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = torch.tensor([1.0, 2.0])
    assert compare_values("y", theirs * (1 + 2**-10), theirs).verdict == DIFFERS
    assert compare_values("y", theirs * (1 + 2**-10), theirs, Tolerance(tf32=True)).verdict == WITHIN
    assert compare_values("y", theirs * 1.02, theirs, Tolerance(tf32=True)).verdict == DIFFERS
    assert compare_values("y", theirs.double() * (1 + 2**-10), theirs.double(), Tolerance(tf32=True)).verdict == DIFFERS
    gpu, host = torch.device("cuda"), torch.device("cpu")
    assert allows_tf32(gpu, ("convolution",)) and not allows_tf32(gpu, ("matmul",)) and not allows_tf32(host, ("convolution",))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert not allows_tf32(gpu, ("convolution",))


def test_given_tolerances_replace_those_of_the_type() -> None:
    theirs = torch.tensor([1.0, 100.0])
    ours = theirs + 0.01
    assert compare_values("y", ours, theirs, Tolerance(atol=0.02)).verdict == WITHIN
    assert compare_values("y", ours, theirs, Tolerance(rtol=1e-3)).num_outside == 1
    assert compare_values("y", ours, theirs, Tolerance(rtol=1e-3, atol=0.02)).verdict == WITHIN
    assert compare_values("y", ours, theirs, Tolerance(rtol=0.0, atol=0.0)).num_outside == 2


def test_nan_and_infinities_must_stand_where_theirs_stand() -> None:
    theirs = torch.tensor([NAN, INF, -INF, 1.0])
    assert compare_values("y", theirs.clone(), theirs).verdict == EQUAL
    for place, value in ((0, 1.0), (1, -INF), (1, 3e38), (2, NAN), (3, NAN)):
        ours = theirs.clone()
        ours[place] = value
        found = compare_values("y", ours, theirs)
        assert (found.verdict, found.num_special) == (DIFFERS, 1), (place, value)
        assert found.worst is not None and found.worst.index == (place,)


def test_integers_types_and_shapes_must_be_equal() -> None:
    ours, theirs = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])
    assert compare_values("y", ours, ours.clone()).verdict == EQUAL
    assert compare_values("y", ours, theirs).num_outside == 1
    assert "i64 against bool" in compare_values("y", ours, ours > 0).reason
    assert "shape [3] against [1, 3]" in compare_values("y", ours, ours[None]).reason
    assert compare_values("y", torch.tensor(2.5), torch.tensor(2.5)).verdict == EQUAL


def test_an_independent_reference_speaks_against_either_side() -> None:
    """The side with the larger error is named; ours passes where its error is no larger than a few times theirs."""
    exact = torch.linspace(1, 2, 100, dtype=torch.float64)
    near, far = (exact + 1e-7).float(), (exact + 1e-3).float()
    found = compare_values("y", near, far, reference=Reference(exact, True))
    assert found.verdict == AS_EXACT and found.our_error is not None and found.our_error < 1e-6
    found = compare_values("y", far, near, reference=Reference(exact, True))
    assert found.verdict == DIFFERS and "ours is off" in found.reason
    found = compare_values("y", near, far, reference=Reference(exact, False))
    assert found.verdict == DIFFERS and "theirs is off" in found.reason
    one_wrong = near.clone()
    one_wrong[3] += 1
    assert compare_values("y", one_wrong, far, reference=Reference(exact, True)).verdict == DIFFERS


def test_an_infinity_is_right_where_the_reference_rounds_to_it() -> None:
    exact = torch.tensor([7e4, 1.0], dtype=torch.float64)
    overflowed, kept = torch.tensor([INF, 1.0], dtype=torch.float16), torch.tensor([6e4, 1.0], dtype=torch.float16)
    assert compare_values("y", overflowed, kept, reference=Reference(exact, True)).verdict == AS_EXACT
    assert compare_values("y", kept, overflowed, reference=Reference(exact, True)).verdict == DIFFERS


def test_integers_pass_where_ours_are_those_of_the_reference() -> None:
    exact, theirs = torch.tensor([3, 1, 2]), torch.tensor([3, 1, 0])
    assert compare_values("y", exact, theirs, reference=Reference(exact, True)).verdict == AS_EXACT
    found = compare_values("y", theirs, exact, reference=Reference(exact, True))
    assert found.verdict == DIFFERS and "ours is wrong in 1 places and theirs in 0" in found.reason


def test_complex_results_are_compared_by_their_parts() -> None:
    theirs = torch.complex(torch.ones(3), torch.full((3,), 2.0))
    assert compare_values("y", theirs.clone(), theirs).verdict == EQUAL
    assert compare_values("y", theirs * 1j, theirs).verdict == DIFFERS
