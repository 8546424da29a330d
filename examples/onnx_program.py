"""An ONNX model made here, compiled, run, saved, loaded again and explained."""
from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from onnx import TensorProto, helper

import tilefuse


def model_bytes() -> bytes:
    """A layer norm followed by a GELU-like product, as an ONNX model."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["n"], axis=-1, epsilon=1e-5),
        helper.make_node("Sigmoid", ["n"], ["s"]),
        helper.make_node("Mul", ["n", "s"], ["y"]),
    ]
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [256], np.linspace(0.5, 1.5, 256, dtype=np.float32))
    bias = helper.make_tensor("bias", TensorProto.FLOAT, [256], np.zeros(256, np.float32))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "norm_swish", [value("x", TensorProto.FLOAT, [64, 256])], [value("y", TensorProto.FLOAT, [64, 256])],
                              [scale, bias])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


def main() -> int:
    """Exit status 1 if the loaded program disagrees with torch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model_bytes())
        program = tilefuse.compile(str(path), device="host")
        program.save(Path(folder) / "model.tilefuse")
        again = tilefuse.load(Path(folder) / "model.tilefuse")
        x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
        y = again(x)[0]
    normal = torch.nn.functional.layer_norm(x, (256,), torch.linspace(0.5, 1.5, 256))
    print(program.explain())
    error = (y - normal * torch.sigmoid(normal)).abs().max().item()
    print(f"largest difference from torch: {error:.2e}")
    return 0 if error < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
