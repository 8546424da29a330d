"""Documentation that is generated from tables is up to date, and what the pages name exists."""
from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.house.source_tree import PACKAGE, ROOT
from tilefuse.tools import docs


@pytest.mark.parametrize("page", list(docs.PAGES))
def test_generated_pages_are_up_to_date(page: str) -> None:
    """A change of an operator, pass or option table comes with its page."""
    path = ROOT / "docs" / page
    is_current = path.exists() and path.read_text(encoding="utf-8") == docs.PAGES[page]()
    assert is_current, f"docs/{page} is out of date: run `make docs` (python -m tilefuse.tools.docs --write)"


def test_the_layout_page_names_every_room_and_only_those() -> None:
    """docs/layout.md lists the folders of the package."""
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    named = set(re.findall(r"^\| `([a-z]+)/`", text, re.MULTILINE))
    assert named == rooms


def test_the_layout_page_names_every_folder_inside_a_room_and_only_those() -> None:
    """docs/layout.md lists the folders of the rooms that hold modules."""
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    folders = {p.parent.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py")}
    lines = re.findall(r"^\| ((?:`[a-z/]+/`(?:, )?)+) \|", text, re.MULTILINE)
    named = {name for line in lines for name in re.findall(r"`([a-z/]+)/`", line) if "/" in name}
    assert named == {f for f in folders if "/" in f}


def pages() -> list[str]:
    """Every page that a reader may open, relative to the repository."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks" / "results").rglob("*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


@cache
def links(page: str) -> list[tuple[str, str]]:
    """Path and fragment of every link of a page that stays inside the repository; the path is empty for one inside the page."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)", text)
    return [(path, fragment) for path, fragment in found if path or fragment]


@cache
def fragments(path: Path) -> set[str]:
    """Fragments that the headings of a page have."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {"".join(c for c in head.lower().replace(" ", "-") if c.isalnum() or c in "-_") for head in heads}


def dangling(page: str) -> list[str]:
    """Links and paths of a page that lead nowhere."""
    folder = (ROOT / page).parent
    missing = [path for path, _ in links(page) if path and not (folder / path).exists()]
    for path, fragment in links(page):
        target = folder / path if path else ROOT / page
        if fragment and target.suffix == ".md" and target.exists() and fragment not in fragments(target):
            missing.append(f"{path}#{fragment}")
    text = (ROOT / page).read_text(encoding="utf-8")
    paths = re.findall(r"`((?:src|tests|docs|benchmarks|examples)/[\w./-]+)`", text)
    rooms = "templates|domain|emit|kernel|printers|plan|driver|scripts|arrays|runtime|passes|ir"
    paths += [f"src/tilefuse/{name}" for name in re.findall(rf"`((?:{rooms})/[\w/]+\.py)`", text)]
    missing += [path for path in paths if not (ROOT / path).exists()]
    return missing


def test_links_and_named_files_exist() -> None:
    """Every relative link with its heading, and every path of ours in code quotes, leads somewhere."""
    missing = {page: names for page in pages() if (names := dangling(page))}
    assert not missing, f"pages name what does not exist: {missing}"


def test_a_dangling_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself can fail: by path, by heading, and in code quotes."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("# One\n[a](other.md) [b](#one) [c](#two) `tests/nowhere.py` `plan/nowhere.py`\n", encoding="utf-8")
    assert dangling("page.md") == ["other.md", "#two", "tests/nowhere.py", "src/tilefuse/plan/nowhere.py"]


def test_every_page_is_two_clicks_from_the_readme() -> None:
    """README.md leads to docs/README.md, and that to every page of docs/."""
    assert ("docs/README.md", "") in links("README.md")
    linked = {(ROOT / "docs" / path).resolve() for path, _ in links("docs/README.md") if path}
    left = [str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")) if p.resolve() not in linked and p.name != "README.md"]
    assert not left, f"docs/README.md does not link {left}"
