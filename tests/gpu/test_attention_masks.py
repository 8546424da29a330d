"""Masks of attention on a device: rows that are hidden whole are zeros by all of torch's kernels; masks of documents and of blocks, which
bound walks at run time."""
from __future__ import annotations

import pytest
import torch

from tilefuse.driver.torch_backend import backend
from tilefuse.runtime.calls.library import call_library

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_hidden_rows_are_zeros(dtype: torch.dtype) -> None:
    """Every third row; the others are those of the definition."""
    generator = torch.Generator("cuda").manual_seed(5)
    q, k, v = (torch.randn(2, 4, n, 64, device="cuda", generator=generator).to(dtype) for n in (333, 500, 500))
    mask = torch.rand(2, 1, 333, 500, device="cuda", generator=generator) > 0.5
    mask[:, :, ::3] = False
    [y] = call_library("attention", [q, k, v, mask], {"scale": 0.125, "causal": False, "has_mask": True, "dropout": 0.0})
    assert y is not None and not y[:, :, ::3].any()
    scores = (q.double() @ k.double().mT * 0.125).masked_fill(~mask, float("-inf"))
    wanted = torch.softmax(scores, -1).nan_to_num(0.0) @ v.double()
    assert (y.double() - wanted).abs().max() <= 0.02


def masks_of(kind: str, batch: int, length: int) -> torch.Tensor:
    """Documents one after another, in no order, one alone, or a document a row."""
    generator = torch.Generator("cuda").manual_seed(3)
    names = torch.randint(0, 6, (batch, length), device="cuda", generator=generator)
    match kind:
        case "sorted":
            return names.sort(-1).values
        case "one":
            return torch.full_like(names, 4)
        case "each":
            return torch.arange(length, device="cuda").expand(batch, -1).contiguous()
    return names


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="walks need capability 9.0")
@pytest.mark.parametrize("kind", ["sorted", "unsorted", "one", "each"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "width"), [(2048, 64), (1999, 128)])
def test_documents(kind: str, causal: bool, length: int, width: int) -> None:
    """Compiled attention with the comparison of documents, against f64; two calls with other boundaries by one program."""
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, names: torch.Tensor) -> torch.Tensor:
        place = torch.arange(length, device=q.device)
        seen = names[:, None, :, None] == names[:, None, None, :]
        seen = seen & (place <= place[:, None]) if causal else seen
        scores = torch.where(seen, q @ k.mT * width**-0.5, float("-inf"))
        return torch.softmax(scores, -1).to(q.dtype) @ v

    generator = torch.Generator("cuda").manual_seed(5)
    q, k, v = (torch.randn(4, 8, length, width, device="cuda", generator=generator).to(torch.bfloat16) for _ in range(3))
    compiled = torch.compile(attend, backend=backend, dynamic=False)
    for names in (masks_of(kind, 4, length), masks_of("sorted", 4, length)):
        found, wanted = compiled(q, k, v, names), attend(q.double(), k.double(), v.double(), names)
        assert (found.double() - wanted).abs().max() <= 0.03


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="walks need capability 9.0")
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("added", [False, True], ids=["bool", "added"])
def test_masks_of_blocks(share: float, added: bool) -> None:
    """A dense mask of blocks that are full, empty or cut, by a call of the library.

    Rows that are hidden whole: zeros where -infinity is added. Torch adds -65504 for a bool mask, so that its own kernel and every compiler
    give the mean of all values there (see `runtime.calls.library.added_mask`).
    """
    generator = torch.Generator("cuda").manual_seed(5)
    q, k, v = (torch.randn(2, 8, 2048, 64, device="cuda", generator=generator).to(torch.float16) for _ in range(3))
    mask = (torch.rand(2, 1, 20, 20, device="cuda", generator=generator) < share).repeat_interleave(103, -1).repeat_interleave(103, -2)
    mask = mask[..., :2048, :2048].contiguous()
    mask[:, :, 7] = False

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        bias = torch.where(mask, 0.0, float("-inf")).to(q.dtype) if added else mask
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    found = torch.compile(attend, backend=backend, dynamic=False)(q, k, v, mask)
    scores = (q.double() @ k.double().mT / 8).masked_fill(~mask, float("-inf"))
    wanted = torch.softmax(scores, -1).nan_to_num(0.0) @ v.double()
    if not added:
        wanted = torch.where(mask.any(-1, keepdim=True), wanted, attend(q, k, v, mask).double())
    assert (found.double() - wanted).abs().max() <= 0.02
    assert not added or not found[:, :, 7].any()


@pytest.mark.parametrize("side", ["first", "last"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("called", [False, True], ids=["plain", "call"])
def test_lowest_numbers_hide_columns(side: str, dtype: torch.dtype, called: bool) -> None:
    """Padding as transformers hides it, by the lowest number of the type: results and gradients against f64."""
    length = 384

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if called:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return torch.softmax(q @ k.mT / 8 + mask, -1, dtype=torch.float32).to(q.dtype) @ v

    torch._dynamo.reset()
    generator = torch.Generator("cuda").manual_seed(5)
    q, k, v, g = (torch.randn(2, 8, length, 64, device="cuda", generator=generator).to(dtype) for _ in range(4))
    mask = torch.zeros(2, 1, length, length, device="cuda", dtype=dtype)
    hidden = slice(0, length // 2) if side == "first" else slice(length // 2, length)
    mask[1, ..., hidden] = torch.finfo(dtype).min
    given = [x.requires_grad_() for x in (q, k, v)]
    y = torch.compile(attend, backend=backend, dynamic=False, options={"attention_gradients": "kernels"})(*given, mask)
    exact = [x.detach().double().requires_grad_() for x in given]
    wanted = torch.softmax(exact[0] @ exact[1].mT / 8 + mask.double(), -1) @ exact[2]
    pairs = zip((y, *torch.autograd.grad(y, given, g)), (wanted, *torch.autograd.grad(wanted, exact, g.double())), strict=True)
    for found, right in pairs:
        assert (found.double() - right).abs().max() <= 2.0**-5 * max(right.abs().max().item(), 1.0)
