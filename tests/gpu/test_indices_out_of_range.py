"""Indices out of range on a device: a kernel stops with an assertion that names them, as eager torch's do.

Each case runs in a process of its own: a failed assertion takes the context with it.
"""
from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PROGRAM = """
import sys, torch, torch.nn.functional as F
from tilefuse.driver.torch_backend import backend
def on(x): return torch.tensor(x, device="cuda")
CASES = {
    "embedding": (lambda w, i: F.embedding(i, w) * 2, (torch.randn(4, 8, device="cuda"), on([0, 400000]))),
    "label": (lambda x, t: F.cross_entropy(x, t), (torch.randn(3, 5, device="cuda"), on([0, 7, -100]))),
    "scatter": (lambda x, i, s: x.scatter_add(0, i, s), (torch.zeros(4, device="cuda"), on([1, 99]), torch.ones(2, device="cuda"))),
    "subscript": (lambda x, i: x[i] + 1, (torch.zeros(4, device="cuda"), on([-4, -5]))),
}
fn, given = CASES[sys.argv[1]]
options = {"strict": True, "index_checks": sys.argv[2] == "checked"}
torch.compile(fn, backend=backend, options=options)(*given)
torch.cuda.synchronize()
"""
LEGAL = {"embedding": "0 <= .* < 4", "label": "0 <= .* < 5", "scatter": "0 <= .* < 4", "subscript": "-4 <= .* < 4"}


def ended(name: str, checks: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, name, checks], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("name", LEGAL)
def test_a_kernel_asserts_that_indices_are_in_range(name: str) -> None:
    done = ended(name, "checked")
    assert done.returncode != 0
    assert re.search(rf"Assertion `{LEGAL[name]}.*` failed", done.stderr), done.stderr[-2000:]
    assert "device-side assert" in done.stderr or "CUDA_ERROR_ASSERT" in done.stderr


def test_an_option_turns_the_assertion_off() -> None:
    assert ended("embedding", "unchecked").returncode == 0
