"""Whole models through `torch.compile`, inference and a training step: correct first, then timed as they are."""
from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks import turns
from benchmarks.architectures import ARCHITECTURES, Architecture
from benchmarks.case import DTYPES, Tensors, as_tuple, relative_error
from benchmarks.peers import NotApplicable, warm
from benchmarks.timing import Timing, peak_bytes, time_calls, wait

SEED = 4711


def listed() -> list[dict[str, Any]]:
    """All cases: name model/mode/dtype/batch; inference in f16 and training in bf16 first."""
    found: list[dict[str, Any]] = []
    for model, architecture in ARCHITECTURES.items():
        for dtype in ("f16", "bf16"):
            for mode in ("inference", *(["training"] if architecture.train else [])):
                for batch in (1, 64):
                    if mode == "training" and (batch == 1 or dtype == "f16"):
                        continue
                    rank = 0 if (dtype == "f16") == (mode == "inference") else 1
                    found.append({"name": f"{model}/{mode}/{dtype}/{batch}", "family": model, "dtype": dtype, "rank": rank})
    return sorted(found, key=lambda c: int(c["rank"]))


def measure_model(name: str, peer: str, device: torch.device, *, inductor_mode: str, tiny: bool) -> dict[str, Any]:
    """Compile, compare with double precision, time.

    Units: microseconds a call; `peak_bytes` beyond the weights during a call.
    """
    model_name, mode, dtype_name, batch_text = name.split("/")
    architecture, dtype, batch = ARCHITECTURES[model_name], DTYPES[dtype_name], int(batch_text)
    if tiny:
        batch = min(batch, 2)
    warm(peer, device)
    torch.manual_seed(SEED)
    with turns.let_go():
        model = architecture.build(tiny).to(device).eval()
    generator = torch.Generator(device).manual_seed(SEED)
    inputs = [architecture.inputs(batch, tiny, device, dtype, generator) for _ in range(2)]
    if mode == "training":
        return _measure_training(model, architecture, inputs, peer, device, dtype_name, inductor_mode)
    narrow = copy.deepcopy(model).to(dtype)
    compiled = _compiled(narrow, peer, inductor_mode)

    def run(arguments: Tensors) -> Tensors:
        with torch.no_grad():
            return as_tuple(compiled(*arguments))

    started = turns.clock()
    with turns.let_go():
        outputs = run(inputs[0])
        wait(device)
        compile_s = turns.clock() - started
    reference = _reference(model, inputs[0])
    error = relative_error(outputs, reference)
    with torch.no_grad():
        eager_error = relative_error(as_tuple(narrow(*inputs[0])), reference)
    with torch.no_grad():
        timing, last = time_calls([lambda a=a: compiled(*a) for a in inputs], device, budget_s=1.0)
    error = max(error, relative_error(as_tuple(last), reference))
    return _record(timing, compile_s, error, eager_error, peak_bytes(lambda: run(inputs[1]), device), peer)


def _measure_training(model: nn.Module, architecture: Architecture, inputs: Sequence[Tensors], peer: str, device: torch.device,
                      dtype_name: str, inductor_mode: str) -> dict[str, Any]:
    """A step: forward, loss, backward, plain gradient descent, in `dtype` weights."""
    model = model.to(DTYPES[dtype_name]).train()
    parameters = list(model.parameters())
    compiled = _compiled(model, peer, inductor_mode)

    def gradients(network: Callable[..., Any], arguments: Tensors) -> Tensors:
        loss = architecture.loss(*as_tuple(network(*arguments)))
        return (loss, *torch.autograd.grad(loss, list(model.parameters())))

    reference_model = copy.deepcopy(model).double()
    wide = tuple(t.double() if t.dtype.is_floating_point else t for t in inputs[0])
    reference_loss = architecture.loss(*as_tuple(reference_model(*wide)))
    reference = (reference_loss, *torch.autograd.grad(reference_loss, list(reference_model.parameters())))
    eager_error = joint_error(gradients(model, inputs[0]), reference)
    started = turns.clock()
    with turns.let_go():
        outputs = gradients(compiled, inputs[0])
        wait(device)
        compile_s = turns.clock() - started
    error = joint_error(outputs, reference)
    del reference, reference_model, outputs

    def step(arguments: Tensors) -> torch.Tensor:
        loss, *found = gradients(compiled, arguments)
        with torch.no_grad():
            torch._foreach_add_(parameters, found, alpha=-1e-6)
        return loss

    timing, _ = time_calls([lambda a=a: step(a) for a in inputs], device, budget_s=1.0)
    return _record(timing, compile_s, error, eager_error, peak_bytes(lambda: step(inputs[1]), device), peer)


def _compiled(model: nn.Module, peer: str, inductor_mode: str) -> Callable[..., Any]:
    torch._dynamo.reset()
    match peer:
        case "eager":
            return model
        case "inductor":
            return torch.compile(model, dynamic=False, mode=None if inductor_mode == "default" else inductor_mode)
        case "tilefuse":
            # Strict: a graph that cannot be compiled must not be timed as eager under our name.
            return torch.compile(model, backend=_backend(), dynamic=False, options={"strict": True})
    raise NotApplicable(f"{peer} has no version of the models")


def _backend() -> Callable[..., Any]:
    """tilefuse's backend as a function: the package need not be installed, only on the path."""
    from tilefuse.driver import torch_backend

    torch_backend.reset()
    return torch_backend.backend


def joint_error(outputs: Tensors, reference: Tensors) -> float:
    """||out - ref|| / ||ref|| over all gradients together: single ones may be zero in exact arithmetic."""
    difference = sum((o.double() - r.double()).square().sum().item() for o, r in zip(outputs, reference))
    scale = sum(r.double().square().sum().item() for r in reference)
    return float((difference / scale) ** 0.5) if scale else float(difference)


def _reference(model: nn.Module, arguments: Tensors) -> Tensors:
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        return as_tuple(wide(*(t.double() if t.dtype.is_floating_point else t for t in arguments)))


def _record(timing: Timing, compile_s: float, error: float, eager_error: float, peak_bytes: int, peer: str) -> dict[str, Any]:
    """A record; wrong means an error above twice eager's own in the same precision, plus a quarter of a percent."""
    record: dict[str, Any] = {
        "status": "ok", "us": timing.median_us, "low_us": timing.low_us, "high_us": timing.high_us, "method": timing.method,
        "compile_s": round(compile_s, 3), "error": error, "eager_error": eager_error, "peak_bytes": peak_bytes,
    }
    if not error <= 2 * eager_error + 2.5e-3:
        record["status"] = "wrong"
        record["reason"] = f"relative error {error:.3g} where eager has {eager_error:.3g}"
    if peer == "tilefuse":
        record |= _facts()
    return record


def _facts() -> dict[str, Any]:
    """Kernels and fallbacks of the programs that the backend made, where it tells."""
    from tilefuse.driver import torch_backend

    parts = torch_backend.compiled_parts()
    explanations = [p.program.explain(json=True) for p in parts]
    return {"num_programs": len(parts), "num_kernels": sum(e["num_kernels"] for e in explanations),
            "unfused_kernels": sum(e["unfused_kernels"] for e in explanations),
            "num_library_calls": sum(len(e["library"]) for e in explanations),
            "fallbacks": sorted({f["operator"] for e in explanations for f in e["fallbacks"]})}
