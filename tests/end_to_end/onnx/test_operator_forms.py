"""Forms of operators that the onnx package's node tests leave out, against results worked out by hand or by torch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from tests.end_to_end.onnx.models import model_of
from tilefuse.base.errors import UserError
from tilefuse.onnx_backend import PreparedModel

node = helper.make_node
NAN, INF = np.float32("nan"), np.float32("inf")


def run(made: onnx.NodeProto, *arrays: np.ndarray, opset: int = 21, outputs: list[str] | None = None, **held: np.ndarray):
    """Results of one node; its first operands are inputs, those in `held` are known while importing."""
    given = dict(zip(made.input, arrays))
    graph = helper.make_graph(
        [made],
        "forms",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in given.items()],
        [helper.make_empty_tensor_value_info(o) for o in outputs or [o for o in made.output if o]],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return PreparedModel(model, "interpret").run(given)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


# Recurrent layers


@pytest.mark.parametrize("alphas", [[0.3, 0.7], [0.0, 0.7]])
def test_parameters_of_activations_run_on_through_the_directions(alphas):
    """The second direction takes the parameters after those of the first, and a parameter of 0 is one."""
    x, w, r = drawn(3, 2, 4), drawn(2, 5, 4), drawn(2, 5, 5)
    made = node("RNN", ["x", "w", "r"], ["y"], hidden_size=5, direction="bidirectional", activations=["LeakyRelu"] * 2)
    made.attribute.append(helper.make_attribute("activation_alpha", alphas))
    y = run(made, x, w=w, r=r, opset=14)[0]
    for d, steps in enumerate([range(3), range(2, -1, -1)]):
        state = np.zeros((2, 5), np.float32)
        for t in steps:
            inner = x[t] @ w[d].T + state @ r[d].T
            state = np.where(inner < 0, np.float32(alphas[d]) * inner, inner)
            np.testing.assert_allclose(y[t, d], state, rtol=1e-5, atol=1e-6)


# TopK


@pytest.mark.parametrize("length", [12, 1500])
@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_of_equal_elements_and_nan(length, largest):
    """Equal elements come in order of position, NaN counts as the largest; long axes are sorted by the framework."""
    x = np.random.default_rng(1).integers(0, 4, (3, length)).astype(np.float32)
    x[0, [2, 5]], x[1, 4] = NAN, -INF
    values, places = run(node("TopK", ["x", "k"], ["v", "i"], largest=largest), x, k=np.array([6]))
    order = torch.sort(torch.tensor(x), dim=1, stable=True, descending=bool(largest))
    np.testing.assert_array_equal(values, order.values[:, :6].numpy())
    np.testing.assert_array_equal(places, order.indices[:, :6].numpy())


# Resampling


def test_extents_of_resize_are_those_of_f32():
    """10 * 0.7 is 7 in f32, as shape inference has it; in f64 the f32 scale gives 6.99999988."""
    made = node("Resize", ["x", "", "s"], ["y"], mode="nearest")
    assert run(made, drawn(1, 1, 10), s=np.array([1, 1, 0.7], np.float32))[0].shape == (1, 1, 7)


def test_nearest_positions_are_those_of_f32():
    """4 / (4 / 3) is 3; with the f32 scale in f64 it would be cut to 2."""
    made = node("Resize", ["x", "", "s"], ["y"], mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric")
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    assert run(made, x, s=np.array([1, 1, 4 / 3], np.float32))[0].tolist() == [[[0, 0, 1, 2, 3]]]


def test_upsample_by_fractions_and_linear():
    x = np.array([[[0, 3, 6]]], np.float32)
    scales = np.array([1, 1, 1.5], np.float32)
    assert run(node("Upsample", ["x", "s"], ["y"]), x, s=scales, opset=9)[0].tolist() == [[[0, 0, 3, 6]]]
    linear = run(node("Upsample", ["x", "s"], ["y"], mode="linear"), x, s=scales, opset=9)[0]
    np.testing.assert_allclose(linear, [[[0, 2, 4, 6]]], rtol=1e-6)


# Layout


def test_negative_paddings_act_first_in_every_mode():
    x = np.arange(5, dtype=np.float32)
    for mode, wanted in (("wrap", [1, 2, 0, 1, 2]), ("edge", [0, 0, 0, 1, 2]), ("reflect", [2, 1, 0, 1, 2])):
        assert run(node("Pad", ["x", "p"], ["y"], mode=mode), x, p=np.array([2, -2]))[0].tolist() == wanted


def test_results_without_a_name_are_not_asked_for():
    """Batch normalisation of opset 9 trains where the running statistics are wanted; five outputs of which one has a name infer."""
    x, scale, bias, mean, var = drawn(2, 3), *np.abs(drawn(4, 3))
    made = node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "", "", "", ""])
    y = run(made, x, s=scale, b=bias, m=mean, v=var, opset=9)[0]
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(var + 1e-5) * scale + bias, rtol=1e-4, atol=1e-5)


# Arithmetic


def test_shrink_of_whole_numbers_has_fractional_parameters():
    made = node("Shrink", ["x"], ["y"], lambd=1.5, bias=1.5)
    assert run(made, np.arange(-4, 5, dtype=np.int32))[0].tolist() == [-2, -1, 0, 0, 0, 0, 0, 1, 2]


@pytest.mark.parametrize(("op", "wanted"), [("ReduceLogSum", [5, 6]), ("ReduceLogSumExp", [100, 200])])
def test_logarithms_of_sums_of_whole_numbers(op, wanted):
    x = np.array([[100, 99, 3], [200, 199, 56]], np.int32)
    assert run(node(op, ["x", "a"], ["y"], keepdims=0), x, a=np.array([1]))[0].tolist() == wanted


def test_a_limit_left_out_before_opset_11_is_the_largest_finite_number():
    y = run(node("Clip", ["x"], ["y"], max=0.5), np.array([-INF, 1, NAN], np.float32), opset=6)[0]
    np.testing.assert_array_equal(y, np.array([np.finfo(np.float32).min, 0.5, NAN], np.float32))


def test_layer_norm_with_a_scale_that_varies_along_other_axes():
    x, scale, bias = drawn(2, 3, 4), drawn(2, 3, 1), drawn(2, 3, 4)[::-1].copy()
    y = run(node("LayerNormalization", ["x", "s", "b"], ["y"]), x, s=scale, b=bias)[0]
    plain = torch.nn.functional.layer_norm(torch.tensor(x), (4,)).numpy()
    np.testing.assert_allclose(y, plain * scale + bias, rtol=1e-5, atol=1e-6)


def test_convolution_of_no_images():
    """The interpreter cannot infer an extent from nothing; the result is empty too."""
    assert run(node("Conv", ["x", "w"], ["y"]), drawn(0, 4, 5, 5), w=drawn(6, 4, 3, 3))[0].shape == (0, 6, 3, 3)


def test_operators_that_the_opset_calls_deprecated_still_run():
    """GroupNormalization of opset 18 has one scale a group; it was replaced by a definition with one a channel."""
    x, scale, bias = drawn(2, 4, 3), drawn(2), drawn(2)
    y = run(node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2), x, s=scale, b=bias, opset=18)[0]
    spread = [torch.tensor(v).repeat_interleave(2) for v in (scale, bias)]
    wanted = torch.nn.functional.group_norm(torch.tensor(x), 2, *spread)
    np.testing.assert_allclose(y, wanted.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [13, 18, 20])
@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_function_bodies_written_for_an_older_opset(op, opset):
    """The package gives these bodies for opset 13 alone, and torch exports the operators with opset 18."""
    x, labels = drawn(3, 5), np.array([0, 4, 2])
    found = run(node(op, ["x", "y"], ["z"], ignore_index=-100), x, labels, opset=opset)[0]
    wanted = {"S": torch.nn.functional.cross_entropy, "N": torch.nn.functional.nll_loss}[op[0]](torch.tensor(x), torch.tensor(labels))
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5)


# Control flow and sequences


def body(nodes, inputs, outputs):
    return helper.make_graph(
        nodes, "body", [helper.make_empty_tensor_value_info(i) for i in inputs], [helper.make_empty_tensor_value_info(o) for o in outputs]
    )


def test_a_loop_without_steps_shows_nothing():
    inner = body([node("Add", ["v", "x"], ["w"]), node("Identity", ["going"], ["on"])], ["i", "going", "v"], ["on", "w", "w"])
    model = model_of([node("Loop", ["n", "", "x"], ["last", "all"], body=inner)], {"x": [2, 3]}, ["last", "all"], {"n": np.array(0)})
    last, shown = PreparedModel(model, "interpret").run([drawn(2, 3)])
    assert (last == drawn(2, 3)).all() and shown.shape == (0, 2, 3) and shown.dtype == np.float32


def test_sequence_map_walks_its_body_for_every_element():
    inner = body([node("Add", ["e", "same"], ["r"])], ["e", "same"], ["r"])
    nodes = [
        node("SplitToSequence", ["x"], ["parts"], axis=0),
        node("SequenceMap", ["parts", "x"], ["sums"], body=inner),
        node("ConcatFromSequence", ["sums"], ["y"], axis=0),
    ]
    x = drawn(2, 3)
    assert (PreparedModel(model_of(nodes, {"x": [2, 3]}, ["y"]), "interpret").run([x])[0] == np.concatenate([x[:1] + x, x[1:] + x])).all()


def test_nodes_that_no_output_needs_are_not_imported():
    """Exporters leave nodes over; one that cannot be expressed is no matter then."""
    model = model_of([node("NonZero", ["x"], ["left_over"]), node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"])
    assert PreparedModel(model, "interpret").run([np.array([-1, 2], np.float32)])[0].tolist() == [0, 2]


def test_an_input_with_a_value_of_its_own_takes_another():
    model = model_of([node("Add", ["x", "w"], ["y"])], {"x": [2], "w": [2]}, ["y"], {"w": np.ones(2, np.float32)})
    prepared = PreparedModel(model, "interpret")
    x = np.array([1, 2], np.float32)
    assert prepared.run([x])[0].tolist() == [2, 3]
    assert prepared.run({"x": x, "w": 10 * x})[0].tolist() == [11, 22]
    assert prepared.run([x])[0].tolist() == [2, 3]


def test_extents_of_minus_one_are_dynamic():
    model = model_of([node("Neg", ["x"], ["y"])], {"x": [-1, 2]}, ["y"])
    assert PreparedModel(model, "interpret").run([np.ones((3, 2), np.float32)])[0].shape == (3, 2)


# Faults of a node are reported with their place


@pytest.mark.parametrize(
    ("made", "held", "message"),
    [
        (node("Conv", ["x", "w"], ["y"], pads=[1, 1]), {"w": (6, 4, 3, 3)}, "2 paddings for 2 spatial"),
        (node("Conv", ["x", "w"], ["y"], strides=[0, 1]), {"w": (6, 4, 3, 3)}, "strides"),
        (node("Conv", ["x", "w"], ["y"], kernel_shape=[2, 2]), {"w": (6, 4, 3, 3)}, "kernel_shape"),
        (node("Conv", ["x", "w", "b"], ["y"]), {"w": (6, 4, 3, 3), "b": (5,)}, r"instead of \[6\]"),
        (node("MaxPool", ["x"], ["y"], kernel_shape=[2]), {}, "spatial"),
        (node("Flatten", ["x"], ["y"], axis=5), {}, "axis 5"),
        (node("Einsum", ["x"], ["y"], equation="abcd->e"), {}, "no operand"),
        (node("Split", ["x"], ["a", "b", "c"], num_outputs=3, axis=2), {}, None),
        (node("Split", ["x"], list("abcd"), num_outputs=4, axis=3), {}, "4 pieces"),
        (node("Transpose", ["x"], ["y"], perm=[0, 1]), {}, "Transpose|permutation"),
    ],
    ids=lambda v: v.op_type if isinstance(v, onnx.NodeProto) else "",
)
def test_attributes_that_do_not_fit(made, held, message):
    x = drawn(2, 4, 5, 5)
    arrays = {name: np.ones(shape, np.float32) for name, shape in held.items()}
    if message is None:
        assert [a.shape[2] for a in run(made, x, **arrays)] == [2, 2, 1]
        return
    with pytest.raises(UserError, match=message):
        run(made, x, **arrays)


@pytest.mark.parametrize(("axes", "message"), [([1, 1], "twice"), ([7], "axis 7")])
def test_unsqueeze_axes(axes, message):
    with pytest.raises(UserError, match=message):
        run(node("Unsqueeze", ["x", "a"], ["y"]), drawn(2, 3), a=np.array(axes))


def test_expand_that_does_not_broadcast():
    with pytest.raises(UserError, match="do not broadcast"):
        run(node("Expand", ["x", "s"], ["y"]), drawn(2, 3), s=np.array([2, 2]))


def test_a_function_that_calls_itself():
    function = helper.make_function("my", "again", ["a"], ["b"], [node("again", ["a"], ["b"], domain="my")], [helper.make_opsetid("my", 1)])
    model = model_of([node("Neg", ["x"], ["y"])], {"x": [2]}, ["y"])
    model.graph.node[0].op_type, model.graph.node[0].domain = "again", "my"
    model.opset_import.append(helper.make_opsetid("my", 1))
    model.functions.append(function)
    with pytest.raises(UserError, match="calls itself"):
        PreparedModel(model, "interpret")


def test_two_inputs_of_one_name():
    model = model_of([node("Neg", ["x"], ["y"])], {"x": [2]}, ["y"])
    model.graph.input.append(model.graph.input[0])
    with pytest.raises(UserError, match="two inputs called 'x'"):
        PreparedModel(model, "interpret")
