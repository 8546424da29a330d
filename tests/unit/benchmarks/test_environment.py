"""The commit in a record's header: from the variable, from git, from an exported copy."""
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.environment import COMMIT_VARIABLE, commit_of
from tilefuse.base.options import Options

DIGEST = "0123456789abcdef0123456789abcdef01234567"


def exported(root: Path, text: str) -> Path:
    """A copy of the tree with the archive's note."""
    (root / "benchmarks").mkdir(parents=True)
    (root / "benchmarks" / "commit.txt").write_text(text + "\n")
    return root


def test_the_variable_goes_first(tmp_path: Path) -> None:
    """Whoever exports a tree by other means can say what it is; the compiler does not take the variable for an option."""
    Options.from_mapping({COMMIT_VARIABLE: DIGEST})
    assert commit_of(exported(tmp_path / "a", DIGEST), {"BENCHMARK_COMMIT": "feedbeef" * 4}) == "feedbeeffeed"


@pytest.mark.parametrize(("text", "wanted"), [(DIGEST, DIGEST[:12]), ("$Format:%H$", "unknown")])
def test_an_exported_copy_says_its_commit(tmp_path: Path, text: str, wanted: str) -> None:
    """Also inside another repository, whose commit is not ours."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert commit_of(exported(tmp_path / "copy", text), {}) == wanted


def test_a_working_tree_says_what_git_says(tmp_path: Path) -> None:
    """An archive of the same tree says the same."""
    commands = (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "one"])
    exported(tmp_path / "tree", "$Format:%H$")
    (tmp_path / "tree" / ".gitattributes").write_text("benchmarks/commit.txt export-subst\n")
    for command in commands:
        subprocess.run(["git", *command], cwd=tmp_path / "tree", check=True)
    (tmp_path / "copy").mkdir()
    archive = subprocess.run(["git", "archive", "HEAD", "benchmarks"], cwd=tmp_path / "tree", check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x"], cwd=tmp_path / "copy", input=archive, check=True)
    told = commit_of(tmp_path / "tree", {})
    assert len(told) == 12 and commit_of(tmp_path / "copy", {}) == told
