"""The page's text: whole, escaped, the same each time; and what is said where a package is missing."""
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.pages.models import resnet
from tilefuse.base.errors import UnsupportedError, UserError
from tilefuse.pages import libraries
from tilefuse.pages.libraries import Library, script_of
from tilefuse.pages.page import page_text, program_data
from tilefuse.runtime.page import spec_data, write_page

needs_packages = pytest.mark.skipif(bool(libraries.missing()), reason=f"packages of pages are missing: {', '.join(libraries.missing())}")

SMALL: dict[str, Any] = {
    "name": "a<b", "device": "host", "kernels": [
        {"name": "first", "step": "k0", "nodes": ["t"], "reads": ["x"], "writes": ["t"], "bytes_read": 4, "bytes_written": 4, "edges": []}],
    "library": [], "copies": [], "views": [], "rejected": [], "steps": [["kernels", 0]], "inputs": [["x", "x"]], "results": [["t", "t"]],
    "graph": {"inputs": [{"name": "x", "type": "f32[1]", "bytes": 4, "constant": False}], "results": ["t"], "updates": [],
              "nodes": [{"name": "t", "kind": "map", "type": "f32[1]", "bytes": 4, "reads": ["x"]}]}}


def data_of(page: str) -> dict[str, Any]:
    """Data that a page carries for its scripts."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    made: dict[str, Any] = json.loads(found[1])
    return made


@needs_packages
def test_the_users_text_is_never_markup() -> None:
    page = page_text("a<b", [program_data(SMALL, {"first": "// </script><!--<script> float x;"})])
    assert "<title>a&lt;b</title>" in page
    assert data_of(page)["programs"][0]["sources"] == {"first": "// </script><!--<script> float x;"}
    assert page.count("<script") == 4 and page.count("</script>") == 4


@needs_packages
def test_a_page_asks_no_network_and_is_the_same_each_time() -> None:
    page = page_text("p", [program_data(SMALL, {})])
    assert page == page_text("p", [program_data(SMALL, {})])
    assert not re.search(r"""(?:src|href)\s*=\s*["']|@import|url\(|fetch\(|XMLHttpRequest""", page.split("<script")[0])
    own = page[page.rindex("<script>"):]
    assert "http" not in own and "import(" not in own


@needs_packages
def test_every_program_writes_its_page(tmp_path: Path) -> None:
    path = resnet().view(tmp_path / "resnet.html")
    assert path == tmp_path / "resnet.html"
    told = data_of(path.read_text(encoding="utf-8"))["programs"][0]
    assert len(told["sources"]) == 20 and len(told["explanation"]["kernels"]) == told["explanation"]["num_kernels"]


@needs_packages
def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        write_page("p", [program_data(SMALL, {})], tmp_path / "nowhere" / "p.html")


def test_a_missing_package_is_named_with_its_remedy() -> None:
    with pytest.raises(UnsupportedError, match="tilefuse_none") as caught:
        script_of(Library("nothing", "tilefuse_none", "x.js", "x"))
    assert "tilefuse[view]" in str(caught.value)


def test_a_package_with_other_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "changed_package").mkdir()
    (tmp_path / "changed_package" / "__init__.py").write_text("")
    (tmp_path / "changed_package" / "x.js").write_text("something else")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnsupportedError, match="changed_package"):
        script_of(Library("nothing", "changed_package", "x.js", "wanted = "))


def test_a_program_without_a_plan_is_told_by_its_steps() -> None:
    """Fused routines of a script have no explanation: the page has their kernels, reads and order all the same."""
    spec = resnet().spec
    bare = spec_data(type(spec)(**{f: getattr(spec, f) for f in spec.__slots__ if f not in ("explanation", "plan_seconds")}))
    told = bare["explanation"]
    assert told["num_kernels"] == 52 and len(told["steps"]) == 105
    full = {(e["target"].partition("/")[0], e["value"]) for e in spec_data(spec)["drawing"]["edges"] if not e["target"].startswith("r")}
    drawn = {(e["target"].partition("/")[0], e["value"]) for e in bare["drawing"]["edges"] if not e["target"].startswith("r")}
    inner = {(k, v) for k, v in full if v in {n for kernel in resnet().explain(json=True)["kernels"] for n in kernel["nodes"]}}
    assert drawn >= {(k, v) for k, v in full - inner}
