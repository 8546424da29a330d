"""Documentation that is generated from tables is up to date, and what the pages name exists."""
from __future__ import annotations

import re
from fnmatch import fnmatch

import pytest

from tests.house.source_tree import PACKAGE, ROOT
from tilefuse.tools import docs


@pytest.mark.parametrize("page", list(docs.PAGES))
def test_generated_pages_are_up_to_date(page: str) -> None:
    """A change of an operator, pass or option table comes with its page."""
    path = ROOT / "docs" / page
    assert path.exists() and path.read_text(encoding="utf-8") == docs.PAGES[page](), f"docs/{page} is out of date: run `make docs`"


def test_the_layout_page_names_every_room_and_only_those() -> None:
    """docs/layout.md lists the folders of the package."""
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    named = set(re.findall(r"^\| `([a-z]+)/`", text, re.MULTILINE))
    assert named == rooms


def test_the_layout_page_names_the_files_of_the_larger_rooms_and_only_those() -> None:
    """docs/layout.md: what the table of the larger rooms names is a module there, or the beginning or end of some; it names them all."""
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    for room in ("ir", "runtime", "frontends", "schedule", "plan", "codegen", "driver"):
        files = [p.stem for p in (PACKAGE / room).glob("*.py") if p.stem != "__init__"]
        lines = re.findall(rf"^\| `{room}/`: ([^|]*)", text, re.MULTILINE)
        named = [name for line in lines for name in re.findall(r"`([a-z_*]+)`", line)]
        assert named and [n for n in named if not any(fnmatch(f, n) for f in files)] == [], f"docs/layout.md names files that {room} lacks"
        left = [f for f in sorted(files) if not any(fnmatch(f, n) for n in named)]
        assert not left, f"docs/layout.md says nothing of {', '.join(left)} in {room}"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/layout.md", "docs/glossary.md", "docs/planning.md",
                                  "docs/arrays.md", "docs/array_passes.md", "docs/blas.md", "docs/gradients.md", "docs/training.md"])
def test_links_and_named_files_exist(page: str) -> None:
    """Every relative link, and every path of ours in code quotes, leads somewhere."""
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    paths = re.findall(r"`((?:src|tests|docs|benchmarks|examples)/[\w./-]+)`", text)
    paths += [f"src/tilefuse/{name}" for name in re.findall(r"`((?:schedule|plan|codegen|driver)/\w+\.py)`", text)]
    folder = (ROOT / page).parent
    missing = [x for x in links if not (folder / x).exists()] + [x for x in paths if not (ROOT / x).exists()]
    assert not missing, f"{page} names what does not exist: {missing}"
