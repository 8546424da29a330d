"""Torch's own samples of its operators and modules, compiled and compared with eager torch:
`python -m tests.operator_samples [--device cuda] [--shard 0 --shards 8] [--most 6] [--only NAMES]`. Exit status 1 where some differ.

The lists are those that torch's tests use (`torch.testing._internal`): every operator with arguments of many kinds, broadcast, empty,
strided, with and without options. They come with torch; only `expecttest` is wanted besides. Importing them changes flags of torch and
hypothesis for the whole process, so tests run this in processes of their own.
"""
from __future__ import annotations

import argparse
import copy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

# Results on which two runs of eager torch disagree too: random numbers (also as the seeds that attention returns), memory as it is found,
# devices of what is no tensor of the graph.
NOT_REPEATED = ("bernoulli", "cauchy", "dropout", "empty", "exponential", "fractional_max", "geometric", "log_normal", "lowrank",
                "multinomial", "normal", "rand", "rrelu", "uniform", "_attention_forward")
# Operators that torch.compile refuses, or for which torch's lists give no plain tensors.
NOT_TRACED = ("jiterator", "sparse", "tolist", "item", "resize_")
# Modules whose parameters are drawn at their first call.
LAZY = "Lazy"
# Eager torch gives a result of rank 0 where every compiler gets one of rank 1 from its tracing ("aot_eager" too).
ODD_SHAPES = ("nn.MultiLabelMarginLoss",)
TOLERANCES = {torch.float64: (1e-7, 1e-9), torch.float32: (2e-4, 2e-5), torch.complex64: (2e-4, 2e-5)}
LOOSER = 5.0  # gradients, against outputs
# Operators whose gradient in eager torch is itself so much further from f64: differences of exponentials of 1e4 and of 2.
CANCELS = {"logcumsumexp": 10.0}


def operators() -> dict[str, Any]:
    """Torch's operators by name. Raises: ImportError without `expecttest`."""
    return {f"{o.name}.{o.variant_test_name}" if o.variant_test_name else o.name: o
            for o in _lists()[0] if not any(n in o.name for n in (*NOT_REPEATED, *NOT_TRACED))}


def modules() -> dict[str, Any]:
    """Torch's modules by name. Raises: ImportError without `expecttest`."""
    return {m.name: m for m in _lists()[1]
            if LAZY not in m.name and "Dropout" not in m.name and "RReLU" not in m.name and m.name not in ODD_SHAPES}


def _lists() -> tuple[Sequence[Any], Sequence[Any]]:
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

    # For its messages, torch searches the stack for a `unittest.TestCase` at every sample: a third of this process's own time.
    common_utils.extract_test_fn = lambda: None
    return op_db, module_db


def check_operator(op: Any, device: str, backend: Any, most: int, gradients: bool) -> int:
    """Compiles samples of an operator and compares them with eager torch; how many there were. Raises: AssertionError naming the sample."""
    dtype = next((d for d in (torch.float32, torch.int64, torch.bool, torch.complex64) if d in op.supported_dtypes(device)), torch.float64)
    wanted = gradients and op.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    samples = list(op.sample_inputs(device, dtype, requires_grad=wanted))
    compared = 0
    for sample in spread(samples, most):
        def run(x: Any, args: Any, kwargs: Any) -> Any:
            return op.op(x, *args, **kwargs)

        given = (sample.input, sample.args, sample.kwargs)
        try:
            expected = outcome(run, fresh(given))
        except Exception:
            continue  # what eager torch refuses is no sample
        compare(outcome(torch.compile(run, backend=backend, dynamic=False), fresh(given)), expected, f"{op.name}: {sample}",
                LOOSER * CANCELS.get(op.name, 1.0))
        torch._dynamo.reset()
        compared += 1
    return compared


def check_module(info: Any, device: str, backend: Any, most: int, training: bool) -> int:
    """The same for a module: outputs, gradients of parameters and inputs, buffers."""
    torch.manual_seed(0)
    samples = info.module_inputs_func(info, device=device, dtype=torch.float32, requires_grad=True, training=training)
    compared = 0
    for sample in spread(samples, most):
        made = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).to(device).train(training)
        if training and any(getattr(m, "dropout", 0) or "Dropout" in type(m).__name__ for m in made.modules()):
            continue
        other, given = copy.deepcopy(made), (sample.forward_input.args, sample.forward_input.kwargs)
        try:
            expected = outcome(called, (made, *fresh(given)), made)
        except Exception:
            continue  # what eager torch refuses is no sample
        run = torch.compile(called, backend=backend, dynamic=False)
        compare(outcome(run, (other, *fresh(given)), other), expected, f"{info.name}: {sample.constructor_input}")
        torch._dynamo.reset()
        compared += 1
    return compared


def called(module: Any, args: Any, kwargs: Any) -> Any:
    """The module's outputs."""
    return module(*args, **kwargs)


def spread(samples: Sequence[Any], most: int) -> Sequence[Any]:
    """`most` of the samples, from all over the list."""
    return samples[::max(1, -(-len(samples) // most))]


def fresh(given: Any) -> Any:
    """Copies of all tensors, with strides as they are."""
    return tree_map(lambda x: x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x, given)


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors of a structure in order."""
    return (x for x in tree_leaves(tree) if isinstance(x, torch.Tensor))


def outcome(run: Any, given: Any, module: torch.nn.Module | None = None) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Outputs and buffers, and gradients for one random tangent."""
    torch.manual_seed(1)
    made = list(tensors(run(*given)))
    differentiable = [t for t in made if t.requires_grad and t.is_floating_point()]
    leaves = [t for t in (*tensors(given), *(module.parameters() if module is not None else ())) if t.requires_grad]
    torch.manual_seed(2)
    tangents = [torch.randn_like(t) for t in differentiable]
    found = torch.autograd.grad(differentiable, leaves, tangents, allow_unused=True) if differentiable and leaves else ()
    return [*made, *(module.buffers() if module is not None else ())], list(found)


def compare(found: Any, expected: Any, what: str, looser: float = LOOSER) -> None:
    """Types, shapes and values; a gradient that is missing is one of zeros."""
    for mine, theirs, factor in zip(found, expected, (1.0, looser), strict=True):
        assert len(mine) == len(theirs), what
        for a, b in zip(mine, theirs, strict=True):
            if a is None or b is None:
                assert all(t is None or not t.any() for t in (a, b)), what
                continue
            relative, absolute = TOLERANCES.get(b.dtype, (0.0, 0.0))
            torch.testing.assert_close(a, b, rtol=factor * relative, atol=factor * absolute, equal_nan=True, msg=lambda m: f"{what}\n{m}")


def tasks(device: str, most: int) -> dict[str, Callable[[], int]]:
    """Operators to check, by name."""
    from tests.end_to_end.torch.strict import strict

    found: dict[str, Callable[[], int]] = {}
    for name, op in operators().items():
        found[name] = lambda op=op: check_operator(op, device, strict, most, gradients=True)
    for name, info in modules().items():
        # Most modules compute the same in both modes, and torch's list says which do not.
        for training in (False, True) if info.train_and_eval_differ else (False,):
            found[f"{name} ({'training' if training else 'evaluation'})"] = (
                lambda info=info, training=training: check_module(info, device, strict, most, training))
    return found


def shard(device: str, number: int, count: int, most: int) -> subprocess.CompletedProcess[str]:
    """One part of all samples in a process of its own."""
    options = ["--device", device, "--shard", str(number), "--shards", str(count), "--most", str(most)]
    return subprocess.run([sys.executable, "-m", "tests.operator_samples", *options], capture_output=True, text=True, check=False)


def main() -> int:
    """Runs one part and prints what differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.operator_samples", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shard", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--most", type=int, default=2, help="samples of an operator or module")
    parser.add_argument("--only", default="", help="comma list of names")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    wanted = options.only.split(",") if options.only else []
    everything = tasks(options.device, options.most)
    chosen = [n for n in everything if not wanted or n.split(" ")[0] in wanted][options.shard::options.shards]
    compared = 0
    failures: list[str] = []
    for name in chosen:
        try:
            compared += everything[name]()
        except Exception as error:  # what fails must not hide the rest
            failures.append(f"{name}: {type(error).__name__}: {error}"[:1500])
    print(*failures, sep="\n\n")
    print(f"{compared} samples of {len(chosen)} operators and modules, {len(failures)} differ")
    return 1 if failures or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
