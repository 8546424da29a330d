"""Whole models compared: peers by the kind of model, the reference in f64, and reports in words and as data."""
from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import tilefuse
from tilefuse.base.errors import OptionError, UserError
from tilefuse.driver.compare.meaning import results_of, widened
from tilefuse.driver.compare.peers import PEERS, Subject, reference
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph, print_graph

HALVES = """graph @g(%x: f16[4, 6], const %w: f16[6, 3]) -> (f16[4, 3], i64[4]) {
  %y: f16[4, 3] = library.matmul (%x, %w)
  %z: f16[4, 3] = map [i, j] { f16(exp(add(f32(%y[i, j]), 0.1:f32))) }
  %a: i64[4] = reduce.argmax [i] over [k < 3] { f32(%z[i, k]) }
  return %z, %a
}
"""


def halves() -> tuple[object, dict[str, np.ndarray]]:
    draw = np.random.default_rng(3)
    return parse_graph(HALVES), {"x": draw.standard_normal((4, 6)).astype(np.float16), "w": draw.standard_normal((6, 3)).astype(np.float16)}


def test_the_meaning_in_declared_types_is_the_interpreters() -> None:
    graph, inputs = halves()
    expected = interpret(graph, inputs)
    for ours, theirs in zip(results_of(graph, inputs, wide=False), expected, strict=True):
        torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=2e-3, atol=1e-3)


def test_in_f64_nothing_rounds() -> None:
    graph, inputs = halves()
    text = print_graph(widened(graph))
    assert "f16" not in text and "f32" not in text and "f64(exp(add(f64(" in text
    y = inputs["x"].astype(np.float64) @ inputs["w"].astype(np.float64)
    wide, first = results_of(graph, inputs, wide=True)
    exact = np.exp(y + float(np.float32(0.1)))
    np.testing.assert_allclose(wide.numpy(), exact, rtol=1e-14)
    assert first.tolist() == exact.argmax(1).tolist()


def layers() -> torch.nn.Module:
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32)).eval()


def test_a_model_agrees_with_every_peer_that_it_has() -> None:
    x = torch.randn(5, 16)
    for against in ("eager", "unfused", "interpreter", layers()(x), lambda x: layers()(x)):
        found = tilefuse.compare(layers(), (x,), against, device="host")
        assert found.agrees and found.first is None and found.reference == "", str(found)
    assert json.loads(json.dumps(found.as_data()))["outputs"][0]["shape"] == [5, 32]


def test_a_difference_is_named_with_its_worst_element_and_who_is_wrong() -> None:
    x = torch.randn(5, 16)
    expected = layers()(x).detach()
    expected[2, 7] += 0.5
    found = tilefuse.compare(layers(), (x,), expected, device="host")
    assert not found.agrees and found.first is not None and found.first.num_outside == 1
    assert "worst at [2, 7]" in str(found) and "theirs is off" in str(found) and "the torch model in f64" in str(found)


def test_the_reference_of_a_torch_model_keeps_no_smaller_type() -> None:
    """Conversions inside the model are widened, too."""
    def model(x: torch.Tensor) -> torch.Tensor:
        return (x.half() * 3).float() + torch.zeros(4, dtype=torch.float16)

    x = torch.rand(4)
    found, independent, _ = reference(Subject("torch", model, [x], {}, {}, {}, torch.device("cpu")))
    assert independent and found is not None and found[0].dtype == torch.float64
    assert torch.equal(found[0], x.double() * 3)


def test_the_reference_takes_no_shortcut_of_torch() -> None:
    """For encoder layers torch has one whose GELU on a GPU is the approximation by tanh: 3e-4 from the layer's definition, in f64 too."""
    seen: list[bool] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.backends.mha.get_fastpath_enabled())
        return x + 1

    reference(Subject("torch", model, [torch.rand(4)], {}, {}, {}, torch.device("cpu")))
    assert seen == [False] and torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize(("against", "says"), [("onnxruntime", "eager, inductor, unfused, interpreter"), ("eagre", "did you mean eager")])
def test_a_peer_that_the_model_has_not_is_refused(against: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        tilefuse.compare(layers(), (torch.randn(5, 16),), against, device="host")


def test_inputs_are_needed() -> None:
    with pytest.raises(UserError, match="none were given"):
        tilefuse.compare(parse_graph(HALVES), against="interpreter")


def test_a_graph_is_compared_with_its_definition() -> None:
    graph = parse_graph(HALVES.replace("const ", ""))
    _, inputs = halves()
    found = tilefuse.compare(graph, [inputs["x"], inputs["w"]], "interpreter", device="host")
    assert found.agrees and [o.name for o in found.outputs] == ["z", "a"]
    assert set(PEERS["graph"]) == {"interpreter", "unfused"}


@pytest.mark.parametrize(("operator", "args"), [
    ("efficient", '("%", 0), ("%", 1), ("%", 2), ("%", 3), false, 0.0, true'),
    ("flash", '("%", 0), ("%", 1), ("%", 2), 0.0, true, false'),
    ("cudnn", '("%", 0), ("%", 1), ("%", 2), ("%", 3), false, 0.0, true, false')])
def test_attention_kernels_of_gpus_have_a_definition_on_the_host(operator: str, args: str) -> None:
    """In f64, with the bias and the mask that their arguments tell; the sums that nobody reads have none, which is no error."""
    shape = "f16[1, 2, 4, 8]"
    biased = ", %b" if "3)" in args else ""
    text = f"""graph @g(%q: {shape}, %k: {shape}, %v: {shape}, %b: f16[1, 2, 4, 4]) -> ({shape}) {{
  %y: {shape} = library.aten._scaled_dot_product_{operator}_attention.default (%q, %k, %v{biased}) {{args = ({args}), result = 0}}
  %l: f32[1, 2, 4] = library.aten._scaled_dot_product_{operator}_attention.default (%q, %k, %v{biased}) {{args = ({args}), result = 1}}
  return %y
}}"""
    draw = np.random.default_rng(5)
    graph = parse_graph(text)
    inputs = {i.name: draw.standard_normal(i.type.shape).astype(np.float16) for i in graph.inputs}
    (found,) = results_of(graph, inputs, wide=True)
    q, k, v, b = (torch.from_numpy(inputs[n]).double() for n in "qkvb")
    scores = q @ k.mT / 8**0.5 + (b if biased else 0)
    scores = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(found, scores.softmax(-1) @ v, rtol=1e-12, atol=1e-12)
