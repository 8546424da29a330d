"""Errors by rows against a reference of some rows."""
from __future__ import annotations

import pytest
import torch

from benchmarks.row_sample import MOST_ROWS, RowSample


def product(rows: int) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    a, b = torch.randn(rows, 8, generator=generator), torch.randn(8, 64, generator=generator)
    return (a, b), a @ b


def judged(sample: RowSample, inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...]) -> float:
    """Error of results against the product in double precision, of the sampled rows only."""
    a, b = sample.cut_inputs(inputs)
    return sample.error(inputs, outputs, (a.double() @ b.double(),))


@pytest.mark.parametrize("rows", [1, MOST_ROWS, 5000])
def test_a_right_result_has_the_error_of_its_rounding(rows: int) -> None:
    inputs, out = product(rows)
    assert judged(RowSample((0, None), (0,)), inputs, (out,)) < 1e-5


def test_samples_hold_both_ends_and_a_row_of_every_part() -> None:
    inputs, _ = product(5000)
    chosen = RowSample((0, None), (0,)).rows(inputs)
    assert chosen is not None and chosen[0] == 0 and chosen[-1] == 4999
    assert int((chosen[1:] - chosen[:-1]).max()) <= 2 * -(-5000 // MOST_ROWS) and len(chosen) <= MOST_ROWS + 2
    assert RowSample((None, None), (None,)).rows(inputs) is None


@pytest.mark.parametrize(("rows", "columns"), [(slice(1000, 1064), slice(0, 4)), (slice(4999, 5000), slice(63, 64)),
                                              (slice(0, 1), slice(0, 64))])
def test_one_wrong_tile_is_found(rows: slice, columns: slice) -> None:
    """An error that vanishes in the norm of the whole result."""
    inputs, out = product(5000)
    right = out.clone()
    out[rows, columns] += 1.0
    assert judged(RowSample((0, None), (0,)), inputs, (out,)) > 0.05
    assert ((out - right).norm() / right.norm()) < 0.05


def test_rows_of_a_transposed_operand_and_of_batches() -> None:
    """The axis of the rows is said for each tensor."""
    (a, b), out = product(2000)
    sample = RowSample((1, None), (0,))
    cut, whole = sample.cut_inputs((a.t().contiguous(), b))
    assert cut.shape == (8, len(sample.rows((a.t(), b)))) and whole is b  # type: ignore[arg-type]
    assert sample.error((a.t(), b), (out,), (cut.double().t() @ b.double(),)) < 1e-5
    batches = RowSample((1, None), (1,))
    wide = torch.stack([a, a])
    assert batches.error((wide, b), (wide @ b,), (batches.cut_inputs((wide, b))[0].double() @ b.double(),)) < 1e-5


def test_results_that_are_no_numbers_or_of_another_shape_are_wrong() -> None:
    """Also in rows that are not sampled."""
    inputs, out = product(5000)
    sample = RowSample((0, None), (0,))
    assert judged(sample, inputs, (out[:, :32],)) == float("inf") and judged(sample, inputs, (out, out)) == float("inf")
    left_out = next(r for r in range(5000) if r not in set(sample.rows(inputs).tolist()))  # type: ignore[union-attr]
    out[left_out, 3] = float("nan")
    assert judged(sample, inputs, (out,)) == float("inf")


def test_vectors_and_scalars_are_one_row() -> None:
    """Relative to their norm; absolute where the reference is zero."""
    sample = RowSample()
    ones = torch.ones(4)
    assert sample.error((ones,), (ones * 1.5, torch.tensor(3.0)), (ones.double(), torch.tensor(2.0))) == pytest.approx(0.5)
    assert sample.error((ones,), (ones,), (ones * 0,)) == pytest.approx(2.0)
