"""`tilefuse info`: every kind of file is told of without compiling it, and nothing in it is run."""
from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import tilefuse
from tests.unit.pages.models import attention, encoder
from tilefuse.runtime.stores.signature import new_key
from tilefuse.tools import cli
from tilefuse.tools.info import file_facts, info_lines

ROOT = Path(__file__).resolve().parents[3]


def told(path: Path) -> tuple[dict[str, Any], str]:
    facts = file_facts(path)
    return facts, "\n".join(info_lines(facts))


def small_model(path: Path) -> Path:
    weight = numpy_helper.from_array(np.ones((3, 4), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y\x1b[31m"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y\x1b[31m", TensorProto.FLOAT, ["batch", 4])], [weight])
    onnx.save(helper.make_model(graph, producer_name="by hand", opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_an_onnx_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = small_model(tmp_path / "m.onnx")
    facts, text = told(path)
    assert facts["kind"] == "ONNX model" and facts["operators"] == {"MatMul": 1, "Relu": 1} and facts["opset"] == {"ai.onnx": 17}
    assert (facts["weights"], facts["weight_bytes"], facts["producer"]) == (1, 48, "by hand")
    assert "input x: f32[batch, 3]" in text and "weights 1, 48 B" in text
    assert cli.main(["info", str(path)]) == 0
    out = capsys.readouterr().out
    assert "result y\\x1b[31m: f32[batch, 4]" in out and "\x1b" not in out
    assert cli.main(["info", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["shape"] == ["batch", 4]


def test_weights_beside_a_model_are_named_and_missed(tmp_path: Path) -> None:
    model = onnx.load(small_model(tmp_path / "m.onnx"))
    onnx.save(model, tmp_path / "out.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    facts, _ = told(tmp_path / "out.onnx")
    assert (facts["external_files"], facts["missing_files"], facts["weight_bytes"]) == (["w.bin"], [], 48)
    (tmp_path / "w.bin").unlink()
    assert "note the file w.bin is missing" in told(tmp_path / "out.onnx")[1]


def test_a_program_of_torch_export_is_read_and_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 4)

        def forward(self, x: torch.Tensor, n: int) -> dict[str, Any]:
            y = self.linear(x) * n
            return {"y": y, "rest": (y.relu(), None)}

    path = tmp_path / "m.pt2"
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Model(), (torch.ones(2, 3), 3), dynamic_shapes=({0: batch}, None))
    torch.export.save(program, path)
    monkeypatch.setattr(torch, "load", None)
    monkeypatch.setattr(pickle, "loads", None)
    monkeypatch.setattr(pickle, "load", None)
    facts, text = told(path)
    assert facts["kind"] == "program of torch.export" and facts["arguments"] == ["x", "n"] and facts["weights"] == 2
    (x, n) = facts["inputs"]
    assert x["dtype"] == "f32" and isinstance(x["shape"][0], str) and x["shape"][1] == 3 and n == {"name": "n", "type": "always 3"}
    assert facts["weight_bytes"] == 64 and facts["operators"]["aten.linear.default"] == 1
    assert f"condition 2 <= {x['shape'][0]} <= 64" in text and "structure of the results dict(y: *, rest: tuple(*, *))" in text


def test_a_saved_program_and_its_signature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, other, path = tmp_path / "key", tmp_path / "other", tmp_path / "saved"
    made, _ = new_key(key), new_key(other)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.GELU()).eval()
    with torch.no_grad():
        tilefuse.compile(model, [torch.zeros(3, 8)], device="host").save(path, sign=key)
    facts, text = told(path)
    assert facts["kind"] == "saved program" and facts["device"] == "host" and facts["kernels"] >= 1
    assert [i["shape"] for i in facts["inputs"]] == [[3, 8]] and [r["shape"] for r in facts["results"]] == [[3, 4]]
    assert facts["weight_bytes"] >= 8 * 4 * 4 and facts["weights"] >= 1
    assert f"signature of key {made.name}, not verified" in text
    assert cli.main(["info", str(path), "--require-signature", str(key)]) == 0
    assert f"signature of key {made.name}, verified" in capsys.readouterr().out
    assert cli.main(["info", str(path), "--require-signature", str(other)]) == 2
    assert cli.main(["explain", str(path), "--summary"]) == 0, "a saved program carries its explanation"
    assert " on host: " in capsys.readouterr().out


def test_a_saved_model_tells_how_it_is_called_and_what_it_gives(tmp_path: Path) -> None:
    def scaled(x: torch.Tensor, n: int = 2, *, scale: torch.Tensor) -> dict[str, Any]:
        return {"logits": x * n * scale, "rest": (x.relu(), None)}

    path = tmp_path / "saved"
    with torch.no_grad():
        tilefuse.compile(scaled, (torch.ones(3, 4), 2), example_kwargs={"scale": torch.ones(4)}, device="host").save(path)
    facts, text = told(path)
    assert facts["structure"] == "dict(logits: *, rest: tuple(*, *))" and facts["conditions"] == ["n is 2"]
    assert "called with 3 arguments" in text and "condition n is 2" in text and "structure of the results dict(" in text
    assert facts["inputs"][-1] == {"name": "scale", "dtype": "f32", "shape": [4]}


def test_texts_tell_their_kind(tmp_path: Path) -> None:
    graph, text = told(ROOT / "examples" / "attention.txt")
    assert graph["kind"] == "graph" and "input q: f16[96, 64, 64]" in text and graph["operators"]["library.matmul"] == 2
    script, text = told(ROOT / "examples" / "bicgk.blas")
    assert script["kind"] == "BLAS script" and script["operators"] == {"sgemv": 1, "sgemtv": 1} and "input A: matrix" in text
    plan = tmp_path / "plan.txt"
    plan.write_text("// by hand\n" + attention().spec.plan_text)
    facts, _ = told(plan)
    assert (facts["kind"], facts["device"], facts["kernels"]) == ("plan", "h200", 1)


def test_an_explanation_and_tuning_results(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    explanation = encoder().explain(json=True)
    path.write_text(json.dumps(explanation))
    facts, text = told(path)
    assert facts["kind"] == "explanation" and facts["kernels"] == len(explanation["kernels"]) and facts["operators"]["gelu"] == 2
    assert "input src: f32[2, 16, 64]" in text
    path.write_text("".join(json.dumps({"device": d, "key": "k", "template": "t", "done": d == "a"}) + "\n" for d in "aab"))
    facts, text = told(path)
    assert facts["kind"] == "tuning results" and facts["devices"] == {"a": 2, "b": 1} and facts["finished"] == 2


def test_a_file_that_is_none_of_these_is_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("a", "b")
    for name, data in (("a.md", b"# words; and more"), ("b.bin", bytes(range(256))), ("c.zip", zipped.getvalue()), ("d.onnx", b"no"),
                       ("e.json", b"{}"), ("f.txt", b"")):
        path = tmp_path / name
        path.write_bytes(data)
        assert cli.main(["info", str(path)]) == 2, name
        assert name in capsys.readouterr().err
    assert cli.main(["info", str(tmp_path / "none")]) == 2
    path = small_model(tmp_path / "m.onnx")
    new_key(tmp_path / "key")
    assert cli.main(["info", str(path), "--require-signature", str(tmp_path / "key")]) == 2
    assert "not signed" in capsys.readouterr().err
