"""Traces a torch function to ATen, imports it, and runs it by the reference interpreter: what the importer's meaning is.

Library nodes without a plain meaning are performed by torch through `runtime.calls.library`, as a compiled program does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch._functorch.aot_autograd import aot_function

from tilefuse.frontends.imported import Imported
from tilefuse.frontends.torch.decompositions import decompositions
from tilefuse.frontends.torch.fx import import_fx
from tilefuse.ir.graph import Node
from tilefuse.ir.interpret import interpret
from tilefuse.ir.verify import check
from tilefuse.runtime.calls.library import call_library

SMALL_FLOATS = {torch.bfloat16: ml_dtypes.bfloat16, torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn, torch.float8_e5m2: ml_dtypes.float8_e5m2}


def to_numpy(x: torch.Tensor) -> np.ndarray:
    x = x.detach().cpu().contiguous()
    if x.dtype in SMALL_FLOATS:
        bits = x.view(torch.int16 if x.dtype == torch.bfloat16 else torch.uint8).numpy()
        return bits.view(SMALL_FLOATS[x.dtype])
    return x.numpy()


def to_torch(x: np.ndarray) -> torch.Tensor:
    x = np.asarray(x, order="C")
    for ours, theirs in SMALL_FLOATS.items():
        if x.dtype == theirs:
            return torch.from_numpy(x.view(np.int16 if ours == torch.bfloat16 else np.uint8).copy()).view(ours)
    return torch.from_numpy(x.copy())


def library(node: Node, operands: list[np.ndarray]) -> list[Any]:
    results = call_library(node.detail, [to_torch(x) for x in operands], dict(node.attributes))
    return [None if r is None else to_numpy(r) for r in results]


def trace(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Imported:
    """The imported graph of `fn` on inputs of these shapes."""
    found: list[Imported] = []

    def compiler(gm: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        found.append(import_fx(gm, "traced"))
        return gm

    with torch.no_grad():
        aot_function(lambda *xs: fn(*xs), compiler, decompositions=decompositions(), keep_inference_input_mutations=True)(*inputs)
    return found[0]


def run_imported(imported: Imported, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Results of the imported graph on `inputs`, by the interpreter."""
    check(imported.graph, "import")
    given = {name: to_numpy(x) for name, x in zip(imported.arguments, inputs, strict=True) if name is not None}
    given |= {name: data.numpy() if isinstance(data, torch.Tensor) else data for name, data in imported.constants.items()}
    outcome = interpret(imported.graph, given, library)
    results = [to_torch(r) for r in outcome]
    made: list[torch.Tensor] = []
    for output in imported.outputs:
        if output.argument is not None:
            made.append(inputs[output.argument])
            continue
        assert output.result is not None
        x = results[output.result]
        x = x if output.permutation is None else x.permute(output.permutation)
        made.append(x if output.expanded is None else x.expand(output.expanded))
    return made


def flat(results: Any) -> list[torch.Tensor]:
    if isinstance(results, torch.Tensor):
        return [results]
    return [t for r in results if r is not None for t in flat(r)]


# Relative rounding of one operation, times the few dozen operations that the longest of the tested expressions chain.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def assert_same(made: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    assert len(made) == len(wanted)
    for a, b in zip(made, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, f"{a.dtype}{tuple(a.shape)} against {b.dtype}{tuple(b.shape)}"
        tolerance = TOLERANCE.get(b.dtype, 0.0)
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
