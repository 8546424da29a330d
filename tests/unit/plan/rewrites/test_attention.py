"""Attention calls: which operators they are, the definition in their place, and the price that decides."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.templates.online_graphs import packed_heads
from tests.unit.templates.stitched_cases import in_double
from tests.unit.templates.stitched_graphs import attention as written_out
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BOOL, F16, F32, I64, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.library.attention_call import attention_call
from tilefuse.ir.text import parse_graph
from tilefuse.passes.manager import PassContext
from tilefuse.plan.price.attention import attention_work
from tilefuse.plan.price.predictions import Predictions
from tilefuse.plan.rewrites.attention import ExpandAttention, attention_choices
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.template import pipelined_walk_of


def called(lead: tuple[int, ...], rows: int, keys: int, width: int, dtype: DType = F16, mask: str = "", causal: bool = False) -> Graph:
    """One call of attention. mask: "", "added" or "hidden"."""
    b = TensorBuilder("called")
    q, k, v = (b.input(n, dtype, (*lead, rows if n == "q" else keys, width)) for n in "qkv")
    given = b.input("mask", BOOL if mask == "hidden" else dtype, (*(1 for _ in lead), rows, keys)) if mask else None
    return b.finish([b.attention(q, k, v, given, causal=causal)])


def torch_call(op: str, args: str, kwargs: str = "", results: int = 1) -> Graph:
    """A call that torch recorded."""
    more = "" if results == 1 else f"""%l: f32[2, 3, 64] = library.{op} (%q, %k, %v) {{args = {args}, kwargs = ({kwargs}), result = 1}}"""
    kinds, names = ("f16[2, 3, 64, 16]", "%y") if results == 1 else ("f16[2, 3, 64, 16], f32[2, 3, 64]", "%y, %l")
    return parse_graph(f"""graph @g(%q: f16[2, 3, 64, 16], %k: f16[2, 3, 80, 16], %v: f16[2, 3, 80, 16]) -> ({kinds}) {{
      %y: f16[2, 3, 64, 16] = library.{op} (%q, %k, %v) {{args = {args}, kwargs = ({kwargs}), result = 0}}
      {more}
      return {names}
    }}""")


def expanded(graph: Graph, device: DeviceSpec = H200, eager_rounding: bool = False) -> Graph:
    """The graph after the pass."""
    ctx = PassContext(device=device, prices=Predictions(device), eager_rounding=eager_rounding)
    return ExpandAttention().run(graph, ctx)


@pytest.mark.parametrize(("mask", "causal"), [("", False), ("", True), ("added", False), ("hidden", True)])
def test_the_definition_means_the_call(mask: str, causal: bool) -> None:
    """Equal in f64 up to rounding, with every mask; the result keeps its name."""
    graph = called((400,), 70, 144, 16, mask=mask, causal=causal)
    made = expanded(graph)
    assert made is not graph and made.results == graph.results
    assert [n.kind for n in made.nodes].count("library.matmul") == 2 and not any(n.kind == "library.attention" for n in made.nodes)
    random = np.random.default_rng(3)
    values = {v.name: random.random(v.type.shape) < 0.7 if v.type.dtype == BOOL else random.standard_normal(v.type.shape)
              for v in graph.inputs}
    one, two = (interpret(in_double(g), values)[0] for g in (graph, made))
    np.testing.assert_allclose(one, two, rtol=1e-6)


@pytest.mark.parametrize("graph", [
    called((2,), 70, 130, 16, F32), called((2,), 70, 24, 16), torch_call("aten._scaled_dot_product_flash_attention.default",
                                                                       "((\"%\", 0), (\"%\", 1), (\"%\", 2), 0.5, false)"),
], ids=["f32", "few keys", "dropout"])
def test_calls_that_stay(graph: Graph) -> None:
    """f32, whose call nothing predicts; no walk; dropout."""
    assert expanded(graph) is graph


def test_calls_stay_where_kernels_round_or_other_results_are_read() -> None:
    """Rounded values between products are no definition of the call; logarithms come from it alone where gradients are the library's."""
    graph = called((400,), 70, 130, 16)
    assert expanded(graph, eager_rounding=True) is graph
    both = torch_call("aten._scaled_dot_product_flash_attention.default", "((\"%\", 0), (\"%\", 1), (\"%\", 2), 0.0, false)", results=2)
    assert expanded(both) is both
    choice, = attention_choices(both, H200, Predictions(H200), False)
    assert "%l" in choice.text()


@pytest.mark.parametrize(("library", "rows"), [("efficient", 96), ("efficient", 90), ("cudnn", 90), ("flash", 90)])
def test_logarithms_that_a_gradient_needs(library: str, rows: int) -> None:
    """A walk gives them beside the result, where gradients are not the library's: dense, of one column, or padded with infinity. The seed
    and the offset of random numbers that nothing draws are zeros."""
    shape = {"efficient": f"2, 300, {-(-rows // 32) * 32}", "cudnn": f"2, 300, {rows}, 1", "flash": f"2, 300, {rows}"}[library]
    mask, rest = {"flash": ("", "0.0, false"), "cudnn": (", %m", '("%", 3), true'), "efficient": (", %m", '("%", 3), true')}[library]
    call = (f"library.aten._scaled_dot_product_{library}_attention.default (%q, %k, %v{mask}) "
            f'{{args = (("%", 0), ("%", 1), ("%", 2), {rest}), kwargs = (("scale", 0.5),), result = ')
    q, k, m = f"f16[2, 300, {rows}, 32]", "f16[2, 300, 88, 32]", f"f16[2, 300, {rows}, 88]"
    graph = parse_graph(f"""graph @g(%q: {q}, %k: {k}, %v: {k}, %m: {m}) -> ({q}, f32[{shape}], i64[], i64[]) {{
      %y: {q} = {call}0}}
      %l: f32[{shape}] = {call}1}}
      %seed: i64[] = {call}6}}
      %offset: i64[] = {call}7}}
      return %y, %l, %seed, %offset
    }}""")
    assert expanded(graph) is graph
    ctx = PassContext(device=H200, prices=Predictions(H200))
    made = ExpandAttention("auto").run(graph, ctx)
    assert made.results == graph.results and not any(n.kind.startswith("library.aten") for n in made.nodes)
    random = np.random.default_rng(5)
    values = {v.name: random.standard_normal(v.type.shape) for v in graph.inputs}
    values["m"][:, :, 3] = -np.inf
    s = values["q"] @ np.swapaxes(values["k"], -1, -2) * 0.5 + (values["m"] if mask else 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithms = np.log(np.exp(s).sum(-1))
        wanted = np.nan_to_num(np.exp(s - logarithms[..., None])) @ values["v"]
    y, l, *state = interpret(in_double(made), values)
    np.testing.assert_allclose(y, wanted, rtol=1e-6, atol=1e-9)
    padded = np.pad(logarithms, ((0, 0), (0, 0), (0, -rows % 32)), constant_values=np.inf) if library == "efficient" else logarithms
    np.testing.assert_allclose(l, padded.reshape(l.shape), rtol=1e-6)
    assert state == [0, 0]
    kernels = generate(graph, constants={}, input_layouts={}, device=H200, options=Options()).plan.kernels
    walk, = (k for k in kernels if "y" in k.pattern.written)
    assert walk.program.template in ("pipelined_walk", "online") and len(walk.pattern.written) == 2 and len(kernels) <= 2


@pytest.mark.parametrize("mask", ["%m", "%e"], ids=["dense", "of heads, broadcast"])
def test_masks_of_torch_give_zeros_in_hidden_rows(mask: str) -> None:
    """torch gives zeros in rows that are hidden whole; a mask that maps compute is read where they read."""
    graph = parse_graph(f"""graph @g(%q: f16[100, 4, 64, 16], %k: f16[100, 4, 80, 16], %v: f16[100, 4, 80, 16], %m: f16[100, 4, 64, 80],
                                     %b: bool[4, 64, 80]) -> (f16[100, 4, 64, 16]) {{
      %w: f16[4, 64, 80] = map [h, i, j] {{ select(%b[h, i, j], 0.0:f16, -inf:f16) }}
      %e: f16[100, 4, 64, 80] = map [n, h, i, j] {{ %w[h, i, j] }}
      %y: f16[100, 4, 64, 16] = library.aten._scaled_dot_product_efficient_attention.default (%q, %k, %v, {mask})
        {{args = (("%", 0), ("%", 1), ("%", 2), ("%", 3), false), kwargs = (), result = 0}}
      return %y
    }}""")
    made = expanded(graph)
    assert not any(n.kind.startswith("library.aten") for n in made.nodes)
    random = np.random.default_rng(5)
    hidden = random.random((100, 4, 64, 80)) < 0.5
    hidden[:, 2, 7] = True
    values = {n: random.standard_normal((100, 4, 64 if n == "q" else 80, 16)) for n in "qkv"}
    values |= {"m": np.where(hidden, -np.inf, 0.3), "b": ~hidden[0]}
    kept = np.broadcast_to(~hidden if mask == "%m" else ~hidden[0], hidden.shape)
    scores = np.where(kept, values["q"] @ np.swapaxes(values["k"], -1, -2) * 0.25 + (0.3 if mask == "%m" else 0.0), -np.inf)
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = np.nan_to_num(powers / powers.sum(-1, keepdims=True)) @ values["v"]
    np.testing.assert_allclose(interpret(in_double(made), values)[0], wanted, rtol=1e-6, atol=1e-9)
    assert (wanted[:, 2, 7] == 0).all()


def test_heads_share_keys_and_values() -> None:
    """A call of 8 heads with 2 of keys becomes products that read each head of keys for 4 of queries, in one kernel."""
    graph = parse_graph("""graph @g(%q: f16[4, 8, 400, 16], %k: f16[4, 2, 400, 16], %v: f16[4, 2, 400, 16]) -> (f16[4, 8, 400, 16]) {
      %y: f16[4, 8, 400, 16] = library.aten._scaled_dot_product_flash_attention.default (%q, %k, %v)
        {args = (("%", 0), ("%", 1), ("%", 2), 0.0, true), kwargs = (), result = 0}
      return %y
    }""")
    made = expanded(graph)
    assert made is not graph
    random = np.random.default_rng(5)
    values = {n: random.standard_normal((4, 8 if n == "q" else 2, 400, 16)) for n in "qkv"}
    k, v = (np.repeat(values[n], 4, 1) for n in "kv")
    scores = np.where(np.tri(400, dtype=bool), values["q"] @ np.swapaxes(k, -1, -2) * 0.25, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(interpret(in_double(made), values)[0], powers / powers.sum(-1, keepdims=True) @ v, rtol=1e-6, atol=1e-9)
    plan = generate(graph, constants={}, input_layouts={}, device=H200, options=Options()).plan
    assert [k.program.template for k in plan.kernels] == ["pipelined_walk"] and not plan.library_calls


def test_a_cache_of_some_length_is_walked_in_parts_to_its_end() -> None:
    """One query of 32 heads on 8, keys below a length in memory: one kernel, whose walk ends where memory says."""
    b = TensorBuilder("cached")
    q, k, v = (b.input(n, F16, (2, 32 if n == "q" else 8, 1 if n == "q" else 2048, 64)) for n in "qkv")
    column = b.iota((1, 1, 1, 2048), 3, I64)
    seen = b.elementwise("lt", column, b.input("lengths", I64, (2, 1, 1, 1)))
    k, v = (b.repeat_interleave(x, 4, 1) for x in (k, v))
    graph = b.finish([b.attention(q, k, v, b.broadcast_to(seen, (2, 32, 1, 2048)))])
    (kernel,) = generate(graph, constants={}, input_layouts={}, device=H200, options=Options()).plan.kernels
    choice = kernel.program.choice
    assert isinstance(choice, PipelinedWalk) and choice.parts > 1 and choice.heads == 4
    plan = pipelined_walk_of(kernel.program)
    assert plan.form.limit is not None and [e.data is not None for e in plan.form.limit.bounds.edges] == [True]


@pytest.mark.parametrize(("op", "args", "kwargs", "library", "causal", "scale"), [
    ("aten._scaled_dot_product_flash_attention.default", ", 0.0, true", "", "flash", True, 0.25),
    ("aten._scaled_dot_product_cudnn_attention.default", ", none, false, 0.0, false", "(\"scale\", 0.5)", "cudnn", False, 0.5),
    ("aten._scaled_dot_product_efficient_attention.default", ", none, false", "", "efficient", False, 0.25),
    ("aten._scaled_dot_product_flash_attention_for_cpu.default", "", "(\"scale\", 1.0)", "any", False, 1.0),
])
def test_operators_of_torch(op: str, args: str, kwargs: str, library: str, causal: bool, scale: float) -> None:
    """Arguments by position and by name."""
    graph = torch_call(op, f"((\"%\", 0), (\"%\", 1), (\"%\", 2){args})", kwargs + "," if kwargs else "")
    call = attention_call(graph.nodes[0], graph)
    assert call is not None and (call.query, call.key, call.value, call.mask) == ("q", "k", "v", "")
    assert (call.library, call.causal, call.scale) == (library, causal, scale)


def test_the_cheaper_one_is_taken() -> None:
    """A library twice as fast as its record keeps its call."""
    graph = called((64,), 4096, 4096, 64)
    assert expanded(graph) is not graph
    shares = tuple((name, tuple((most, 2 * share) for most, share in by_width)) for name, by_width in H200.fitted.attention.rate_shares)
    faster = replace(H200, fitted=replace(H200.fitted, attention=replace(H200.fitted.attention, rate_shares=shares)))
    assert expanded(graph, faster) is graph


def test_the_price_of_a_call_leaves_out_hidden_tiles() -> None:
    """Of 32 x 32 tiles, 33 / 64 are computed behind a causal mask."""
    def count(graph: Graph) -> int:
        work = attention_work(graph.nodes[0], graph, H200)
        assert work is not None
        return work.operations[0].count

    assert count(called((2,), 4096, 4096, 64)) == 4 * 2 * 4096 * 4096 * 64
    assert count(called((2,), 4096, 4096, 64, causal=True)) == 4 * 2 * 4096 * 4096 * 64 * 33 // 64


def test_one_kernel_reads_and_writes_packed_heads() -> None:
    """Queries, keys and values among those of all heads, and results side by side: no copy around the walk."""
    for graph in (packed_heads(64, 197, 12, 64, F16), written_out(64, 512, 64, F16)):
        made = generate(graph, constants={}, input_layouts={}, device=H200, options=Options())
        assert [k.program.template for k in made.plan.kernels] == ["pipelined_walk"]
