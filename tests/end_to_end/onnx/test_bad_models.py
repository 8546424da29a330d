"""Every way in which a model file can be wrong or unsupported gives an error that names the file, node, operator or flag."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.end_to_end.onnx.models import model_of
from tilefuse.base.errors import ShapeError, UnsupportedOpError, UserError
from tilefuse.frontends.onnx.call import ValueNeededError
from tilefuse.frontends.onnx.importer import import_onnx


def relu_model(**more):
    return model_of([helper.make_node("Relu", ["x"], ["y"], name="act")], {"x": [2, 3]}, ["y"], **more)


def test_missing_file_names_the_nearest(tmp_path):
    onnx.save(relu_model(), tmp_path / "network.onnx")
    with pytest.raises(UserError, match=r"no ONNX file .*netwrok\.onnx[\s\S]*network\.onnx"):
        import_onnx(tmp_path / "netwrok.onnx")


def test_folder_instead_of_file(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        import_onnx(tmp_path)


@pytest.mark.parametrize("data", [b"\xff\xff\xff not a model", b"GIF89a" * 30, relu_model().SerializeToString()[:-7]])
def test_corrupt_bytes(data, tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"broken\.onnx"):
        import_onnx(path)


@pytest.mark.parametrize("name", ["Relu", "nodename", "graphname", "invalue", "outvalue"])
def test_names_that_are_not_utf8(name):
    """As a damaged file has them; the onnx package gives such names as bytes."""
    node = helper.make_node("Relu", ["invalue"], ["outvalue"], name="nodename")
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in ("invalue", "outvalue")]
    data = helper.make_model(helper.make_graph([node], "graphname", values[:1], values[1:])).SerializeToString()
    with pytest.raises(UserError, match="is not UTF-8 text"):
        import_onnx(data.replace(name.encode(), b"\xff" * len(name)))


def test_values_that_nothing_defines():
    with pytest.raises(UserError, match="the model gives back 'q', but no node"):
        import_onnx(model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": [2, 3]}, ["q"]))
    with pytest.raises(UserError, match="value 'z' is used, but no node"):
        import_onnx(model_of([helper.make_node("Add", ["x", "z"], ["y"])], {"x": [2, 3]}, ["y"]))


def test_empty_file():
    with pytest.raises(UserError, match="holds no graph"):
        import_onnx(b"")


def test_external_data_missing(tmp_path):
    weight = np.arange(4096, dtype=np.float32)
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [4096]}, ["y"], {"w": weight})
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert len(import_onnx(tmp_path / "m.onnx").constants) == 1
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(UserError, match=r"tensor 'w'.*weights\.bin.*does not exist"):
        import_onnx(tmp_path / "m.onnx")


def test_external_data_without_a_folder(tmp_path):
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [64]}, ["y"], {"w": np.ones(64, np.float32)})
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    with pytest.raises(UserError, match="lies outside"):
        import_onnx((tmp_path / "m.onnx").read_bytes())


def test_initializer_cut_short():
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [64]}, ["y"], {"w": np.ones(64, np.float32)})
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]
    with pytest.raises(UserError, match="w"):
        import_onnx(model)


def test_unknown_operator_names_the_nearest():
    model = relu_model()
    model.graph.node[0].op_type = "Sofmax"
    with pytest.raises(UnsupportedOpError, match=r"Sofmax \(opset 21, node 'act'\)[\s\S]*Softmax"):
        import_onnx(model)


def test_unknown_domain():
    model = relu_model()
    model.graph.node[0].domain = "com.example"
    with pytest.raises(UnsupportedOpError, match=r"com\.example"):
        import_onnx(model)


def test_opset_too_new():
    model = relu_model()
    model.opset_import[0].version = 999
    with pytest.raises(UnsupportedOpError, match=r"opset 999; the newest"):
        import_onnx(model)


def test_unsupported_type_names_the_input():
    model = model_of([helper.make_node("Identity", ["x"], ["y"])], {"x": [2]}, ["y"], element=onnx.TensorProto.STRING)
    with pytest.raises(UnsupportedOpError, match=r"STRING is not supported[\s\S]*input 'x'"):
        import_onnx(model)


def test_data_dependent_shape_names_operator_and_opset():
    model = model_of([helper.make_node("NonZero", ["x"], ["y"])], {"x": [2, 2]}, ["y"])
    with pytest.raises(UnsupportedOpError, match=r"NonZero \(opset 21\): the shape of its result depends on the data"):
        import_onnx(model)


def test_dynamic_extent_names_input_and_flag():
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": ["batch", 3]}, ["y"])
    told = r"'x' has dynamic extents: batchx3[\s\S]*--shapes x:1x3; or the extent alone, for every input: --shapes batch:1"
    with pytest.raises(ShapeError, match=told):
        import_onnx(model)
    assert import_onnx(model, {"x": (5, 3)}).graph.inputs[0].type.shape == (5, 3)


def test_a_named_extent_may_be_given_alone():
    model = model_of([helper.make_node("Add", ["x", "b"], ["y"])], {"x": ["batch", 3], "b": ["batch", 1]}, ["y"])
    assert [i.type.shape for i in import_onnx(model, shapes={"batch": (4,)}).graph.inputs] == [(4, 3), (4, 1)]
    with pytest.raises(ShapeError, match="'batch' is an extent of the model's inputs, but 4x3 is given"):
        import_onnx(model, shapes={"batch": (4, 3)})
    with pytest.raises(ShapeError, match="extent 'batch' is 4 by the shape of 'batch' and 5 by the shape of 'x'"):
        import_onnx(model, shapes={"batch": (4,), "x": (5, 3)})
    with pytest.raises(UserError, match=r"no input 'bacth'[\s\S]*batch"):
        import_onnx(model, shapes={"bacth": (4,)})


def test_a_named_extent_is_given_once_for_all_inputs():
    nodes = [helper.make_node("Add", ["x", "z"], ["y"])]
    model = model_of(nodes, {"x": ["n", 3], "z": ["n", 1]}, ["y"])
    assert import_onnx(model, {"x": (5, 3)}).graph.type_of("z").shape == (5, 1)
    with pytest.raises(ShapeError, match=r"extent 'n' is 5 by the shape of 'x' and 6"):
        import_onnx(model, {"x": (5, 3), "z": (6, 1)})


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"y0": (2, 3)}, "no input 'y0'"),
        ({"x": (2,)}, "2 dimensions"),
        ({"x": (2, 4)}, "2x3 in the model"),
        ({"x": 4}, "shape of input 'x' is 4"),
        ({"x": ("n", 3)}, "shape of input 'x' is"),
        ({"x": (2.5, 3)}, "shape of input 'x' is"),
        ([(2, 3)], "not a mapping"),
    ],
)
def test_shapes_that_contradict_the_model(shapes, message):
    with pytest.raises(UserError, match=message):
        import_onnx(relu_model(), shapes)


def test_shape_from_an_input_asks_for_its_value():
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "to"], ["y"], name="form")],
        "sample",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [6]), helper.make_tensor_value_info("to", onnx.TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(ValueNeededError, match=r"node form \(Reshape, opset 21\).*'to'") as caught:
        import_onnx(model)
    assert caught.value.inputs == ("to",)
    made = import_onnx(model, values={"to": np.array([2, 3])}).graph
    assert [i.name for i in made.inputs] == ["x"]
    assert made.type_of(made.results[0]).shape == (2, 3)


def test_use_before_definition():
    nodes = [helper.make_node("Relu", ["late"], ["y"]), helper.make_node("Relu", ["x"], ["late"])]
    graph = helper.make_graph(
        nodes,
        "sample",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
    )
    with pytest.raises(UserError, match="late"):
        import_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def test_operands_that_do_not_fit_name_the_node():
    weight = numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "sample",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [weight],
    )
    with pytest.raises(UserError, match="product"):
        import_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
