"""Every tutorial runs from its first block to its last, and prints what it shows."""
from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.end_to_end.examples import tutorial
from tilefuse.arrays.evaluation.evaluate import Evaluation
from tilefuse.driver import torch_backend

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_tutorial_runs_and_prints_what_it_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # The pages show the host's output; arrays would lie on a GPU where there is one.
    monkeypatch.setattr(Evaluation, "default_device", staticmethod(lambda: "host"))
    # torch knows compiled code by its function: a class of torch's that an earlier test compiled would count as its second size here.
    torch_backend.reset()
    try:
        with tutorial.registries_kept():
            assert tutorial.run(page) > 0
    finally:
        torch_backend.reset()


@pytest.mark.parametrize(("text", "fault"), [
    ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "page.md:6: the page says\n2\n"),
    ("```sh\ntilefuse options --nothing\n```\n", "page.md:2: tilefuse options --nothing ended with 2"),
    ("```sh\nrm -r .\n```\n", "page.md:2: only commands of tilefuse are run"),
    ("```text\n1\n```\n", "page.md:2: an output that nothing printed"),
    ("```ruby\n1\n```\n", "page.md:2: a block in ruby, which nobody runs"),
])
def test_what_a_page_says_and_does_not_do_is_a_failure(text: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(AssertionError) as caught:
        tutorial.run(page)
    assert str(caught.value).startswith(fault)


def test_blocks_share_a_session_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```python file=own.py\nx = 1\nprint('a')\n```\n\n```python\nprint(x, open('own.py').read()[:5], 0.25)\n```\n\n"
                    "```text\n1 x = 1 0...\n```\n", encoding="utf-8")
    assert tutorial.run(page) == 1
