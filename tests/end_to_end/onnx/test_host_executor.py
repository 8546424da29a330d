"""ONNX models on compiled host code.

The node tests run many to a program (`merged.py`), because starting a C++ compiler costs more than most of them. By default a
fixed sample runs here, the first case of every distinct set of operators, and the nine light models; `make test-onnx-full`
(ONNX_FULL=1) runs every expressible case. All cases run on the interpreter in `test_backend_suite.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.runner import Runner

from tests.end_to_end.onnx.merged import run_on_host
from tests.end_to_end.onnx.models import drawn_weights
from tests.end_to_end.onnx.node_cases import arrays_of, node_cases, operators_of, takes_and_gives_plain_tensors
from tilefuse.onnx_backend import PreparedModel, TilefuseBackend, UnsupportedModel

FULL = os.environ.get("ONNX_FULL", "") not in ("", "0")
BATCH = 40
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIGHT_MODELS = sorted(p.stem for p in LIGHT.glob("*.onnx"))


def chosen_cases() -> list[TestCase]:
    """Every plain case, or the first one of every set of operators."""
    plain = [case for case in node_cases() if takes_and_gives_plain_tensors(case)]
    if FULL:
        return plain
    first: dict[tuple[str, ...], TestCase] = {}
    for case in plain:
        first.setdefault(operators_of(case), case)
    return list(first.values())


def batches() -> list[list[TestCase]]:
    cases = chosen_cases()
    return [cases[at : at + BATCH] for at in range(0, len(cases), BATCH)]


def batch_name(cases: Sequence[TestCase]) -> str:
    return f"{cases[0].name}...{cases[-1].name}"


def assert_close(case: TestCase, results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Within the case's own tolerance; 16-bit floats within four roundings, which expected values of fused operators carry too."""
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == wanted.shape and result.dtype == wanted.dtype, case.name
        rtol, atol = case.rtol, case.atol
        if wanted.dtype == np.float16 and wanted.size:
            rtol, atol = max(rtol, 4 * 2.0**-11), 2.0**-11 * float(np.nanmax(np.abs(wanted.astype(np.float32)), initial=0))
            result, wanted = result.astype(np.float32), wanted.astype(np.float32)
        Runner.assert_similar_outputs([wanted], [result], rtol=rtol, atol=atol)


@pytest.mark.parametrize("cases", batches(), ids=batch_name)
def test_node_cases(cases: list[TestCase]) -> None:
    made = []
    for case in cases:
        try:
            prepared = PreparedModel(case.model, "interpret")
            inputs, expected = case.data_sets[0]
            arrays = dict(zip(prepared.input_names, arrays_of(inputs), strict=True))
            imported, _ = prepared.specialise(arrays)
        except UnsupportedModel:
            continue
        given = dict(zip(imported.arguments, prepared.graph_arguments(arrays), strict=True))
        made.append((case, imported, given, arrays_of(expected)))
    if not made:
        pytest.skip("nothing in this batch can be expressed")
    outcomes = run_on_host([m[1] for m in made], [m[2] for m in made])
    wrong = []
    for (case, _, _, expected), results in zip(made, outcomes, strict=True):
        try:
            assert_close(case, results, expected)
        except AssertionError as error:
            wrong.append(f"{case.name}: {str(error).strip().splitlines()[0]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_light_models_match_the_shipped_results(name: str) -> None:
    """The package's nine models against the outputs it ships."""
    model = onnx.load(LIGHT / f"{name}.onnx")
    prepared = TilefuseBackend.prepare(model, executor="host")
    image = Runner.generate_dummy_data(next(i for i in model.graph.input if i.name in prepared.input_names))
    expected = onnx.numpy_helper.to_array(onnx.load_tensor(str(LIGHT / f"{name}_output_0.pb")))
    np.testing.assert_allclose(prepared.run([image])[0], expected, rtol=1e-3, atol=1e-7)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet", "light_resnet50", "light_densenet121"])
def test_light_models_with_drawn_weights(name: str) -> None:
    """The shipped weights are all equal, which hides most mistakes; here they are drawn, and onnxruntime is the reference.

    Tolerance: f32 sums of at most 4608 terms err by about sqrt(4608) roundings each, through at most 170 layers.
    """
    onnxruntime = pytest.importorskip("onnxruntime")
    model = drawn_weights(onnx.load(LIGHT / f"{name}.onnx"), seed=0)
    prepared = TilefuseBackend.prepare(model, executor="host")
    image = np.random.default_rng(1).standard_normal((1, 3, 224, 224), dtype=np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {prepared.input_names[0]: image})[0]
    assert np.ptp(expected) > 1e-3 * np.abs(expected).max(), "the drawn weights make all outputs alike"
    bound = 2.0**-24 * 4608**0.5 * 170 * float(np.abs(expected).max())
    np.testing.assert_allclose(prepared.run([image])[0], expected, rtol=0, atol=bound)
