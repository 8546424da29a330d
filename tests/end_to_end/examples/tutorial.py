"""Runs a tutorial as a reader would: its blocks in order, in one folder and one Python session, and compares what they print.

A block ```python is run; any block with `file=NAME` behind the language is written to that file. ```sh holds commands of tilefuse. ```text
is what the block in front of it printed; `...` stands for anything (times, names of kernels). ```console is a picture.
"""
from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tilefuse.driver.kernel_passes  # noqa: F401  registers the package's own, before anything is kept
from tilefuse.ir.custom import CUSTOM_FUNCTIONS
from tilefuse.ir.ops import SCALAR_OPS
from tilefuse.passes import PASSES
from tilefuse.tools import cli

BLOCK = re.compile(r"^```(\w+)((?: [^\n]*)?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SESSION = "tutorial_session"
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


# Where a page may enter something of its own.
REGISTRIES: tuple[dict[str, Any], ...] = (PASSES, SCALAR_OPS, CUSTOM_FUNCTIONS)


@contextlib.contextmanager
def registries_kept() -> Iterator[None]:
    """Takes out again what a page registers: passes and operators of its own are no part of the package."""
    before = [dict(registry) for registry in REGISTRIES]
    try:
        yield
    finally:
        for registry, kept in zip(REGISTRIES, before, strict=True):
            registry.clear()
            registry.update(kept)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page; `line` is where its text begins, `file` the name behind `file=`."""

    language: str
    file: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        named = re.search(r"file=(\S+)", match[2])
        found.append(Block(match[1], named[1] if named else "", match[3], text.count("\n", 0, match.start(3)) + 1))
    return found


def run(page: Path) -> int:
    """Run the page in the working folder; the number of outputs that were compared.

    Raises: AssertionError with the page's line where a command fails or prints something else.
    """
    session = types.ModuleType(SESSION)
    printed: str | None = None
    compared = 0
    sys.modules[SESSION] = session
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        match block.language:
            case "python":
                if block.file:
                    Path(block.file).write_text(block.text, encoding="utf-8")
                # Errors and inspect.getsource find the lines by the file's name.
                name = str(Path(block.file).resolve()) if block.file else str(page)
                code = compile("\n" * (0 if block.file else block.line - 1) + block.text, name, "exec", dont_inherit=True)
                printed = _printed(lambda code=code: exec(code, session.__dict__))
            case "sh":
                lines = filter(None, (row.partition("  #")[0].strip() for row in block.text.splitlines()))
                printed = "".join([_command(line, where) for line in lines])
            case "text" if not block.file:
                assert printed is not None, f"{where}: an output that nothing printed; use another language for other text"
                is_same = doctest.OutputChecker().check_output(block.text, printed, SAME)
                assert is_same, f"{where}: the page says\n{block.text}\nprinted was\n{printed}"
                printed, compared = None, compared + 1
            case other:
                assert block.file or other == "console", f"{where}: a block in {other}, which nobody runs"
                if block.file:
                    Path(block.file).parent.mkdir(parents=True, exist_ok=True)
                    Path(block.file).write_text(block.text, encoding="utf-8")
    return compared


def _printed(action: Any) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        action()
    return out.getvalue()


def _command(line: str, where: str) -> str:
    command, _, target = line.partition(" > ")
    words = shlex.split(command)
    assert words[0] == "tilefuse", f"{where}: only commands of tilefuse are run: {line}"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(words[1:])
    assert status == 0, f"{where}: {line} ended with {status}\n{out.getvalue()}{err.getvalue()}"
    if target:
        Path(target.strip()).write_text(out.getvalue(), encoding="utf-8")
        return ""
    return out.getvalue()
