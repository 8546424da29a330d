"""Values that a shell completes: models, shapes, options, devices, passes. Nothing of a model is run, and no framework is imported.

The shell asks through typer's own scripts (`tilefuse --install-completion`). Bash cuts words at "=" and ":", which belong to our words
(`-O cache=off`, `file.py:factory`): `joined_words` puts them together before typer reads them.
"""
from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path

from tilefuse.base.options import option_table
from tilefuse.driver.onnx.model_file import EXPORTED_SUFFIX, TEXT_SUFFIXES
from tilefuse.tools.console import emit_text
from tilefuse.tools.python_file import defined

MODEL_SUFFIXES = (".onnx", EXPORTED_SUFFIX, *TEXT_SUFFIXES)
KEPT_SUFFIXES = (*MODEL_SUFFIXES, ".json", ".blas", ".tuned", ".cache")
BREAKS = "=:"
BASH, INSTRUCTION = "complete_bash", "_TILEFUSE_COMPLETE"


def models(incomplete: str) -> list[str]:
    """Model files and folders that begin so; behind "file.py:" the functions and classes of that file."""
    name, colon, begin = incomplete.rpartition(":")
    if colon and name.endswith(".py"):
        return [f"{name}:{name_in_file}" for name_in_file in defined(Path(name)) if name_in_file.startswith(begin)]
    return [*_files(incomplete, MODEL_SUFFIXES), *(f"{path}:" for path in _files(incomplete, (".py",)) if not path.endswith("/"))]


def kept_files(incomplete: str) -> list[str]:
    """Files that `tilefuse info` reads, and folders, that begin so."""
    return list(_files(incomplete, KEPT_SUFFIXES))


def _files(incomplete: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    folder, _, begin = incomplete.rpartition("/")
    place = Path(f"{folder}/") if "/" in incomplete else Path()
    with contextlib.suppress(OSError):
        for path in sorted(place.expanduser().iterdir()):
            if not path.name.startswith(begin) or path.name.startswith(".") and not begin:
                continue
            text = f"{folder}/{path.name}" if "/" in incomplete else path.name
            if path.is_dir():
                yield f"{text}/"
            elif path.suffix in suffixes:
                yield text


def option_values(incomplete: str) -> list[tuple[str, str]]:
    """("name=value", meaning) of options with few legal values, ("name=", meaning) of the others."""
    completions: list[tuple[str, str]] = []
    for row in option_table():
        values = [str(c) for c in row.choices] or (["true", "false"] if isinstance(row.default, bool) else [""])
        completions += [(text, row.doc) for value in values if (text := f"{row.name}={value}").startswith(incomplete.replace("-", "_"))]
    return completions


def devices(incomplete: str) -> list[str]:
    """Executors that --device may name."""
    return [name for name in ("host", "cuda") if name.startswith(incomplete)]


def targets(incomplete: str) -> list[str]:
    """Devices that --target may name."""
    from tilefuse.target.catalog import known_devices

    return [name for name in known_devices() if name.startswith(incomplete)]


def pipelines(incomplete: str) -> list[str]:
    """Passes that may follow in a pipeline's text."""
    import tilefuse.driver.kernel_passes  # noqa: F401  registers the passes of every room
    from tilefuse.passes.manager import PASSES

    before, comma, begin = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in sorted(PASSES) if name.startswith(begin)]


def joined_words(environment: MutableMapping[str, str]) -> str:
    """Puts the words that bash cut at "=" and ":" together again, in place; the part of the current word that bash does not replace.

    Before: COMP_WORDS "tilefuse run -O cache = o", COMP_CWORD 5; after: "tilefuse run -O cache=o", 3, and "cache=" is returned.
    """
    words = environment.get("COMP_WORDS", "").split("\n")
    current = environment.get("COMP_CWORD", "")
    if not current.isdigit() or int(current) >= len(words):
        return ""
    joined: list[str] = []
    place, open_word = 0, False
    for number, word in enumerate(words):
        is_break = bool(word) and not word.strip(BREAKS)
        if joined and (is_break or open_word and word) and (joined[-1] or is_break):
            joined[-1] += word
        else:
            joined.append(word)
        open_word = is_break
        if number == int(current):
            place = len(joined) - 1
    environment["COMP_WORDS"], environment["COMP_CWORD"] = "\n".join(joined), str(place)
    word = joined[place]
    return word[:max(word.rfind(b) for b in BREAKS) + 1]


def answered(ask: Callable[[], object], environment: MutableMapping[str, str]) -> bool:
    """Whether this run is bash's question for completions, which then was answered by `ask` and printed without the part bash keeps."""
    if environment.get(INSTRUCTION) != BASH:
        return False
    joined = joined_words(environment)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        ask()
    emit_text("".join(f"{line.removeprefix(joined)}\n" for line in said.getvalue().splitlines()))
    return True
