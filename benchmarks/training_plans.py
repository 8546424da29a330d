"""Plans of a training step's two parts for a device that need not be present, by several options: kernels that one has and the other not.

    python -m benchmarks.training_plans bert-base gpt2 --device h200 --options attention_gradients=library attention_gradients=kernels
    python -m benchmarks.training_plans bert-base --steps           every step of the backward parts, with predicted times

Parts are divided, and values between them lie, as the backend does it on the device. Attention that torch records on a CPU becomes the call
of `--attention`, which torch records on a GPU. Units: microseconds.
"""
from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks import planned_kernels
from benchmarks.architectures import ARCHITECTURES
from benchmarks.case import DTYPES, as_tuple
from benchmarks.suite_graphs import backward_at_once
from tilefuse.base.options import Options
from tilefuse.driver import torch_backend
from tilefuse.driver.compile import Generated, generate
from tilefuse.driver.torch.partition import prepare
from tilefuse.driver.torch.settings import settings_of
from tilefuse.driver.torch.surroundings import Surroundings
from tilefuse.frontends.torch.decompositions import decompositions_with_gradients
from tilefuse.frontends.torch.fx import import_fx
from tilefuse.ir.graph import Attribute, Graph, Node
from tilefuse.plan.pattern import PlannedKernel
from tilefuse.plan.price.library_price import price_call
from tilefuse.target.catalog import device_by_name
from tilefuse.target.device import DeviceSpec
from tilefuse.tools.programs import parse_options

ON_CPU = "library.aten._scaled_dot_product_flash_attention_for_cpu"


class _Planned(Exception):
    """Both parts are planned: nothing has to run."""


@dataclass(frozen=True)
class Part:
    """One part of a step. kind: "forward" or "backward"."""

    kind: str
    made: Generated

    @property
    def us(self) -> float:
        """Predicted time of kernels and calls."""
        plan = self.made.plan
        return sum(k.cost.us for k in plan.kernels) + sum(
            price_call(c, plan.graph, self.made.device, layouts=plan.layouts).us for c in plan.library_calls)

    def kinds(self) -> Counter[str]:
        """Kernels by template and results, calls by operator: how many of each there are."""
        plan = self.made.plan
        kernels = (f"{k.program.template} -> {', '.join(str(k.program.graph.type_of(r)) for r in k.program.graph.results)}"[:120]
                   for k in plan.kernels)
        return Counter((*kernels, *(f"call {c.operator}" for c in plan.library_calls if c.runs)))


def as_on_device(graph: Graph, library: str) -> Graph:
    """The graph with the attention calls that torch records on a GPU where its library of attention is "flash" or "cudnn"."""
    return replace(graph, nodes=tuple(_moved(n, graph, library) if n.kind.startswith(ON_CPU) else n for n in graph.nodes))


def _moved(node: Node, graph: Graph, library: str) -> Node:
    attributes = {name: value for name, value in node.attributes if name != "strides"}
    args = attributes["args"]
    assert isinstance(args, tuple)
    backward = "backward" in node.kind
    first, causal = args[:6 if backward else 3], args[7 if backward else 4] if len(args) > (7 if backward else 4) else False
    rows, columns = (graph.type_of(node.operands[n]).shape[-2] for n in ((1, 2) if backward else (0, 1)))
    made: tuple[Attribute, ...] = {
        ("flash", False): (*first, 0.0, causal),
        ("cudnn", False): (*first, None, True, 0.0, causal),
        ("flash", True): (*first, None, None, rows, columns, 0.0, causal, None, None),
        ("cudnn", True): (*first, None, None, None, None, None, rows, columns, 0.0, causal)}[library, backward]
    kind = f"library.aten._scaled_dot_product_{library}_attention{'_backward' if backward else ''}.default"
    return replace(node, kind=kind, attributes=tuple(sorted((attributes | {"args": made}).items())))


def planned_step(run: Callable[..., Any], inputs: Sequence[torch.Tensor], device: DeviceSpec, options: Options,
                 library: str = "cudnn") -> list[Part]:
    """The plans of the forward and of the backward part of `run`, which returns a loss."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    parts: list[Part] = []

    def divided(joint: torch.fx.GraphModule, arguments: Any, **settings: Any) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        prepare(joint, int(settings["num_fwd_outputs"]), settings.get("static_lifetime_input_indices") or (), device, options)
        forward, backward = min_cut_rematerialization_partition(joint, arguments, **settings)
        return forward, backward

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_(gm: torch.fx.GraphModule, arguments: Any) -> Any:
            torch_backend._restride(gm, arguments)
            imported = import_fx(gm, kind)
            placeholders = tuple(n.name for n in gm.graph.find_nodes(op="placeholder"))
            trace = torch_backend.Trace(imported, "cuda:0", (), placeholders)
            around = Surroundings.now(gm if kind == "backward" else None)
            decided = torch_backend._decided(trace, kind, replace(settings_of(None, {}), options=options), around)
            graph = as_on_device(imported.graph, library)
            # The logarithms of a GPU's attention are dense.
            logarithms = {n.operands[5] for n in graph.nodes if "attention_backward" in n.kind}
            layouts = {name: strides for name, strides in imported.layouts.items() if name not in logarithms}
            made = generate(graph, constants=imported.constants, input_layouts=layouts, result_layouts=imported.result_layouts,
                            device=device, options=options, **decided)
            parts.append(Part(kind, made))
            if kind == "backward":
                raise _Planned
            _report_strides(gm, imported.outputs, graph, {v.name: v.strides for v in made.spec.values})
            return gm.forward
        return compile_

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=compiler("forward"), bw_compiler=compiler("backward"), inference_compiler=compiler("forward"),
                           decompositions=decompositions_with_gradients(), partition_fn=divided, keep_inference_input_mutations=True)
    try:
        with backward_at_once():
            torch.compile(run, backend=backend, dynamic=False, fullgraph=True)(*inputs)
    except Exception as error:  # torch wraps what its compilers raise
        if len(parts) < 2 or "_Planned" not in f"{error!r}{error.__cause__!r}":
            raise
    return parts


def _report_strides(gm: torch.fx.GraphModule, outputs: Sequence[Any], graph: Graph, strides_by_name: Mapping[str, tuple[int, ...]]) -> None:
    """Reports strides of the forward part's results to torch, as the backend does."""
    context = torch._guards.TracingContext.try_get()
    listed = gm.graph.output_node().args[0]
    assert context is not None and context.output_strides is not None and isinstance(listed, list | tuple)
    for node, output in zip(listed, outputs, strict=True):
        fake = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        plain = output.result is not None and output.permutation is None and output.expanded is None
        own = graph.results[output.result] if plain else None
        traced = tuple(fake.stride()) if isinstance(fake, torch.Tensor) else None
        context.output_strides.append(traced if traced is None or own is None else tuple(strides_by_name.get(own, traced)))


def planned_model(name: str, device: DeviceSpec, options: Options, library: str, tiny: bool = False, batch: int = 64) -> list[Part]:
    """The parts of a model's training step in bf16."""
    architecture = ARCHITECTURES[name]
    model = architecture.build(tiny).to(DTYPES["bf16"]).train()
    generator = torch.Generator().manual_seed(planned_kernels.SEED)
    inputs = architecture.inputs(batch, tiny, torch.device("cpu"), DTYPES["bf16"], generator)
    return planned_step(lambda *x: architecture.loss(*as_tuple(model(*x))), inputs, device, options, library)


def print_steps(part: Part) -> None:
    """Every step with its predicted time."""
    plan = part.made.plan
    for step in plan.steps:
        if isinstance(step, PlannedKernel):
            print(f"{step.cost.us:9.1f}  {step.program.template:12} {', '.join(step.pattern.written)}"[:200])
        else:
            us = price_call(step, plan.graph, part.made.device, layouts=plan.layouts).us
            print(f"{us:9.1f}  call         {step.operator} -> {', '.join(v for _, v in step.results)}"[:200])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_plans", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=sorted(n for n, a in ARCHITECTURES.items() if a.train))
    parser.add_argument("--device", default="h200")
    parser.add_argument("--attention", default="cudnn", choices=("flash", "cudnn"))
    parser.add_argument("--options", nargs="+", default=["attention_gradients=library", "attention_gradients=kernels"],
                        help="settings to compare: NAME=VALUE, several separated by commas")
    parser.add_argument("--steps", action="store_true", help="print the steps of each backward part")
    asked = parser.parse_args()
    device = device_by_name(asked.device)
    for model in asked.models:
        kinds: dict[str, Counter[str]] = {}
        for text in asked.options:
            options = Options().with_overrides(plan_cache=False, **parse_options(text.split(",")))
            parts = planned_model(model, device, options, asked.attention)
            for part in parts:
                plan = part.made.plan
                counts = f"{len(plan.kernels)} kernels, {sum(c.runs for c in plan.library_calls)} calls"
                print(f"{model} {part.kind:8} {text}: {counts}, {part.us:.0f} us", flush=True)
            if asked.steps:
                print_steps(parts[-1])
            kinds[text] = sum((part.kinds() for part in parts), Counter[str]())
        first = asked.options[0]
        for text, of_text in kinds.items():
            for kind in (*(of_text - kinds[first]), *(kinds[first] - of_text)):
                print(f"  {of_text[kind] - kinds[first][kind]:+4d} by {text}: {kind}")


if __name__ == "__main__":
    main()
