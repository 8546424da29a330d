"""Attention in training steps: found in joint graphs, its gradients from logarithms and seeds, and steps that are none."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import tilefuse.driver.torch_backend as backend
from tests.unit.driver.torch.test_partition import kept_by
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.driver.torch.partition import prepare
from tilefuse.frontends.imported import Imported
from tilefuse.frontends.torch.decompositions import decompositions_with_gradients
from tilefuse.frontends.torch.fx import import_fx
from tilefuse.frontends.torch.own.attention import ATTENTION_BACKWARD
from tilefuse.frontends.torch.own.random_numbers import RANDOM_BELOW, RANDOM_SEED
from tilefuse.plan.pattern import verify_plan
from tilefuse.target.device import H200

BATCH, HEADS, ROWS, COLUMNS, WIDTH = 2, 3, 48, 64, 32
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
SEEN: list[list[str]] = []


@pytest.fixture(autouse=True)
def divided_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Steps are divided as for a device whose kernels hold the gradients; programs run here."""
    def divide(joint: torch.fx.GraphModule, results: int, static: Any, device: Any, options: Options) -> bool:
        # torch 2.11 keeps no values at the output node.
        joint.graph.output_node().meta.pop("val", None)
        decided = prepare(joint, results, static, H200, Options(attention_gradients="kernels"))
        SEEN.append([str(n.target) for n in joint.graph.nodes if n.op == "call_function"])
        return decided

    monkeypatch.setattr(backend, "prepare", divide)
    SEEN.clear()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def added(drop: float, wide: bool = True) -> Attention:
    """As BERT has it: a mask of numbers, and a softmax in f32."""
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        s = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(WIDTH) + mask
        p = F.softmax(s, dim=-1, dtype=torch.float32).to(q.dtype) if wide else F.softmax(s, -1)
        return torch.matmul(F.dropout(p, drop), v).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)
    return run


def filled(drop: float) -> Attention:
    """As GPT-2 has it in plain PyTorch: places that a buffer hides, with -inf."""
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        s = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(WIDTH))
        return nn.Dropout(drop)(torch.softmax(s.masked_fill(~mask, float("-inf")), -1)) @ v
    return run


def put(drop: float, lowest: float, added_too: bool = False) -> Attention:
    """As transformers' GPT-2 has it: the lowest number at hidden places, perhaps a mask of numbers behind it."""
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        s = torch.matmul(q, k.transpose(-1, -2)) / torch.full([], WIDTH**0.5, dtype=q.dtype)
        s = torch.where(mask, s, torch.full([], lowest, dtype=q.dtype))
        s = s + (torch.arange(COLUMNS) % 7 == 3) * -10000.0 if added_too else s
        return torch.matmul(F.dropout(F.softmax(s, -1).type(v.dtype), drop), v)
    return run


def plain(drop: float) -> Attention:
    return lambda q, k, v, mask: F.dropout(torch.softmax(q * WIDTH**-0.5 @ k.mT, -1), drop) @ v


def called(drop: float, causal: bool = False) -> Attention:
    """Torch's operator; products and softmax on a device without kernels for its dropout."""
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, None if causal else mask, drop, causal)
    return run


@dataclass(frozen=True)
class Case:
    """An attention. mask: "visible" (booleans), "numbers" (0 and the lowest one), or ""; `hides_rows`: it hides a row whole."""

    attention: Attention
    drop: float
    mask: str = ""
    dtype: torch.dtype = torch.float32
    hides_rows: bool = False
    causal: bool = False
    fill: float = float("-inf")
    added: bool = False


CASES = {
    "plain": Case(plain(0.3), 0.3),
    "without dropout": Case(plain(0.0), 0.0),
    "numbers": Case(added(0.2), 0.2, "numbers", torch.bfloat16),
    "numbers, f16, narrow softmax": Case(added(0.2, wide=False), 0.2, "numbers", torch.float16),
    "numbers that hide a row": Case(added(0.2), 0.2, "numbers", torch.float32, hides_rows=True),
    "filled": Case(filled(0.1), 0.1, "visible"),
    "put": Case(put(0.2, torch.finfo(torch.float32).min), 0.2, "visible", hides_rows=True, fill=torch.finfo(torch.float32).min),
    "put, and added": Case(put(0.2, -1e4, added_too=True), 0.2, "visible", hides_rows=True, fill=-1e4, added=True),
    "put in bf16": Case(put(0.2, torch.finfo(torch.bfloat16).min), 0.2, "visible", torch.bfloat16, fill=torch.finfo(torch.bfloat16).min),
    "called, causal": Case(called(0.25, causal=True), 0.25, causal=True),
    "called, with a mask": Case(called(0.25), 0.25, "visible", hides_rows=True),
    "called in bf16": Case(called(0.25, causal=True), 0.25, dtype=torch.bfloat16, causal=True),
}


def inputs_of(case: Case) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(BATCH, HEADS, n, WIDTH, generator=random).to(case.dtype).requires_grad_() for n in (ROWS, COLUMNS, COLUMNS))
    mask = torch.rand(BATCH, 1, ROWS, COLUMNS, generator=random) < 0.7
    mask[..., 0] = True
    mask[0, :, 5] = not case.hides_rows
    return [q, k, v, torch.where(mask, 0.0, torch.finfo(case.dtype).min).to(case.dtype) if case.mask == "numbers" else mask]


def expected(case: Case, values: list[torch.Tensor], factors: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Result and gradients in f64, with the factors of the drawn mask."""
    q, k, v, mask = (x.detach().double() if x.dtype != torch.bool else x for x in values)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    s = q @ k.mT * WIDTH**-0.5
    if case.mask == "numbers":
        s = s + mask
    elif case.mask or case.causal:
        visible = torch.ones(ROWS, COLUMNS, dtype=torch.bool).tril() if case.causal else mask
        s = s.masked_fill(~visible, case.fill)
        s = s + (torch.arange(COLUMNS) % 7 == 3) * -10000.0 if case.added else s
    p = torch.softmax(s, -1)
    y = torch.where(p.isnan(), 0.0, p) * factors @ v
    return y, list(torch.autograd.grad(y, (q, k, v), g.double()))


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_drawn_mask(name: str) -> None:
    """Against f64 with the same mask, which the generator's state decides; the step has no derivative of a softmax."""
    case = CASES[name]
    values = inputs_of(case)
    torch.manual_seed(7)
    seed = RANDOM_SEED("cpu")
    factors = RANDOM_BELOW(seed, 1, [BATCH, HEADS, ROWS, COLUMNS], 1 - case.drop).double() / (1 - case.drop)
    torch.manual_seed(7)
    y = torch.compile(case.attention, backend="tilefuse", dynamic=False)(*values)
    g = torch.randn(BATCH, HEADS, ROWS, WIDTH, generator=torch.Generator().manual_seed(2)).to(case.dtype)
    y.backward(g.transpose(1, 2).reshape(y.shape) if y.dim() == 3 else g)
    assert str(ATTENTION_BACKWARD) in SEEN[0] and sum("bmm" in n for n in SEEN[0]) == 2
    result, gradients = expected(case, values, factors, g)
    result = result.transpose(1, 2).reshape(y.shape) if y.dim() == 3 else result
    close = {torch.float32: 1e-5, torch.float16: 2.0**-8, torch.bfloat16: 2.0**-5}[case.dtype]
    for one, two in zip((y, *(x.grad for x in values[:3])), (result, *gradients), strict=True):
        assert one is not None
        assert (one.double() - two).abs().max() <= close * max(two.abs().max().item(), 1.0)


@pytest.mark.parametrize("name", ["plain", "numbers", "filled"])
def test_named_sizes(name: str) -> None:
    """A graph over named sizes, called with two of them: each draws masks of its own size."""
    case = replace(CASES[name], dtype=torch.float32)
    call = torch.compile(case.attention, backend="tilefuse", dynamic=True)
    for rows in (ROWS, ROWS - 8):
        *operands, mask = inputs_of(case)
        values = [operands[0][:, :, :rows].detach().clone().requires_grad_(), *operands[1:], mask[:, :, :rows].clone()]
        torch.manual_seed(7)
        factors = RANDOM_BELOW(RANDOM_SEED("cpu"), 1, [BATCH, HEADS, rows, COLUMNS], 1 - case.drop).double() / (1 - case.drop)
        torch.manual_seed(7)
        y = call(*values)
        g = torch.randn(BATCH, HEADS, rows, WIDTH, generator=torch.Generator().manual_seed(2))
        y.backward(g.transpose(1, 2).reshape(y.shape) if y.dim() == 3 else g)
        _, gradients = expected(case, values, factors, g)
        for one, two in zip((x.grad for x in values[:3]), gradients, strict=True):
            assert one is not None and (one.double() - two).abs().max() <= 1e-5 * max(two.abs().max().item(), 1.0)
    assert len(SEEN) == 1 and str(ATTENTION_BACKWARD) in SEEN[0]


@pytest.mark.parametrize("name", CASES)
def test_nothing_of_all_rows_and_columns_is_kept(name: str) -> None:
    case = CASES[name]
    kept = kept_by(lambda: (nn.Module(), tuple(inputs_of(case))), "ours", lambda _: case.attention,
                   options=Options(attention_gradients="kernels"), narrow=False)
    sizes = [n.meta["val"].numel() for n in kept]
    assert sizes and max(sizes) <= BATCH * HEADS * COLUMNS * WIDTH


def test_a_checkpoint_computes_its_attention_again() -> None:
    """The forward pass a second time, with logarithms, and gradients from these: only arguments and the seed are kept."""
    case = CASES["filled"]

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(case.attention, q, k, v, mask, use_reentrant=False)
        return y

    values = inputs_of(case)
    torch.manual_seed(7)
    factors = RANDOM_BELOW(RANDOM_SEED("cpu"), 1, [BATCH, HEADS, ROWS, COLUMNS], 1 - case.drop).double() / (1 - case.drop)
    torch.manual_seed(7)
    g = torch.randn(BATCH, HEADS, ROWS, WIDTH, generator=torch.Generator().manual_seed(2))
    torch.compile(step, backend="tilefuse", dynamic=False)(*values).backward(g)
    assert str(ATTENTION_BACKWARD) in SEEN[0]
    for x, exact in zip(values[:3], expected(case, values, factors, g)[1], strict=True):
        assert x.grad is not None and (x.grad.double() - exact).abs().max() <= 1e-5 * max(exact.abs().max().item(), 1.0)
    kept = kept_by(lambda: (nn.Module(), tuple(inputs_of(case))), "ours", lambda _: step, options=Options(attention_gradients="kernels"),
                   narrow=False)
    assert [n.meta["val"].dtype for n in kept] == [torch.int64]


class Doubled(torch.autograd.Function):
    """The identity, with twice the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 2


def _with(change: Callable[[torch.Tensor], torch.Tensor], lowest: float = float("-inf")) -> Attention:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        s = change(q @ k.mT * WIDTH**-0.5).masked_fill(~mask, lowest)
        return F.dropout(torch.softmax(s, -1), 0.1) @ v
    return run


def _read_twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    p = torch.softmax(q @ k.mT, -1)
    return p @ v + p.square().sum(-1, keepdim=True)


def _scaled_bias(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT + 3.0 * (q.sum(-1, keepdim=True) + k.sum(-1)[:, :, None]), -1) @ v


def _with_bias(drop: float, wide: bool) -> Callable[..., torch.Tensor]:
    """As T5 has it: a learned bias that batches share."""
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        s = (q @ k.mT).float() + bias if wide else q @ k.mT + bias
        return F.dropout(F.softmax(s.float(), -1).to(q.dtype), drop) @ v
    return run


@pytest.mark.parametrize(("dtype", "wide", "drop"), [(torch.float32, False, 0.0), (torch.bfloat16, False, 0.0), (torch.bfloat16, True, 0.0),
                                                     (torch.float32, False, 0.2)])
@pytest.mark.parametrize(("lead", "dynamic"), [((1, HEADS), False), ((BATCH, 1), False), ((BATCH, HEADS), False), ((1, HEADS), True)])
def test_a_bias_has_its_gradient(dtype: torch.dtype, wide: bool, drop: float, lead: tuple[int, int], dynamic: bool) -> None:
    """Added up over the batches, or over the heads, that share it, and dense, also over named sizes; from a call that stores it."""
    random = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(BATCH, HEADS, n, WIDTH, generator=random).mul(0.5).to(dtype).requires_grad_() for n in (ROWS, COLUMNS, COLUMNS))
    bias = torch.randn(*lead, ROWS, COLUMNS, generator=random).to(torch.float32 if wide else dtype).requires_grad_()
    run = _with_bias(drop, wide)
    torch.manual_seed(7)
    y = torch.compile(run, backend="tilefuse", dynamic=dynamic)(q, k, v, bias)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    y.backward(g)
    assert str(ATTENTION_BACKWARD) in SEEN[0] and sum("bmm" in n for n in SEEN[0]) == 2
    torch.manual_seed(7)
    factors = RANDOM_BELOW(RANDOM_SEED("cpu"), 1, [BATCH, HEADS, ROWS, COLUMNS], 1 - drop).double() / (1 - drop) if drop else 1.0
    exact = [x.detach().double().requires_grad_() for x in (q, k, v, bias)]
    one, two, three, four = exact
    (torch.softmax(one @ two.mT + four, -1) * factors @ three).backward(g.double())
    close = {torch.float32: 1e-5, torch.bfloat16: 2.0**-5}[dtype]
    for x, wanted in zip((q, k, v, bias), exact, strict=True):
        assert x.grad is not None and wanted.grad is not None
        assert (x.grad.double() - wanted.grad).abs().max() <= close * max(wanted.grad.abs().max().item(), 1.0)


NONE = {"scaled gradients": _with(Doubled.apply), "capped": _with(torch.tanh), "powers that are read twice": _read_twice,
        "a temperature of the bias": _scaled_bias,
        "temperature behind the mask": lambda q, k, v, mask: torch.softmax((q @ k.mT + mask) * 0.5, -1) @ v}


@pytest.mark.parametrize("name", NONE)
def test_other_derivatives_stay_as_torch_wrote_them(name: str) -> None:
    values = inputs_of(Case(NONE[name], 0.1))
    torch.compile(NONE[name], backend="tilefuse", dynamic=False)(*values).sum().backward()
    assert str(ATTENTION_BACKWARD) not in SEEN[0] and sum("bmm" in n for n in SEEN[0]) == 6


def test_a_softmax_that_is_the_result() -> None:
    """Its only reader is the output, which no part of an attention is."""
    x = torch.randn(3, 4, 5, requires_grad=True)
    torch.compile(lambda x: x.softmax(-1), backend="tilefuse", dynamic=False)(x).sum().backward()
    assert str(ATTENTION_BACKWARD) not in SEEN[0]


@pytest.mark.parametrize(("taken", "drop", "is_taken"), [("auto", 0.1, True), ("auto", 0.0, True), ("library", 0.1, False)])
def test_the_faster_derivative_by_predicted_times(taken: str, drop: float, is_taken: bool) -> None:
    """`auto`: kernels against products with the softmax in memory."""
    length = 1024

    def step() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        return nn.Module(), tuple(torch.randn(2, 4, length, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))

    kept = kept_by(step, "ours", lambda _: lambda q, k, v: plain(drop)(q, k, v, q), options=Options(attention_gradients=taken),
                   narrow=False)
    assert any(tuple(n.meta["val"].shape[-2:]) == (length, 1) for n in kept) == is_taken


def parts_of(case: Case, length: int, width: int, of_mask: tuple[int, ...] = (), leads: tuple[int, int] = (4, 16)) -> list[Imported]:
    """Forward and backward graph of a step, with the sizes of a model. of_mask: shape of a mask that is learned; leads: batch and heads."""
    parts: list[Imported] = []

    def divide(joint: torch.fx.GraphModule, inputs: Any, **settings: Any) -> Any:
        prepare(joint, settings["num_fwd_outputs"], (), H200, Options(attention_gradients="kernels"))
        divided = min_cut_rematerialization_partition(joint, inputs, **settings)
        parts.extend(import_fx(part) for part in divided)
        return divided

    def run(part: torch.fx.GraphModule, _inputs: Any) -> Any:
        return make_boxed_func(part.forward)

    with FakeTensorMode(allow_non_fake_inputs=True):
        values = [torch.randn(*leads, length, width, dtype=case.dtype, requires_grad=True) for _ in range(3)]
        mask = torch.zeros(of_mask or (leads[0], 1, 1, length), dtype=case.dtype if case.mask == "numbers" else torch.bool,
                           requires_grad=bool(of_mask))
        torch.compile(case.attention, dynamic=False, backend=aot_autograd(
            fw_compiler=run, bw_compiler=run, decompositions=decompositions_with_gradients(), partition_fn=divide))(*values, mask)
    return parts


@pytest.mark.parametrize("name", ["plain", "without dropout", "numbers", "filled", "put"])
def test_a_step_is_one_walk_forward_and_two_backward(name: str) -> None:
    """On an H200: results, logarithms and factors by the kernel of the forward pass; row sums and two kernels behind."""
    forward, backward = parts_of(replace(CASES[name], dtype=torch.bfloat16), 1024, 64)
    options = Options(attention_gradients="kernels")
    plans = [generate(part.graph, constants=part.constants, device=H200, options=options, input_layouts=part.layouts).plan
             for part in (forward, backward)]
    templates = [[k.program.template for k in plan.kernels] for plan in plans]
    assert [t for t in templates[0] if t != "pointwise"] == ["pipelined_walk"] and len(templates[1]) == 3
    assert [c.operator for plan in plans for c in plan.library_calls] == ["random_seed"] * bool(CASES[name].drop)
    assert sorted(templates[1]) == ["rows", "walked_back", "walked_back"]


@pytest.mark.parametrize("name", ["plain", "without dropout"])
def test_plans_of_short_rows_write_what_they_read(name: str) -> None:
    """The incoming gradient is a view that two walks compute again beside the kernel of row sums, which reads it through a cast."""
    for part in parts_of(replace(CASES[name], dtype=torch.bfloat16), 128, 64, leads=(64, 12)):
        generated = generate(part.graph, constants=part.constants, device=H200, options=Options(attention_gradients="kernels"),
                             input_layouts=part.layouts)
        assert verify_plan(generated.plan) == []


@pytest.mark.parametrize("of_mask", [(1, 16, 512, 512), (4, 16, 512, 512)])
def test_a_bias_comes_by_copies_and_its_gradient_leaves_beside_that_of_the_queries(of_mask: tuple[int, ...]) -> None:
    """On an H200: one walk forward; behind the row sums two walks, the queries' with the elements, and the sum over batches that share."""
    case = replace(CASES["numbers"], attention=added(0.0), drop=0.0, dtype=torch.bfloat16)
    plans = [generate(part.graph, constants=part.constants, device=H200, options=Options(attention_gradients="kernels"),
                      input_layouts=part.layouts).plan for part in parts_of(case, 512, 64, of_mask)]
    templates = [[k.program.template for k in plan.kernels] for plan in plans]
    assert templates[0] == ["pipelined_walk"] and not any(plan.library_calls for plan in plans)
    assert [t for t in templates[1] if t in ("rows", "walked_back")] == ["rows", "walked_back", "walked_back"]
    assert len(templates[1]) == (3 if of_mask[0] == 4 else 4)
    walks = [k for k in plans[1].kernels if k.program.template == "walked_back"]
    assert all(dict(k.program.parameters)["bias_ring"] for k in walks)
    elements = [v for k in walks for v in k.pattern.written if plans[1].graph.type_of(v).shape == (4, 16, 512, 512)]
    assert len(elements) == 1


@pytest.mark.parametrize("depth", [16, 48])
def test_values_of_another_width(depth: int) -> None:
    """Gradients of queries, keys and values against f64."""
    random = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(BATCH, HEADS, n, e, generator=random, requires_grad=True)
               for n, e in ((ROWS, WIDTH), (COLUMNS, WIDTH), (COLUMNS, depth)))
    y = torch.compile(plain(0.0), backend="tilefuse", dynamic=False)(q, k, v, q)
    y.sum().backward()
    assert str(ATTENTION_BACKWARD) in SEEN[0]
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    plain(0.0)(*exact, exact[0]).sum().backward()
    for x, wanted in zip((q, k, v), exact, strict=True):
        assert x.grad is not None and wanted.grad is not None
        assert (x.grad.double() - wanted.grad).abs().max() <= 1e-5


def test_layers_that_share_a_mask_keep_its_operands() -> None:
    """The sum of a bias of heads and a mask of columns is computed where each layer reads it, forward and backward: it is not kept."""
    def layers(x: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        added_to_scores = bias + mask
        for _ in range(2):
            x = torch.softmax(x @ x.mT + added_to_scores, -1) @ x
        return x

    def step() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        x = torch.randn(4, HEADS, 64, WIDTH, dtype=torch.bfloat16, requires_grad=True)
        bias, mask = torch.randn(1, HEADS, 64, 64, dtype=torch.bfloat16, requires_grad=True), torch.zeros(4, 1, 1, 64, dtype=torch.bfloat16)
        return nn.Module(), (x, bias, mask)

    kept = kept_by(step, "ours", lambda _: layers, options=Options(attention_gradients="kernels"), narrow=False)
    shapes = [tuple(n.meta["val"].shape) for n in kept]
    assert (4, HEADS, 64, 1) in shapes and (4, HEADS, 64, 64) not in shapes


def windows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """As Swin has it: a learned bias of heads, and a mask of each window of an image."""
    s, count = q @ k.mT * WIDTH**-0.5 + bias, mask.shape[0]
    s = s.view(q.shape[0] // count, count, *s.shape[1:]) + mask[None, :, None]
    return torch.softmax(s.view(-1, *s.shape[2:]), -1) @ v


def twice_added(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Two masks of the scores' own dimensions."""
    return torch.softmax(q @ k.mT * WIDTH**-0.5 + bias + mask.repeat(q.shape[0] // mask.shape[0], 1, 1)[:, None], -1) @ v


@pytest.mark.parametrize("run", [windows, twice_added])
def test_a_bias_and_a_mask_are_added(run: Callable[..., torch.Tensor]) -> None:
    """Gradients of both forms against f64: the bias has one, the mask hides with -100 and -inf."""
    random = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(6, HEADS, n, WIDTH, generator=random, requires_grad=True) for n in (ROWS, COLUMNS, COLUMNS))
    bias = torch.randn(1, HEADS, ROWS, COLUMNS, generator=random, requires_grad=True)
    mask = torch.where(torch.rand(3, ROWS, COLUMNS, generator=random) < 0.7, 0.0, -100.0)
    mask[0, :, 3] = float("-inf")
    y = torch.compile(run, backend="tilefuse", dynamic=False)(q, k, v, bias, mask)
    y.sum().backward()
    assert str(ATTENTION_BACKWARD) in SEEN[0] and sum("bmm" in n for n in SEEN[0]) == 2
    exact = [x.detach().double().requires_grad_() for x in (q, k, v, bias)]
    run(*exact, mask.double()).sum().backward()
    for x, wanted in zip((q, k, v, bias), exact, strict=True):
        assert x.grad is not None and wanted.grad is not None
        assert (x.grad.double() - wanted.grad).abs().max() <= 1e-5


@pytest.mark.parametrize("lowest", [float("-inf"), -1e4])
def test_a_bias_and_places_that_are_hidden(lowest: float) -> None:
    """A learned bias before places that are hidden, as decoders with slopes have it; a finite number behind a bias is left to torch."""
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ k.mT * WIDTH**-0.5 + bias).masked_fill(mask, lowest), -1) @ v

    random = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(BATCH, HEADS, n, WIDTH, generator=random, requires_grad=True) for n in (ROWS, COLUMNS, COLUMNS))
    bias = torch.randn(1, HEADS, 1, COLUMNS, generator=random, requires_grad=True)
    mask = torch.ones(ROWS, COLUMNS, dtype=torch.bool).triu(3)
    y = torch.compile(run, backend="tilefuse", dynamic=False)(q, k, v, bias, mask)
    y.sum().backward()
    assert (str(ATTENTION_BACKWARD) in SEEN[0]) == math.isinf(lowest)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v, bias)]
    run(*exact, mask).sum().backward()
    for x, wanted in zip((q, k, v, bias), exact, strict=True):
        assert x.grad is not None and wanted.grad is not None
        assert (x.grad.double() - wanted.grad).abs().max() <= 1e-5 * max(wanted.grad.abs().max().item(), 1.0)
