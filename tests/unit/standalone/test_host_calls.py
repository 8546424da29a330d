"""Library calls of exported programs on a processor: every kind, type and layout against torch, in one program."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.standalone.built import build_host, loader
from tilefuse.runtime.calls.library import DTYPE_NAMES, TORCH_DTYPES, call_library
from tilefuse.runtime.spec import LibraryStep, ProgramSpec, Value
from tilefuse.standalone.export import export_program

Layout = Sequence[int]


@dataclass(frozen=True)
class Case:
    """One call. operands: (dtype, shape, order of dimensions in memory from the slowest, or None for row-major)."""

    operator: str
    operands: tuple[tuple[str, tuple[int, ...], tuple[int, ...] | None], ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    constant: tuple[int, ...] = ()
    result_order: tuple[int, ...] | None = None


def _strides(shape: Sequence[int], order: Sequence[int] | None) -> tuple[int, ...]:
    strides, step = [0] * len(shape), 1
    for d in reversed(order if order is not None else range(len(shape))):
        strides[d] = step
        step *= shape[d]
    return tuple(strides)


def _matmul(a: Any, b: Any, dtype: str = "f32", bias: Any = None, turn_a: bool = False, turn_b: bool = False, **kwargs: Any) -> Case:
    operands = tuple((dtype, *(x if isinstance(x[0], tuple) else (x, None))) for x in (a, b, *([bias] if bias is not None else [])))
    return Case("matmul", operands, (("has_bias", bias is not None), ("transpose_a", turn_a), ("transpose_b", turn_b)), **kwargs)


def _convolution(x: Any, w: Any, dtype: str = "f32", bias: bool = False, orders: Any = (None, None, None), **attributes: Any) -> Case:
    rank = len(x) - 2
    defaults = {"stride": (1,) * rank, "padding": ((0, 0),) * rank, "dilation": (1,) * rank, "groups": 1, "transposed": False,
                "output_padding": (0,) * rank}
    channels = w[1] * attributes.get("groups", 1) if attributes.get("transposed") else w[0]
    constant = attributes.pop("constant", ())
    operands = [(dtype, x, orders[0]), (dtype, w, orders[1]), *([(dtype, (channels,), None)] if bias else [])]
    return Case("convolution", tuple(operands), tuple(sorted((defaults | attributes | {"has_bias": bias}).items())), constant, orders[2])


LAST = ((0, 2, 3, 1),) * 3
TURNED = (0, 2, 1)
CASES = {
    "product": _matmul((37, 50), (50, 45)),
    "product by constant with bias": _matmul((37, 50), (50, 45), bias=(45,), constant=(1,)),
    "turned": _matmul((50, 37), (45, 50), turn_a=True, turn_b=True),
    "lying turned": _matmul(((37, 50), (1, 0)), ((50, 45), (1, 0)), result_order=(1, 0)),
    "bias of a column": _matmul((37, 5), (5, 45), bias=(37, 1)),
    "batches": _matmul((3, 20, 7), (3, 7, 9), bias=(3, 20, 9)),
    "broadcast batches": _matmul((2, 1, 20, 7), (3, 7, 9)),
    "batches of one second": _matmul(((16, 2, 24), (1, 0, 2)), (24, 40), constant=(1,)),
    "vector left": _matmul((33,), (33, 20)),
    "vector right": _matmul((4, 20, 33), (33,)),
    "nothing inside": _matmul((5, 0), (0, 6), bias=(6,)),
    "one row": _matmul((1, 300), (300, 70), constant=(1,)),
    **{f"product of {t}": _matmul((13, 21), (21, 35), dtype=t, bias=(35,))
       for t in ("f64", "f16", "bf16", "i64", "i32", "i16", "i8", "u8")},
    "convolution": _convolution((2, 5, 9, 11), (37, 5, 3, 3), padding=((1, 1), (1, 1)), bias=True),
    "channels last": _convolution((2, 20, 9, 11), (37, 20, 3, 3), padding=((1, 1), (1, 1)), orders=LAST, constant=(1,)),
    "first layer": _convolution((1, 3, 20, 20), (16, 3, 7, 7), padding=((3, 3), (3, 3)), stride=(2, 2), orders=LAST, constant=(1,)),
    "one by one": _convolution((1, 24, 7, 7), (40, 24, 1, 1), stride=(2, 2), orders=LAST),
    "uneven padding": _convolution((1, 4, 8, 8), (6, 4, 2, 3), padding=((0, 1), (2, 1))),
    "dilated groups": _convolution((2, 8, 12, 12), (12, 4, 3, 3), groups=2, dilation=(2, 1), padding=((2, 2), (1, 1)), constant=(1,)),
    "depthwise": _convolution((2, 20, 8, 9), (20, 1, 3, 3), groups=20, padding=((1, 1), (1, 1)), stride=(1, 2), orders=LAST, bias=True),
    "depthwise of rows": _convolution((1, 6, 8, 9), (6, 1, 3, 3), groups=6, constant=(1,)),
    "depthwise, two each": _convolution((1, 6, 8, 9), (12, 1, 3, 3), groups=6, padding=((1, 1), (1, 1))),
    "one dimension": _convolution((2, 4, 30), (8, 4, 5), stride=(2,), padding=((2, 2),), bias=True),
    "three dimensions": _convolution((1, 3, 5, 6, 7), (4, 3, 2, 3, 3), padding=((1, 1), (0, 0), (1, 1)), constant=(1,)),
    "transposed": _convolution((2, 8, 5, 6), (8, 5, 4, 4), transposed=True, stride=(2, 2), padding=((1, 1), (1, 1)), bias=True),
    "transposed, rest": _convolution((1, 8, 5, 6), (8, 5, 3, 3), transposed=True, stride=(3, 2), padding=((1, 1), (0, 0)),
                                     output_padding=(2, 1), groups=2, dilation=(1, 2), constant=(1,)),
    "transposed, gaps": _convolution((1, 4, 4, 4), (4, 3, 1, 1), transposed=True, stride=(2, 2)),
    **{f"convolution of {t}": _convolution((1, 5, 7, 7), (9, 5, 3, 3), dtype=t, padding=((1, 1), (1, 1)), bias=True, constant=(1,))
       for t in ("f64", "f16", "bf16")},
}


def _attention(q: Any, k: Any, v: Any, dtype: str = "f32", mask: Any = None, **attributes: Any) -> Case:
    order, result_order = attributes.pop("order", None), attributes.pop("result_order", None)
    operands = [(dtype, q, order), (dtype, k, order), (dtype, v, order), *([mask] if mask else [])]
    return Case("attention", tuple(operands), tuple(sorted((attributes | {"has_mask": bool(mask)}).items())), (), result_order)


CASES |= {
    "attention": _attention((2, 3, 40, 16), (2, 3, 50, 16), (2, 3, 50, 24), order=(0, 2, 1, 3)),
    "heads inside": _attention((2, 3, 20, 16), (2, 3, 21, 16), (2, 3, 21, 16), order=(0, 2, 1, 3), result_order=(0, 2, 1, 3)),
    "causal": _attention((1, 2, 200, 8), (1, 2, 200, 8), (1, 2, 200, 8), causal=True, scale=0.3),
    "mask": _attention((2, 2, 9, 8), (2, 2, 33, 8), (2, 2, 33, 8), mask=("bool", (2, 1, 9, 33), None)),
    "added mask": _attention((2, 2, 9, 8), (2, 2, 33, 8), (2, 2, 33, 8), mask=("f32", (1, 33), None)),
    "grouped": _attention((2, 6, 9, 8), (2, 2, 33, 8), (2, 2, 33, 8), grouped=True),
    **{f"attention of {t}": _attention((1, 2, 20, 8), (1, 2, 20, 8), (1, 2, 20, 8), dtype=t) for t in ("f64", "f16", "bf16")},
}
# Rounding of results: halves once; f32 sums in another order.
TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "f16": 2e-3, "bf16": 1.6e-2}


def _drawn(dtype: str, shape: tuple[int, ...], order: Any, generator: torch.Generator) -> torch.Tensor:
    of_torch = TORCH_DTYPES[dtype]
    if of_torch.is_floating_point:
        values = torch.randn(shape, generator=generator, dtype=torch.float64).to(of_torch)
    else:
        values = torch.randint(0, 2 if dtype == "bool" else 100, shape, generator=generator).to(of_torch)
    made = torch.empty_strided(shape, _strides(shape, order), dtype=of_torch)
    return made.copy_(values)


def _program() -> tuple[ProgramSpec, dict[str, torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    values: list[Value] = []
    steps: list[LibraryStep] = []
    constants: dict[str, torch.Tensor] = {}
    arguments: list[torch.Tensor] = []
    expected: list[torch.Tensor] = []
    inputs: list[str] = []
    for number, case in enumerate(CASES.values()):
        names, tensors = [], []
        for position, (dtype, shape, order) in enumerate(case.operands):
            tensor = _drawn(dtype, shape, order, generator)
            name = f"x{number}_{position}"
            is_constant = position in case.constant
            values.append(Value(name, dtype, shape, tuple(tensor.stride()), "constant" if is_constant else "input"))
            if is_constant:
                constants[name] = tensor
            else:
                inputs.append(name)
                arguments.append(tensor)
            names.append(name)
            tensors.append(tensor)
        attributes = dict(case.attributes)
        wide = [t.double() if t.dtype in (torch.float16, torch.bfloat16) else t for t in tensors]
        result = call_library(case.operator, wide, attributes)[0]
        assert result is not None
        dtype = case.operands[0][0]
        values.append(Value(f"y{number}", dtype, tuple(result.shape), _strides(result.shape, case.result_order), "result"))
        steps.append(LibraryStep(case.operator, tuple(names), (f"y{number}",), tuple(sorted(attributes.items()))))
        expected.append(result)
    results = tuple(v.name for v in values if v.role == "result")
    return ProgramSpec("calls", "host", tuple(inputs), results, tuple(values), (), tuple(steps)), constants, arguments, expected


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, torch.Tensor]]:
    """Results of the exported program and of torch, by the case's name."""
    spec, constants, arguments, expected = _program()
    made = export_program(spec, constants, tmp_path_factory.mktemp("calls"))
    build_host(made)
    program = loader(made).Program()
    bits = [t.view(torch.uint16) if t.dtype == torch.bfloat16 else t for t in arguments]
    results = program(*[t.numpy() for t in bits])
    assert [r.dtype for r in program.results] == [v.dtype for v in spec.values if v.role == "result"]
    return dict(zip(CASES, zip(results, expected, strict=True), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_call_gives_what_torch_gives(name: str, outcome: dict[str, tuple[Any, torch.Tensor]]) -> None:
    """Integers exactly; floats within the rounding of their type, against halves computed in f64."""
    found, expected = outcome[name]
    dtype = CASES[name].operands[0][0]
    assert found.shape == tuple(expected.shape)
    if dtype not in TOLERANCE:
        assert DTYPE_NAMES[expected.dtype] == dtype and np.array_equal(found, expected.numpy())
        return
    if dtype == "bf16":
        found = torch.from_numpy(found.copy()).view(torch.bfloat16).float().numpy()
    reference = expected.double().numpy()
    scale = max(float(np.abs(reference).max(initial=0)), 1.0)
    assert np.abs(found.astype(np.float64) - reference).max(initial=0) <= TOLERANCE[dtype] * scale
