"""The stitched patterns: small versions run, the full ones have the sizes and operation counts that the limits need."""
from __future__ import annotations

import pytest
import torch

from benchmarks import stitched
from benchmarks.case import Case, as_tuple, reference_of, relative_error
from benchmarks.measure import measure_rates

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", stitched.cases(tiny=True), ids=lambda c: c.family + "/" + c.name.split("/")[0])
def test_small_versions_agree_with_double_precision(case: Case) -> None:
    """Every pattern runs in its own precision and is near the reference."""
    inputs = case.inputs(CPU, torch.Generator().manual_seed(2))
    outputs = as_tuple(case.function(*inputs))
    assert relative_error(outputs, reference_of(case, inputs)) < (2e-2 if case.dtype in ("f16", "bf16") else 1e-4)


def test_full_and_small_lists_match() -> None:
    """Both lists hold the same patterns; every case asks a speed."""
    small, full = stitched.listed(tiny=True), stitched.listed()
    assert [c["name"].split("/")[0] for c in small] == [c["name"].split("/")[0] for c in full]
    assert all(c["min_speedup"] and c["max_compile_share"] == 0.25 for c in full)


def test_operations_of_the_products() -> None:
    """Twice the multiplications; the two batched products count both."""
    flops = {c.name.split("/")[0]: c.flops for c in stitched.cases()}
    assert flops["attention-log"] == 2 * 2 * 1500 * 300 * 300 * 16
    assert flops["matmul-softmax"] == 2 * 98304 * 64 * 128
    assert flops["narrow-layers"] == 5 * 2 * 2**21 * 64 * 64
    assert flops["gemm-gelu-layernorm"] == 2 * 8192 * 1024 * 4096
    assert flops["attention-causal"] == 2 * 2 * 4 * 16 * (4096 * 4097 // 2) * 64
    assert flops["adam-many"] == 0


def test_rates_of_every_type_that_is_multiplied_are_measured() -> None:
    """A case without a rate of its own type would be held against its bytes alone."""
    rates = measure_rates(CPU, 16, stitched.dtypes())
    assert rates.keys() == {c.dtype for c in stitched.cases() if c.flops}
    assert all(rate > 0 for rate in rates.values())


def test_attention_is_softmax_attention_and_the_log_of_its_sums() -> None:
    """Against torch's own softmax and logsumexp."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 5, 3, generator=generator, dtype=torch.float64) for _ in range(3))
    away = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    scores = q @ k.transpose(1, 2) * 3**-0.5 - away[:, None]
    mixed, logs = stitched.attention_with_log(q, k, v, away)
    torch.testing.assert_close(mixed, torch.softmax(scores, -1) @ v)
    torch.testing.assert_close(logs, scores.logsumexp(-1) - scores.amax(-1))
