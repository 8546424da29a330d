"""Every lowered torch operator as compiled host code, many to a program: kernels' layouts, loops and roundings, not only their meaning."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.end_to_end.torch.merged_cases import batch_name, batches, failures


@pytest.mark.slow
@pytest.mark.parametrize("batch", batches(all_dtypes=False), ids=batch_name)
def test_operators_on_the_host_executor(batch: Sequence[tuple[str, int]]) -> None:
    wrong = failures(batch, "host")
    assert not wrong, "\n".join(wrong)
