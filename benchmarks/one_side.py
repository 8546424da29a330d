"""One tree's side of a comparison of two trees: compiles and times the cases it is asked for, tilefuse alone.

`before_after.py` starts it by its path, with one tree's `src` and `benchmarks` on the path: the cases and clocks are that tree's own. It
computes no references: the suites themselves compare results with double precision. Each answer carries a digest of the code that it
launches (`program_code.py`); with a target, a case is only planned for that device and nothing runs (`planned_side.py`).
"""
from __future__ import annotations

import gc
import importlib.util
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Started by its path: the folder of this file must not hide modules of the tree.
if __name__ == "__main__":
    del sys.path[0]

import torch

from benchmarks import arrays, blas, models, patterns, peers, stitched, turns, workload, workloads
from benchmarks.case import Case, as_tuple, ideal_bytes
from benchmarks.environment import default_device
from benchmarks.timing import Timing, num_input_sets, time_calls

SEED = 20260
OURS = "tilefuse"


def _beside(name: str) -> Any:
    """A module from the folder of this file: the tree on the path may not have it."""
    spec = importlib.util.spec_from_file_location(f"{__name__}_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


program_code, planned_side = _beside("program_code"), _beside("planned_side")
# Suites whose cases say which function is compiled, and their cases.
OF_CASES: dict[str, Callable[[bool], list[Case]]] = {
    "patterns": lambda tiny: patterns.cases(1 if tiny else 256), "stitched": stitched.cases, "blas": blas.cases}
# The array suite's time to compile a step is no time of a kernel.
LEFT_OUT = ("compile/",)


@dataclass(frozen=True)
class Request:
    """A case to compile, and to time where `budget_s` is above 0. Units: seconds.

    target: a device of the catalog that the case is only planned for. shared: digests of sources that the other tree has too; the digest
    is then of machine code for all other sources.
    """

    suite: str
    case: str
    budget_s: float = 0.0
    tiny: bool = False
    target: str = ""
    shared: list[str] | None = None


def names_of(suite: str, tiny: bool) -> list[str]:
    """Names of a suite's cases."""
    if suite in OF_CASES:
        return [case.name for case in OF_CASES[suite](tiny)]
    listing = {"models": models.listed, "workloads": workloads.listed, "arrays": arrays.listed}[suite]
    return [case["name"] for case in listing() if not case["name"].startswith(LEFT_OUT)]


class Side:
    """Answers requests on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.case_by_name: dict[tuple[str, bool], dict[str, Case]] = {}

    def answer(self, request: Request) -> dict[str, Any]:
        """The time of one case; a failure is an answer too. The device is held while it computes, not while a compiler works."""
        peers.warm(OURS, self.device)
        measure = {"models": self._model, "workloads": self._workload, "arrays": self._array}.get(request.suite, self._case)
        try:
            if request.target:
                return {"status": "ok", **self._planned_code(request)}
            with turns.held(), _precision(request.case), program_code.noted_programs() as programs:
                timing, facts = measure(request)
            code = _digest(programs)
        except Exception as error:
            return {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:600], "trace": traceback.format_exc()[-2000:],
                    "poisoned": "CUDA" in str(error) and "out of memory" not in str(error)}
        finally:
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        times = {} if timing is None else {"us": timing.median_us, "low_us": timing.low_us, "high_us": timing.high_us}
        return {"status": "ok", **times, **{k: v for k, v in facts.items() if k.startswith("num_")}, "code": code}

    def _planned_code(self, request: Request) -> dict[str, Any]:
        """Digests of a case's code on the device `request.target`, which need not be present: of all code, of everything but kernels'
        sources, and of each source. Requires: this device is the host.

        Raises: KeyError for a suite whose cases need data to be planned.
        """
        if request.suite == "arrays":
            def run() -> object:
                return self._array(request)
        else:
            case = self._case_named(request)
            inputs = planned_side.empty_inputs(case.inputs)

            def run() -> object:
                return peers.prepare(OURS, case, inputs)

        with planned_side.planned_for(request.target), _precision(request.case):
            spec = planned_side.spec_of(run)
        if request.shared is not None:
            return {"code": _digest([spec], program_code.machine_code_but(request.shared))}
        return {"code": _digest([spec]), "launches": _digest([spec], program_code.nothing_of),
                "sources": program_code.source_digests([spec])}

    def _case_named(self, request: Request) -> Case:
        key = (request.suite, request.tiny)
        if key not in self.case_by_name:
            self.case_by_name[key] = {case.name: case for case in OF_CASES[request.suite](request.tiny)}
        return self.case_by_name[key][request.case]

    def _case(self, request: Request) -> tuple[Timing | None, dict[str, Any]]:
        case = self._case_named(request)
        generator = torch.Generator(self.device).manual_seed(SEED)
        first = tuple(case.inputs(self.device, generator))
        prepared = peers.prepare(OURS, case, first)
        if not request.budget_s:
            return None, prepared.facts
        num_bytes = ideal_bytes(first, prepared.run(first))
        sets = [first, *(tuple(case.inputs(self.device, generator)) for _ in range(num_input_sets(num_bytes, self.device) - 1))]
        with _budget(peers, request.budget_s):
            return prepared.time(sets, self.device)[0], prepared.facts

    def _model(self, request: Request) -> tuple[Timing | None, dict[str, Any]]:
        name, mode, dtype_name, batch_text = request.case.split("/")
        architecture, dtype = models.ARCHITECTURES[name], models.DTYPES[dtype_name]
        batch = min(int(batch_text), 2) if request.tiny else int(batch_text)
        torch.manual_seed(SEED)
        with turns.let_go():
            model = architecture.build(request.tiny).to(self.device, dtype).train(mode == "training")
        generator = torch.Generator(self.device).manual_seed(SEED)
        inputs = [architecture.inputs(batch, request.tiny, self.device, dtype, generator) for _ in range(2)]
        compiled = models._compiled(model, OURS, "default")
        parameters = list(model.parameters())

        def infer(arguments: Any) -> Any:
            with torch.no_grad():
                return as_tuple(compiled(*arguments))

        def train(arguments: Any) -> Any:
            loss = architecture.loss(*as_tuple(compiled(*arguments)))
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-1e-6)
            return loss.detach()

        step = train if mode == "training" else infer
        return self._timed([lambda a=a: step(a) for a in inputs], request), models._facts()  # type: ignore[misc]

    def _workload(self, request: Request) -> tuple[Timing | None, dict[str, Any]]:
        chosen = workloads.by_name(request.case)
        dtype = workloads.dtype_of(chosen)
        torch.manual_seed(SEED)
        with turns.let_go():
            task = chosen.make(request.tiny)
            state = workloads.state_on(task.state(), self.device, dtype)
        generator = torch.Generator(self.device).manual_seed(SEED)
        batches = [workloads.batch_as(task.batch(self.device, generator), dtype) for _ in range(2)]
        step = workload.compiled_step(task, OURS, "default")
        with torch.no_grad():
            return self._timed([lambda b=b: step(state, *b) for b in batches], request), workload.compiled_facts()  # type: ignore[misc]

    def _array(self, request: Request) -> tuple[Timing | None, dict[str, Any]]:
        """The suite's own measurement, without the losses of torch; its clock is asked for the time."""
        # One loss a checked step, so that the suite has something to compare with.
        with planned_side.replaced(arrays, "losses_of_torch", lambda *_: ([1.0] * arrays.CHECKED_STEPS, [1.0] * arrays.CHECKED_STEPS)), \
                _budget(arrays, request.budget_s or 0.001):
            measured = arrays.measure_array_case(request.case, OURS, self.device, inductor_mode="default", tiny=request.tiny)
        timing = Timing(measured["us"], measured["low_us"], measured["high_us"], measured["method"], 0)
        return timing if request.budget_s else None, measured

    def _timed(self, calls: list[Callable[[], object]], request: Request) -> Timing | None:
        """The first call compiles, beside what others measure."""
        with turns.let_go():
            calls[0]()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
        return time_calls(calls, self.device, budget_s=request.budget_s)[0] if request.budget_s else None


def _digest(programs: list[Any], coded: Any = program_code.source_of) -> str:
    """The digest of some programs' code, with this tree's functions for library operators."""
    from tilefuse.runtime.calls.library import LIBRARY

    return str(program_code.digest_of(programs, LIBRARY, coded))


def _precision(case: str) -> AbstractContextManager[object]:
    """Torch's settings for products of a case's type, in trees that have them."""
    try:
        from benchmarks.precision import products_in
    except ImportError:
        return nullcontext()
    return products_in("tf32") if "tf32" in case.split("/") else nullcontext()


def _budget(module: Any, budget_s: float) -> AbstractContextManager[None]:
    """A module's clock measures for so long. Units: seconds."""
    def for_so_long(calls: Any, device: torch.device, **options: Any) -> Any:
        return time_calls(calls, device, **{**options, "budget_s": budget_s})

    replaced: AbstractContextManager[None] = planned_side.replaced(module, "time_calls", for_so_long)
    return replaced


def serve() -> None:
    """Answers requests, one JSON object a line, until the input ends. Diagnostics go to standard error."""
    import os

    answers, sys.stdout = sys.stdout, sys.stderr
    parent = os.getppid()

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    side: Side | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        if "list" in asked:
            answer: dict[str, Any] = {"status": "ok", "names": {s: names_of(s, asked["tiny"]) for s in asked["list"]}}
        else:
            side = side or Side(torch.device("cpu") if asked.get("target") else default_device())
            answer = side.answer(Request(**asked))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
