"""Library calls made ready beforehand give what `call_library` gives, layout included."""
from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.runtime.handmade import value
from tilefuse.base.errors import NameLookupError
from tilefuse.runtime.calls.library import DTYPE_NAMES, call_library, turns_back
from tilefuse.runtime.calls.packed_weights import PackedConvolution
from tilefuse.runtime.calls.prepared_library import _is_row_major, direct_function, prepare_call

CPU = torch.device("cpu")


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def agree(operator: str, attributes: dict[str, Any], tensors: list[torch.Tensor]) -> None:
    values = [value(f"v{n}", "input", tuple(t.shape), tuple(t.stride()), DTYPE_NAMES[t.dtype]) for n, t in enumerate(tensors)]
    run = prepare_call(operator, attributes, values, CPU)
    for _ in range(2):
        found, expected = run(list(tensors)), call_library(operator, tensors, attributes, CPU)
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize("turn_a", [False, True])
@pytest.mark.parametrize("turn_b", [False, True])
@pytest.mark.parametrize("bias", [(), (5,), (4, 5), (1,)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_products(turn_a: bool, turn_b: bool, bias: tuple[int, ...], batch: tuple[int, ...]) -> None:
    a = drawn(*batch, 6, 4) if turn_a else drawn(*batch, 4, 6)
    b = drawn(*batch, 5, 6) if turn_b else drawn(*batch, 6, 5)
    attributes = {"transpose_a": turn_a, "transpose_b": turn_b, "has_bias": bool(bias)}
    agree("matmul", attributes, [a, b, drawn(*bias)] if bias else [a, b])


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("attributes", [{}, {"stride": (2, 1), "padding": ((1, 1), (2, 2)), "dilation": (1, 2)}, {"groups": 4}])
def test_convolutions_by_constants_are_packed(attributes: dict[str, Any], has_bias: bool) -> None:
    """Channels last, on the host: as `call_library`, at the first call and later."""
    x = drawn(2, 4, 9, 10).to(memory_format=torch.channels_last)
    w = drawn(8, 4 // int(attributes.get("groups", 1)), 3, 3)
    tensors = [x, w, *([drawn(8)] if has_bias else [])]
    values = [value(f"v{n}", "constant" if n else "input", tuple(t.shape), tuple(t.stride())) for n, t in enumerate(tensors)]
    run = prepare_call("convolution", {**attributes, "has_bias": has_bias}, values, CPU)
    assert isinstance(run, PackedConvolution)
    for _ in range(2):
        (found,), (expected,) = run(list(tensors)), call_library("convolution", tensors, {**attributes, "has_bias": has_bias}, CPU)
        assert found is not None and expected is not None and found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)


def test_convolutions_that_are_not_packed() -> None:
    """Weights that a caller gives, row-major input, other types, transposed ones."""
    x, w = drawn(2, 4, 9, 9), drawn(8, 4, 3, 3)
    last = tuple(x.to(memory_format=torch.channels_last).stride())
    for role, strides, dtype, turned in (("input", last, "f32", False), ("constant", tuple(x.stride()), "f32", False),
                                         ("constant", last, "f64", False), ("constant", last, "f32", True)):
        values = [value("x", "input", tuple(x.shape), strides, dtype), value("w", role, tuple(w.shape), tuple(w.stride()), dtype)]
        assert not isinstance(prepare_call("convolution", {"transposed": turned}, values, CPU), PackedConvolution)


def test_products_of_unlike_ranks() -> None:
    agree("matmul", {"transpose_b": True}, [drawn(3, 4, 6), drawn(5, 6)])
    agree("matmul", {}, [drawn(1, 4, 6), drawn(3, 6, 5)])


CONVOLUTIONS: list[tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]] = [
    ({}, (2, 4, 9, 9), (6, 4, 3, 3)),
    ({"stride": (2, 1), "padding": ((1, 1), (2, 2)), "dilation": (1, 2)}, (2, 4, 9, 9), (6, 4, 3, 3)),
    ({"groups": 4, "padding": (0, 5)}, (2, 4, 9, 9), (4, 1, 1, 11)),
    ({"transposed": True, "stride": (2, 2), "output_padding": (1, 0)}, (2, 4, 5, 5), (4, 3, 3, 3)),
    ({"stride": (2,)}, (2, 4, 9), (6, 4, 3)),
]


@pytest.mark.parametrize(("attributes", "x", "w"), CONVOLUTIONS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_convolutions(attributes: dict[str, Any], x: tuple[int, ...], w: tuple[int, ...], has_bias: bool) -> None:
    channels = w[1] if attributes.get("transposed") else w[0]
    for lay in (torch.contiguous_format, torch.channels_last) if len(x) == 4 else (torch.contiguous_format,):
        image, weight = drawn(*x).contiguous(memory_format=lay), drawn(*w).contiguous(memory_format=lay)
        given = [image, weight, *([drawn(channels)] if has_bias else [])]
        agree("convolution", {**attributes, "has_bias": has_bias}, given)
        gradient = call_library("convolution", given[:2], attributes)[0]
        assert gradient is not None
        for mask in ((True, True, has_bias), (False, True, False)):
            agree("convolution_backward", {**attributes, "mask": mask}, [gradient, image, weight])


def test_unequal_padding_is_added_before() -> None:
    agree("convolution", {"padding": ((0, 1), (2, 1))}, [drawn(2, 4, 9, 9), drawn(6, 4, 3, 3)])


def test_operators_of_torch() -> None:
    x = drawn(3, 4)
    agree("aten.exp.default", {"args": (("%", 0),)}, [x])
    agree("aten.cat.default", {"args": (("list", ("%", 0), ("%", 1)), 1)}, [x, x + 1])
    agree("aten.sum.dim_IntList", {"args": (("%", 0), ("list", 1)), "kwargs": (("dtype", ("dtype", "f64")),)}, [x])
    agree("aten.topk.default", {"args": (("%", 0), 2)}, [x])
    agree("aten.full.default", {"args": (("list", 2, 3), 1.5), "kwargs": (("device", ("device", "cpu")),)}, [])
    agree("aten.fft_rfft.default", {"args": (("%", 0),)}, [x])
    agree("aten.abs.default", {"args": (("complex", 0),)}, [drawn(3, 2)])
    agree("aten.mT.default" if hasattr(torch.ops.aten.mT, "default") else "aten.t.default", {"args": (("%", 0),)}, [x])
    q = drawn(1, 2, 8, 16)
    agree("attention", {"causal": True}, [q, q, q])
    with pytest.raises(NameLookupError, match="has no operator"):
        prepare_call("aten.no_such.default", {}, [], CPU)


def test_functions_that_torch_has_for_single_overloads() -> None:
    assert direct_function("aten.native_layer_norm.default") is torch.native_layer_norm
    for operator in ("aten.add.Tensor", "aten.sum.default", "aten.exp.default", "aten.convolution_backward.default", "prims.sin.default"):
        assert direct_function(operator) is None
    x = drawn(3, 8)
    agree("aten.native_layer_norm.default", {"args": (("%", 0), ("list", 8), None, None, 1e-5)}, [x])
    agree("aten.cumsum.default", {"args": (("%", 0), 1), "kwargs": (("dtype", ("dtype", "f64")),)}, [x])
    agree("aten._fft_r2c.default", {"args": (("%", 0), ("list", 1), 0, True)}, [x])


def test_a_window_onto_an_operand_is_copied() -> None:
    x = drawn(3, 4)
    run = prepare_call("aten.t.default", {"args": (("%", 0),)}, [value("x", "input", (3, 4))], CPU)
    (found,) = run([x])
    assert found is not None and found.data_ptr() != x.data_ptr()


def test_row_major_is_what_torch_calls_contiguous() -> None:
    for t in (drawn(3, 4), drawn(3, 4).mT, drawn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), drawn(2, 1, 4, 4),
              drawn(2, 1, 4, 4).contiguous(memory_format=torch.channels_last), drawn(4, 6)[:, ::2], drawn(4, 6)[:1], drawn(0, 4), drawn(1),
              drawn(5, 3, 1, 1).contiguous(memory_format=torch.channels_last), torch.tensor(1.0)):
        assert _is_row_major(value("v", "input", tuple(t.shape), tuple(t.stride()))) == t.is_contiguous(), (t.shape, t.stride())


def test_depthwise_windows_that_are_turned_back() -> None:
    assert turns_back((8, 1, 1, 11), torch.float32, {"groups": 8}, is_gradient=False)
    assert not turns_back((8, 1, 7, 7), torch.float32, {"groups": 8}, is_gradient=False)
    assert turns_back((8, 1, 7, 7), torch.float32, {"groups": 8}, is_gradient=True)
    assert not turns_back((8, 1, 7, 7), torch.float16, {"groups": 8}, is_gradient=True)
    assert not turns_back((8, 4, 1, 11), torch.float32, {"groups": 2}, is_gradient=True)
