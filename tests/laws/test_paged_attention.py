"""Random attentions over caches in pages, as torch writes them: compiled for the host in checking mode, they are those of f64."""
from __future__ import annotations

from random import Random

import pytest
import torch
from torch import Tensor

from tilefuse.driver import torch_backend
from tilefuse.driver.torch_backend import backend


def attend(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor, later: bool) -> Tensor:
    """Grouped heads over the pages of a table, columns below lengths; `later`: with the columns up to the row, the last rows' alone."""
    batch, heads, rows, width = q.shape
    length = table.shape[1] * keys.shape[1]
    k, v = (x[table].reshape(batch, length, *x.shape[2:]).permute(0, 2, 1, 3).repeat_interleave(heads // x.shape[2], 1)
            for x in (keys, values))
    column, row = torch.arange(length, device=q.device), torch.arange(rows, device=q.device)[:, None]
    seen = column < lengths[:, None, None, None]
    seen = seen & (column - row <= lengths[:, None, None, None] - rows) if later else seen
    return torch.softmax(torch.where(seen, q @ k.mT * width**-0.5, float("-inf")), -1) @ v


def drawn(seed: int) -> tuple[list[Tensor], bool]:
    """Sizes and inputs; numbers of pages count from either end, several batches share pages, lengths are 0 and 1 too."""
    random, generator = Random(seed), torch.Generator().manual_seed(seed)
    batch, key_heads, group = random.randint(1, 4), random.randint(1, 3), random.randint(1, 4)
    rows, page, pages = random.choice((1, 1, 2, 5, 16)), random.choice((1, 2, 3, 5, 7, 8, 16, 24, 64)), random.randint(1, 5)
    width, wide, count = random.randint(1, 40), random.randint(1, 40), random.randint(1, 2 * batch * pages)
    q = torch.randn(batch, key_heads * group, rows, width, generator=generator)
    keys, values = (torch.randn(count, page, key_heads, n, generator=generator) for n in (width, wide))
    table = torch.randint(-count, count, (batch, pages), generator=generator, dtype=random.choice((torch.int32, torch.int64)))
    lengths = torch.tensor([random.choice((0, 1, page, page * pages, random.randint(0, page * pages))) for _ in range(batch)])
    return [q, keys, values, table, lengths], random.random() < 0.5


@pytest.mark.parametrize("seed", range(12))
def test_results_are_those_of_f64(seed: int) -> None:
    """NaN where a batch has no key, within rounding elsewhere."""
    given, later = drawn(seed)
    torch_backend.reset()
    options = {"strict": True, "check": True}
    compiled = torch.compile(lambda *x: attend(*x, later=later), backend=backend, options=options, dynamic=False)
    got = compiled(*given)
    wanted = attend(*(x.double() if x.is_floating_point() else x for x in given), later=later)
    assert torch.equal(got.isnan(), wanted.isnan())
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
