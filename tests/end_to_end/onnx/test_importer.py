"""Results of the importer for a model: names, constants, folding, function bodies, control flow, old opsets."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.end_to_end.onnx.models import model_of
from tilefuse.base.errors import UnsupportedOpError
from tilefuse.frontends.onnx.call import ValueNeededError
from tilefuse.frontends.onnx.importer import import_onnx
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import print_graph
from tilefuse.onnx_backend import PreparedModel

node = helper.make_node


def same_as_reference(model: onnx.ModelProto, *arrays: np.ndarray) -> Graph:
    """Runs a model on the interpreter and on the onnx package's evaluator, exactly equal or within f32 rounding; gives the graph."""
    prepared = PreparedModel(model, "interpret")
    feeds = dict(zip(prepared.input_names, arrays, strict=True))
    imported, _ = prepared.specialise(feeds)
    expected = ReferenceEvaluator(model).run(None, feeds)
    for result, wanted in zip(prepared.run(list(arrays)), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=1e-6)
    return imported.graph


def subgraph(nodes, inputs, outputs):
    """A body whose ends carry no shapes."""
    return helper.make_graph(
        nodes, "body", [helper.make_empty_tensor_value_info(i) for i in inputs], [helper.make_empty_tensor_value_info(o) for o in outputs]
    )


X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5


def test_nodes_are_called_after_the_model_s_values():
    model = model_of([node("Relu", ["x"], ["layer/act:0"]), node("Neg", ["layer/act:0"], ["y"])], {"x": [2, 3]}, ["y"])
    assert [n.name for n in import_onnx(model).graph.nodes] == ["layer_act_0", "y"]


def test_a_name_that_needs_no_change_is_kept_from_those_that_do():
    """An argument called `x_1` would else feed `x/1`, which then has its name."""
    nodes = [node("Add", ["x/1", "x_1"], ["a/b"]), node("Mul", ["a/b", "x_1"], ["a_b"])]
    model = model_of(nodes, {"x/1": [2, 3], "x_1": [2, 3]}, ["a/b", "a_b"])
    made = import_onnx(model)
    assert made.arguments == tuple(i.name for i in made.graph.inputs) == ("x_1_1", "x_1")
    assert list(made.graph.results) == ["a_b_1", "a_b"]
    same_as_reference(model, X, X + 1)


def test_small_constants_are_inlined_and_large_ones_bound_once():
    weights = {"w": np.ones((2, 3), np.float32), "s": np.float32(3.0)}
    nodes = [node("Mul", ["x", "w"], ["a"]), node("Add", ["a", "w"], ["b"]), node("Mul", ["b", "s"], ["y"])]
    made = import_onnx(model_of(nodes, {"x": [2, 3]}, ["y"], weights))
    assert list(made.constants) == ["w"]
    assert [i.constant for i in made.graph.inputs] == [False, True]


def test_shape_arithmetic_costs_no_node():
    weights = {"tail": np.array([-1]), "zero": np.array([0])}
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["rows"], axis=0),
        node("Concat", ["rows", "tail"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["y"]),
    ]
    graph = same_as_reference(model_of(nodes, {"x": [2, 3, 4]}, ["y"], weights), np.zeros((2, 3, 4), np.float32))
    assert [n.kind for n in graph.nodes] == ["map"]
    assert graph.type_of("y").shape == (2, 12)


def test_gathers_at_equal_distances_are_index_maps():
    nodes = [node("Gather", ["x", "i"], ["y"], axis=1)]
    graph = same_as_reference(model_of(nodes, {"x": [2, 3]}, ["y"], {"i": np.array([2, 1, 0])}), X)
    assert graph.nodes[-1].kind == "map" and "%x[i, -1*j + 2]" in print_graph(graph)


def test_softmax_is_the_same_text_as_from_torch():
    from torch.fx.experimental.proxy_tensor import make_fx

    from tilefuse.frontends.torch.decompositions import decompositions
    from tilefuse.frontends.torch.fx import import_fx

    traced = make_fx(lambda x: torch.softmax(x, -1), decomposition_table=decompositions(), tracing_mode="fake")(torch.zeros(4, 8))
    from_torch = import_fx(traced, "softmax").graph
    from_onnx = import_onnx(model_of([node("Softmax", ["x"], ["y"])], {"x": [4, 8]}, ["y"])).graph
    assert from_torch.nodes[-1].kind == from_onnx.nodes[-1].kind == "library.softmax"
    assert from_torch.nodes[-1].attributes == from_onnx.nodes[-1].attributes
    assert from_torch.nodes[-1].type == from_onnx.nodes[-1].type
    assert len(from_torch.nodes) == len(from_onnx.nodes) == 1


def test_a_local_function_is_walked_in_place():
    body = [node("Mul", ["a", "a"], ["square"]), node("Add", ["square", "b"], ["c"])]
    function = helper.make_function("custom", "SquareAdd", ["a", "b"], ["c"], body, [helper.make_opsetid("", 21)])
    call = node("SquareAdd", ["x", "x"], ["y"], domain="custom")
    graph = same_as_reference(model_of([call], {"x": [2, 3]}, ["y"], domains={"custom": 1}, functions=[function]), X)
    assert len(graph.nodes) == 2


def test_operators_without_a_lowering_use_the_standard_s_function_body():
    graph = same_as_reference(model_of([node("MeanVarianceNormalization", ["x"], ["y"], axes=[1])], {"x": [2, 3]}, ["y"]), X)
    assert len(graph.nodes) > 1


def test_if_with_a_known_condition_takes_one_branch():
    then, otherwise = subgraph([node("Relu", ["x"], ["t"])], [], ["t"]), subgraph([node("Neg", ["x"], ["e"])], [], ["e"])
    nodes = [node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)]
    graph = same_as_reference(model_of(nodes, {"x": [2, 3]}, ["y"], {"c": np.array(False)}), X)
    assert len(graph.nodes) == 1 and "neg(" in print_graph(graph)


def test_if_on_data_computes_both_branches_and_chooses():
    then, otherwise = subgraph([node("Relu", ["x"], ["t"])], [], ["t"]), subgraph([node("Neg", ["x"], ["e"])], [], ["e"])
    nodes = [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["c"]),
        node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise),
    ]
    model = model_of(nodes, {"x": [2, 3]}, ["y"], {"zero": np.float32(0)})
    assert "select(" in print_graph(same_as_reference(model, X))
    same_as_reference(model, X + 5)


def test_loop_with_a_known_trip_count_is_unrolled():
    body = subgraph(
        [node("Identity", ["go"], ["on"]), node("Mul", ["v", "x"], ["next"]), node("Identity", ["next"], ["seen"])],
        ["i", "go", "v"],
        ["on", "next", "seen"],
    )
    nodes = [node("Loop", ["n", "go0", "x"], ["last", "all"], body=body)]
    prepared = PreparedModel(model_of(nodes, {"x": [2, 3]}, ["last", "all"], {"n": np.array(3), "go0": np.array(True)}), "interpret")
    last, everything = prepared.run([X])
    assert (last == X**4).all()
    assert (everything == np.stack([X**2, X**3, X**4])).all()
    imported, _ = prepared.specialise({"x": X})
    assert print_graph(imported.graph).count("mul(") == 3


def test_loop_on_data_is_unsupported():
    body = subgraph(
        [node("Add", ["v", "v"], ["next"]), node("ReduceSum", ["next"], ["s"], keepdims=0), node("Greater", ["limit", "s"], ["on"])],
        ["i", "go", "v"],
        ["on", "next"],
    )
    model = model_of([node("Loop", ["", "go0", "x"], ["y"], body=body)], {"x": [2]}, ["y"], {"limit": np.float32(9), "go0": np.array(True)})
    with pytest.raises(UnsupportedOpError, match=r"Loop \(opset 21\): its condition after step 0 depends on data"):
        import_onnx(model)


def test_scan_is_unrolled_over_its_axis():
    body = subgraph([node("Add", ["total", "row"], ["sum"]), node("Identity", ["sum"], ["out"])], ["total", "row"], ["sum", "out"])
    nodes = [node("Scan", ["start", "x"], ["last", "sums"], body=body, num_scan_inputs=1, scan_input_directions=[1])]
    model = model_of(nodes, {"x": [2, 3]}, ["last", "sums"], {"start": np.zeros(3, np.float32)})
    last, sums = PreparedModel(model, "interpret").run([X])
    assert (last == X[0] + X[1]).all()
    assert (sums == np.stack([X[1], X[0] + X[1]])).all()


def test_sequences_are_lists_while_importing():
    nodes = [
        node("SplitToSequence", ["x", "one"], ["parts"], axis=1),
        node("SequenceAt", ["parts", "last"], ["p"]),
        node("SequenceInsert", ["parts", "p"], ["more"]),
        node("ConcatFromSequence", ["more"], ["y"], axis=1),
    ]
    same_as_reference(model_of(nodes, {"x": [2, 3]}, ["y"], {"one": np.array(1), "last": np.array(-1)}), X)


def test_range_over_data_asks_for_the_value():
    graph = helper.make_graph(
        [node("Range", ["zero", "n", "one"], ["y"])],
        "sample",
        [helper.make_tensor_value_info("n", TensorProto.INT64, [])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, ["k"])],
        [numpy_helper.from_array(np.array(0), "zero"), numpy_helper.from_array(np.array(1), "one")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(ValueNeededError, match="'n'"):
        import_onnx(model)
    assert PreparedModel(model, "interpret").run([np.array(4)])[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("opset", "made"),
    [
        (6, node("Add", ["x", "v"], ["y"], broadcast=1, axis=0)),
        (5, node("Reshape", ["x", "to"], ["y"])),
        (9, node("Slice", ["x"], ["y"], axes=[1], starts=[-2], ends=[99])),
        (10, node("Pad", ["x"], ["y"], pads=[0, 1, 1, 0], value=2.0)),
        (6, node("Clip", ["x"], ["y"], min=-1.0, max=1.0)),
        (12, node("ReduceSum", ["x"], ["y"], axes=[1], keepdims=0)),
        (12, node("Softmax", ["x"], ["y"], axis=0)),
        (12, node("Unsqueeze", ["x"], ["y"], axes=[0, 3])),
        (9, node("Upsample", ["x4", "scales"], ["y"], mode="nearest")),
        (10, node("TopK", ["x", "k"], ["y", "at"], axis=1)),
    ],
)
def test_old_opsets(opset, made):
    """Operands that were attributes in older opsets mean the same."""
    weights = {"v": np.array([1, 2], np.float32), "to": np.array([3, 2]), "scales": np.array([1, 1, 2, 3], np.float32), "k": np.array([2])}
    used = {k: w for k, w in weights.items() if k in made.input}
    name, shape = ("x4", [1, 1, 2, 3]) if "x4" in made.input else ("x", [2, 3])
    expected = {
        "Add": X + np.array([[1], [2]]),
        "Reshape": X.reshape(3, 2),
        "Slice": X[:, -2:],
        "Clip": X.clip(-1, 1),
        "ReduceSum": X.sum(1),
        "Pad": np.pad(X, [(0, 1), (1, 0)], constant_values=2),
        "Softmax": np.exp(X) / np.exp(X).sum(),
        "Unsqueeze": X[None, :, :, None],
        "Upsample": X.repeat(2, 0).repeat(3, 1)[None, None],
        "TopK": np.sort(X, 1)[:, :0:-1],
    }[made.op_type]
    ends = list(made.output)
    graph = helper.make_graph(
        [made],
        "old",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info(o) for o in ends],
        [numpy_helper.from_array(w, k) for k, w in used.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)
    results = PreparedModel(model, "interpret").run([X.reshape(shape)])
    np.testing.assert_allclose(results[0], expected, rtol=1e-6)


def test_random_operators_run_but_are_no_reference():
    """A node with a seed draws the same numbers at every run; the backend lets such models through only when asked."""
    model = model_of([node("RandomUniformLike", ["x"], ["y"], seed=3.0, low=2.0, high=4.0)], {"x": [64]}, ["y"])
    prepared = PreparedModel(model, "interpret", random=True)
    first, second = (prepared.run([np.zeros(64, np.float32)])[0] for _ in range(2))
    assert (first == second).all() and first.min() >= 2 and first.max() < 4 and np.unique(first).size > 60
    with pytest.raises(UnsupportedOpError, match="drawn at random"):
        PreparedModel(model, "interpret")
