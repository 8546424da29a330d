"""Every kind of program writes its page, with all its kernels and their sources."""
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilefuse
from tilefuse import array, blas
from tilefuse.base.errors import UserError
from tilefuse.driver import torch_backend
from tilefuse.pages import libraries

pytestmark = pytest.mark.skipif(bool(libraries.missing()), reason=f"packages of pages are missing: {', '.join(libraries.missing())}")


def programs_of(page: Path) -> list[dict[str, Any]]:
    """What a page carries."""
    found = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    made: list[dict[str, Any]] = json.loads(found[1])["programs"]
    for program in made:
        kernels = program["explanation"]["kernels"]
        assert kernels and all(program["sources"][k["name"]] for k in kernels)
        assert [b["kind"] for b in program["drawing"]["boxes"]].count("kernel") == len(kernels)
    return made


def test_models_of_torch_and_saved_programs(tmp_path: Path) -> None:
    """A compiled module measures a run from its own arguments; the saved program draws the same graph without the compiler."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval()
    x = torch.zeros(4, 8)
    made = tilefuse.compile(model, [x], device="host")
    (told,) = programs_of(made.view(tmp_path / "model.html", arguments=[x]))
    assert len(told["times"]) == len(told["explanation"]["steps"])
    made.save(tmp_path / "saved")
    (saved,) = programs_of(tilefuse.load(tmp_path / "saved").view(tmp_path / "saved.html"))
    assert saved["drawing"] == told["drawing"]


def test_all_that_torch_compile_made_is_one_page(tmp_path: Path) -> None:
    torch.compiler.reset()
    torch_backend.reset()
    with pytest.raises(UserError, match="no program"):
        torch_backend.view(tmp_path / "none.html")

    def two(x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x) + 1
        torch._dynamo.graph_break()
        return torch.sin(y) * 2

    with torch.no_grad():
        torch.compile(two, backend="tilefuse")(torch.zeros(4, 8))
    assert len(programs_of(torch_backend.view(tmp_path / "torch.html"))) == 2


def test_scripts_show_the_programs_of_their_calls(tmp_path: Path) -> None:
    script = blas.compile("subvector32 x, y, z; scalar a; input a, x, y; z = saxpy(a, x, y); return z;", name="axpy")
    with pytest.raises(UserError, match="call it once"):
        script.view(tmp_path / "none.html")
    script(2.0, np.ones(64, np.float32), np.ones(64, np.float32))
    (told,) = programs_of(script.view(tmp_path / "script.html"))
    assert {e["value"] for e in told["drawing"]["edges"]} >= {"x", "y"}


def test_functions_of_arrays_show_theirs(tmp_path: Path) -> None:
    function = array.compile(lambda x: array.exp(x) + 1)
    with pytest.raises(UserError, match="call it once"):
        function.view(tmp_path / "none.html")
    function(np.ones((4, 8), np.float32))
    assert len(programs_of(function.view(tmp_path / "arrays.html"))) == 1
