"""Training through scans by other operators, bags of embeddings, index_reduce and distances, on the host executor in checking mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.end_to_end.torch.strict import strict
from tilefuse.driver.torch_backend import compiled_parts

pytestmark = pytest.mark.usefixtures("fresh")

ROWS = torch.randn(11, 6, generator=torch.Generator().manual_seed(1))
INDEX = torch.randint(0, 11, (20,), generator=torch.Generator().manual_seed(2))
STARTS = torch.tensor([0, 3, 3, 9, 20])
WITH_TIES = ROWS.round()

# Functions of the tensors after them; those of floats have gradients.
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "running extrema": (lambda x: (x.cummax(0).values, x.cummin(1).values * 2), (WITH_TIES,)),
    "running logarithm of sums": (lambda x: (x.logcumsumexp(1), (30 * x).logcumsumexp(0)), (ROWS,)),
    "bags, summed": (lambda w, i, o: F.embedding_bag(i, w, o, mode="sum", padding_idx=4), (ROWS, INDEX, STARTS)),
    "bags, summed, their end given": (lambda w, i, o: F.embedding_bag(i, w, o, mode="sum", include_last_offset=True),
                                      (ROWS, INDEX, STARTS)),
    "bags, averaged": (lambda w, i, o: F.embedding_bag(i, w, o, mode="mean", padding_idx=4), (ROWS, INDEX, STARTS)),
    "bags, greatest": (lambda w, i, o: F.embedding_bag(i, w, o, mode="max"), (WITH_TIES, INDEX, STARTS)),
    "bags, weighted": (lambda w, s, i, o: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s),
                       (ROWS, torch.linspace(0.1, 2, 20), INDEX, STARTS)),
    "bags of one length": (lambda w, i: F.embedding_bag(i.view(4, 5), w, mode="mean"), (ROWS, INDEX)),
    "index_reduce": (lambda x, i, s: (x.index_reduce(0, i, s, "amax"), x.index_reduce(0, i, s, "mean", include_self=False)),
                     (ROWS, INDEX, torch.randn(20, 6))),
    "distances": (lambda x, y: (torch.cdist(x, x), torch.cdist(x[None], y.expand(3, 7, 6), 1.5)), (ROWS, torch.randn(7, 6))),
}


def gradients(fn: Callable[..., Any]) -> Callable[..., Any]:
    """All gradients of a weighted sum of the results."""
    def made(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in given]
        results = fn(*inputs)
        listed = results if isinstance(results, tuple) else (results,)
        loss = sum((r * torch.arange(r.numel()).reshape(r.shape).cos()).sum() for r in listed)
        return torch.autograd.grad(loss, [t for t in inputs if t.requires_grad])

    return made


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_eagers(name: str) -> None:
    fn, given = CASES[name]
    compiled = torch.compile(gradients(fn), backend=strict, options={"check": True})
    torch.testing.assert_close(compiled(*given), gradients(fn)(*given), rtol=2e-5, atol=2e-5)
    for part in compiled_parts():
        assert not part.imported.fallbacks, part.imported.fallbacks
