"""What tilefuse does with two real models: a Transformer encoder through torch.compile, and ResNet-50 from an ONNX file.

Run it with `make demo`, or `python examples/demo.py --out demo-output [--device host|cuda]`. For each model it prints operators, kernels
and bytes with and without fusion, the time of the model's own framework and of tilefuse, the largest error against double precision,
and where the explanation and the generated sources lie.
"""
from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

import tilefuse
from tilefuse.pages.libraries import missing
from tilefuse.tools.emit.emit import write_sources
from tilefuse.tools.explain import bytes_text


@dataclass(frozen=True)
class Outcome:
    """What is printed of one model. Units: microseconds; `error` relative to the largest reference element."""

    title: str
    operators: int
    programs: list[Any]
    peer: str
    peer_us: float
    ours_us: float
    error: float
    compile_s: float
    folder: Path


def median_us(call: Callable[[], object], device: torch.device, budget_s: float = 3.0) -> float:
    """Median time of a call. Units: microseconds."""
    call()
    samples: list[float] = []
    started = time.perf_counter()
    while len(samples) < 5 or (len(samples) < 50 and time.perf_counter() - started < budget_s):
        if device.type == "cuda":
            torch.cuda.synchronize()
        before = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        samples.append((time.perf_counter() - before) * 1e6)
    return statistics.median(samples)


def largest_error(result: Any, reference: Any) -> float:
    """Largest difference over the largest reference element."""
    out, ref = (np.asarray(t.detach().cpu().double() if isinstance(t, torch.Tensor) else t, dtype=np.float64) for t in (result, reference))
    return float(np.abs(out - ref).max() / np.abs(ref).max())


def encoder(device: torch.device, out: Path) -> Outcome:
    """A Transformer encoder of four layers through torch.compile(backend="tilefuse")."""
    # In evaluation torch replaces a whole encoder layer by one opaque operator; without that, both sides see the operators.
    torch.backends.mha.set_fastpath_enabled(False)
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, activation="gelu", batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
    x = torch.randn(8, 128, 256)
    with torch.no_grad():
        reference = copy.deepcopy(model).double()(x.double())
        model, x = model.to(device), x.to(device)
        compiled = torch.compile(model, backend="tilefuse")
        started = time.perf_counter()
        result = compiled(x)
        compile_s = time.perf_counter() - started
        from tilefuse.driver.torch_backend import compiled_parts

        programs = [part.program for part in compiled_parts()]
        eager_us = median_us(lambda: model(x), device)
        ours_us = median_us(lambda: compiled(x), device)
    return Outcome("Transformer encoder (torch.compile)", sum(_operators(p) for p in programs), programs, "eager torch", eager_us, ours_us,
                   largest_error(result, reference), compile_s, out / "encoder")


def resnet(device: torch.device, out: Path) -> Outcome:
    """ResNet-50 as the onnx package ships it; its weights, which are all equal there, are drawn."""
    model = drawn_weights(onnx.load(shipped_model("light_resnet50")))
    path = out / "resnet50.onnx"
    onnx.save(model, str(path))
    image = np.random.default_rng(1).standard_normal((1, 3, 224, 224))
    name = next(i.name for i in model.graph.input if i.name not in {t.name for t in model.graph.initializer})
    reference = reference_session(widened(model))(name, image)
    started = time.perf_counter()
    program = tilefuse.compile(str(path), device="cuda" if device.type == "cuda" else "host")
    compile_s = time.perf_counter() - started
    x = torch.from_numpy(image.astype(np.float32)).to(device)
    result = program(x)[0]
    peer, call = own_framework(model, name, image.astype(np.float32))
    return Outcome("ResNet-50 (ONNX)", len(model.graph.node), [program], peer, median_us(call, torch.device("cpu")),
                   median_us(lambda: program(x), device), largest_error(result, reference), compile_s, out / "resnet50")


def shipped_model(name: str) -> str:
    """Path of a model inside the onnx package."""
    return str(Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"{name}.onnx")


def drawn_weights(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """The model with random weights in place of its constant fills, scaled so that activations keep their size."""
    generator = np.random.default_rng(seed)
    shapes = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    kept: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = tuple(int(e) for e in shapes[node.input[0]])
        # Batch norm: scale ("_bn_s") and variance ("_bn_riv") one; the branches' last scale small, so that 16 residual sums do not grow.
        if len(shape) > 1:
            data = generator.standard_normal(shape) * (2 / np.prod(shape[1:])) ** 0.5
        elif node.output[0].endswith("branch2c_bn_s_0"):
            data = np.full(shape, 0.2)
        else:
            data = np.full(shape, 1.0 if node.output[0].endswith(("_s_0", "_riv_0")) else 0.0)
        model.graph.initializer.append(numpy_helper.from_array(data.astype(np.float32), node.output[0]))
    filled = {t.name for t in model.graph.initializer if t.name.endswith("__SHAPE")}
    for field in (model.graph.initializer, model.graph.input):
        remaining = [item for item in field if item.name not in filled]
        del field[:]
        field.extend(remaining)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in double precision."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    # In the model's own opset 9 the evaluator takes batch norm's momentum for a wish to train; from opset 14 on an attribute says so.
    wide.opset_import[0].version = 15
    for tensor in wide.graph.initializer:
        data = numpy_helper.to_array(tensor)
        if data.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(data.astype(np.float64), tensor.name))
    for value in (*wide.graph.input, *wide.graph.output, *wide.graph.value_info):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    return wide


def reference_session(model: onnx.ModelProto) -> Callable[[str, np.ndarray], np.ndarray]:
    """ONNX's own evaluator, which defines what a model means."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model)
    return lambda name, image: np.asarray(evaluator.run(None, {name: image})[0])


def own_framework(model: onnx.ModelProto, name: str, image: np.ndarray) -> tuple[str, Callable[[], object]]:
    """What an ONNX model runs in without tilefuse: onnxruntime where it is installed, else the reference evaluator."""
    try:
        import onnxruntime
    except ImportError:
        session = reference_session(model)
        return "onnx reference", lambda: session(name, image)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    eager = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return "onnxruntime CPU, unfused", lambda: eager.run(None, {name: image})


def _operators(program: Any) -> int:
    explanation = as_data(program)
    return int(explanation.get("num_nodes", 0)) or sum(len(k["nodes"]) for k in explanation["kernels"]) + len(explanation["library"])


def as_data(program: Any) -> dict[str, Any]:
    """The program's explanation as plain data."""
    found = program.explain(json=True)
    data: dict[str, Any] = json.loads(found) if isinstance(found, str) else found
    return data


def show(outcome: Outcome) -> None:
    """Print one model's outcome and write its explanation and sources."""
    explanations = [as_data(p) for p in outcome.programs]
    for number, (program, explanation) in enumerate(zip(outcome.programs, explanations)):
        folder = outcome.folder if len(outcome.programs) == 1 else outcome.folder / str(number)
        write_sources(program, folder)
        (folder / "explanation.json").write_text(json.dumps(explanation, indent=1), encoding="utf-8")
        (folder / "explanation.txt").write_text(program.explain(), encoding="utf-8")
        if not missing():
            program.view(folder / "page.html")
    unfused, fused = (sum(e[key] for e in explanations) for key in ("unfused_kernels", "num_kernels"))
    unfused_bytes, fused_bytes = (sum(e[key] for e in explanations) for key in ("unfused_bytes", "bytes"))
    calls = sum(len(e["library"]) for e in explanations)
    print(f"\n{outcome.title}")
    print(f"  operators       {outcome.operators}")
    print(f"  kernels         {unfused} unfused -> {fused} fused, beside {calls} library calls")
    print(f"  bytes moved     {bytes_text(unfused_bytes)} unfused -> {bytes_text(fused_bytes)} fused (kernels only)")
    print(f"  time            {outcome.peer} {outcome.peer_us / 1e3:.2f} ms -> tilefuse {outcome.ours_us / 1e3:.2f} ms "
          f"({outcome.peer_us / outcome.ours_us:.2f}x), compiled in {outcome.compile_s:.1f} s")
    print(f"  largest error   {outcome.error:.2e} of the largest element, against double precision")
    fallbacks = sum(len(e["fallbacks"]) for e in explanations)
    if fallbacks:
        print(f"  fallbacks       {fallbacks} operators run in the framework; the explanation names them")
    print(f"  written to      {outcome.folder}/ ({'' if missing() else 'page.html, '}explanation.txt, explanation.json, plan.txt, "
          "manifest.json, one source a kernel)")


def main() -> int:
    """Run both models. Exit status 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    parser.add_argument("--device", choices=("host", "cuda"), default="cuda" if torch.cuda.is_available() else "host")
    options = parser.parse_args()
    device = torch.device("cuda" if options.device == "cuda" else "cpu")
    options.out.mkdir(parents=True, exist_ok=True)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"the host executor ({torch.get_num_threads()} threads)"
    print(f"tilefuse on {where}")
    outcomes = []
    for demonstrate in (encoder, resnet):
        outcome = demonstrate(device, options.out)
        show(outcome)
        outcomes.append(outcome)
    # float32 through some dozens of layers: an error beyond this is a wrong result, not rounding. tf32 products would show as 1e-3.
    wrong = [o.title for o in outcomes if not o.error < 1e-4]
    if wrong:
        print(f"\nWRONG RESULTS: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
