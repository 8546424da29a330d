"""Complex arrays on a device: functions, products, transforms and gradients have numpy's and torch's values; memory is shared."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilefuse.array as ta
from tests.unit.arrays.test_array_complex import BINARY, ULPS, ULPS_OF_POWER, UNARY, check, drawn

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def on_device(data: np.ndarray[Any, Any]) -> ta.Array:
    return ta.asarray(torch.from_numpy(data).cuda())


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_functions_have_numpys_values(dtype: str) -> None:
    data = drawn(0, 500, dtype), drawn(1, 500, dtype)
    x, y = map(on_device, data)
    wide = [d.astype(np.complex128) for d in data]
    made = ta.evaluate(*(getattr(ta, n)(x) for n in UNARY), *(getattr(ta, n)(x, y) for n in BINARY))
    assert all(m.device.startswith("cuda") for m in made)
    for name, found in zip((*UNARY, *BINARY), made, strict=True):
        theirs = getattr(np, UNARY.get(name) or ("power" if name == "pow" else name))
        # The device's elementary functions round more than the host's: up to four units in the last place (CUDA programming guide).
        check(found.numpy(), theirs(*wide[:1 if name in UNARY else 2]), name, 4 * (ULPS_OF_POWER if name == "pow" else ULPS))


def test_products_transforms_and_gradients_are_torchs() -> None:
    data, other = drawn(2, (96, 64)), drawn(3, (64, 80))

    def loss(ns: Any, x: Any, y: Any) -> Any:
        made = ns.abs(ns.fft.ifft(ns.fft.fft(x @ y) * 2j)) * ns.abs(ns.exp(x @ y / 100) / (x @ y + 3))
        return made.sum() if ns is torch else ta.sum(made)

    x, y = on_device(data), on_device(other)
    made, slopes = ta.compile(ta.value_and_grad(lambda x, y: loss(ta, x, y), (0, 1)))(x, y)
    t = [torch.from_numpy(d).cuda().requires_grad_() for d in (data, other)]
    wanted = loss(torch, *t)
    wanted.backward()
    assert np.isclose(float(made), wanted.item(), rtol=1e-12)
    for found, right in zip(slopes, t, strict=True):
        exact = right.grad.resolve_conj().cpu().numpy()
        assert np.abs(found.numpy() - exact).max() <= 1e-11 * np.abs(exact).max()


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_a_donated_complex_state_is_updated_where_it_lies(cuda_graph: bool) -> None:
    step = ta.compile(lambda state, x: state * 0.5j + ta.conj(x), donate=0, cuda_graph=cuda_graph)
    start, x = drawn(4, (33, 5), "complex64"), drawn(5, (33, 5), "complex64")
    state, place, wanted = on_device(start), 0, start
    for _ in range(4):
        place = state.buffer().data_ptr()
        state = step(state, on_device(x))
        wanted = wanted * np.complex64(0.5j) + x.conj()
        assert state.buffer().data_ptr() == place and torch.from_dlpack(state).dtype == torch.complex64
        check(torch.from_dlpack(state).clone().cpu().numpy(), wanted, "step", 64)
