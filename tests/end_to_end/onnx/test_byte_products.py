"""ONNX products of 8-bit integers: zero points as corrections, exact; the chain of dynamic quantisation on a device."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilefuse

TYPES = {"i8": (TensorProto.INT8, np.int8), "u8": (TensorProto.UINT8, np.uint8)}
MODEL = "model.onnx"


def _saved(path: Path, nodes: Sequence[Any], inputs: dict[str, tuple[int, Sequence[int]]], known: dict[str, Any],
           result: tuple[str, int, Sequence[int]]) -> str:
    held = [numpy_helper.from_array(np.asarray(v), n) for n, v in known.items()]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(n, *v) for n, v in inputs.items()],
                              [helper.make_tensor_value_info(*result)], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, path / MODEL)
    return str(path / MODEL)


def _run(model: str, *values: np.ndarray) -> np.ndarray:
    result = tilefuse.compile(model)(*values)
    return np.asarray(result[0] if isinstance(result, (tuple, list)) else result)


def _drawn(kind: str, *shape: int) -> np.ndarray:
    low, high = (0, 256) if kind == "u8" else (-128, 128)
    return np.random.default_rng(len(shape) + sum(shape)).integers(low, high, shape).astype(TYPES[kind][1])


@pytest.mark.parametrize("kinds", [("u8", "i8"), ("i8", "i8"), ("u8", "u8"), ("i8", "u8")])
@pytest.mark.parametrize("points", ["none", "left", "right", "both", "rows and columns"])
def test_products_with_zero_points_are_exact(kinds: tuple[str, str], points: str, tmp_path: Path) -> None:
    """MatMulInteger of every pair of types, against whole numbers of 64 bits."""
    rows, inner, columns = 12, 70, 9
    a, b = _drawn(kinds[0], rows, inner), _drawn(kinds[1], inner, columns)
    each = points == "rows and columns"
    z = _drawn(kinds[0], rows) if each else TYPES[kinds[0]][1](100)
    y = _drawn(kinds[1], columns) if each else TYPES[kinds[1]][1](7)
    has = (points in ("left", "both") or each, points in ("right", "both") or each)
    known = {"b": b, **({"z": z} if has[0] else {}), **({"y": y} if has[1] else {})}
    names = ["a", "b", "z" if has[0] else "", "y" if has[1] else ""]
    model = _saved(tmp_path, [helper.make_node("MatMulInteger", names, ["p"])], {"a": (TYPES[kinds[0]][0], a.shape)}, known,
                   ("p", TensorProto.INT32, (rows, columns)))
    z, y = (np.asarray(v, dtype=np.int64) if h else np.int64(0) for v, h in zip((z, y), has, strict=True))
    wanted = (a.astype(np.int64) - (z[:, None] if each else z)) @ (b.astype(np.int64) - y)
    assert np.array_equal(_run(model, a), wanted)


def test_a_batch_with_zero_points_is_exact(tmp_path: Path) -> None:
    """Three dimensions on the left, two on the right."""
    a, b = _drawn("u8", 3, 5, 40), _drawn("i8", 40, 6)
    model = _saved(tmp_path, [helper.make_node("MatMulInteger", ["a", "b", "z", "y"], ["p"])], {"a": (TensorProto.UINT8, a.shape)},
                   {"b": b, "z": np.uint8(9), "y": np.int8(-3)}, ("p", TensorProto.INT32, (3, 5, 6)))
    assert np.array_equal(_run(model, a), (a.astype(np.int64) - 9) @ (b.astype(np.int64) + 3))


def test_quantised_products_round_once(tmp_path: Path) -> None:
    """QLinearMatMul: sums are exact, one rounding to the result's steps."""
    a, b = _drawn("u8", 20, 64), _drawn("i8", 64, 24)
    scales = {"as": np.float32(0.0625), "bs": np.float32(0.03125), "ys": np.float32(0.5)}
    model = _saved(tmp_path, [helper.make_node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"])],
                   {"a": (TensorProto.UINT8, a.shape)},
                   {"b": b, "az": np.uint8(120), "bz": np.int8(-3), "yz": np.uint8(128), **scales}, ("y", TensorProto.UINT8, (20, 24)))
    total = (a.astype(np.int64) - 120) @ (b.astype(np.int64) + 3)
    assert np.array_equal(_run(model, a), np.clip(np.rint(total * (0.0625 * 0.03125 / 0.5)) + 128, 0, 255).astype(np.uint8))


def dynamic_chain(path: Path, rows: int, columns: int, inner: int) -> str:
    """DynamicQuantizeLinear, MatMulInteger, conversion, both scales, a bias."""
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]), helper.make_node("MatMulInteger", ["q", "w", "z"], ["p"]),
             helper.make_node("Cast", ["p"], ["f"], to=TensorProto.FLOAT), helper.make_node("Mul", ["s", "ws"], ["both"]),
             helper.make_node("Mul", ["f", "both"], ["scaled"]), helper.make_node("Add", ["scaled", "bias"], ["y"])]
    known = {"w": _drawn("i8", inner, columns), "ws": np.float32(0.015625), "bias": np.arange(columns, dtype=np.float32) / columns}
    return _saved(path, nodes, {"x": (TensorProto.FLOAT, (rows, inner))}, known, ("y", TensorProto.FLOAT, (rows, columns)))


def test_a_chain_of_dynamic_quantisation_is_exact(tmp_path: Path) -> None:
    """Against its definition in numpy: whole numbers, then f32."""
    model = dynamic_chain(tmp_path, 16, 24, 64)
    x = np.random.default_rng(3).standard_normal((16, 64)).astype(np.float32)
    low, high = np.float32(min(x.min(), 0)), np.float32(max(x.max(), 0))
    scale = np.float32((high - low) / np.float32(255))
    zero = np.clip(np.rint(-low / scale), 0, 255)
    q = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.int64)
    wanted = ((q - int(zero)) @ _drawn("i8", 64, 24).astype(np.int64)) * (float(scale) * 0.015625) + np.arange(24) / 24
    assert np.abs(_run(model, x) - wanted).max() <= 2.0**-20 * np.abs(wanted).max()


def test_the_product_of_a_chain_is_a_kernel_on_bytes(tmp_path: Path) -> None:
    """On a device: the matrix unit multiplies the bytes, the correction, the scales and the bias are maps on its sums."""
    made = tilefuse.compile(dynamic_chain(tmp_path, 2048, 4096, 1024), target="h200")
    holding = [k for k in made.plan.kernels if any(n.kind == "library.matmul" for n in k.program.graph.nodes)]
    assert len(holding) == 1 and holding[0].program.template == "pipelined" and len(holding[0].program.graph.nodes) > 3
