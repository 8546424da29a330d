"""Logs by name, as torch has them: TILEFUSE_LOGS="+plan,recompiles" or `tilefuse.set_logs("+plan,recompiles")`.

    name    lines that tell what happened (logging.INFO)
    +name   details as well (logging.DEBUG)
    -name   errors only (logging.ERROR), where `all` was asked for

Each name is a logger of the standard module `logging` below "tilefuse" ("tilefuse.plan"), so programs may handle them in their own way.
Nothing is shown by default but warnings, on the logger "tilefuse" itself.
"""
from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

from tilefuse.base.errors import OptionError, nearest
from tilefuse.base.printable import printable

# Name -> (what its lines tell, what + adds).
NAMES: dict[str, tuple[str, str]] = {
    "graph_breaks": ("where torch ended a graph, and why", "the explanation and a hint"),
    "recompiles": ("functions that torch compiles again, and the guard that failed", "all of the reason"),
    "fallbacks": ("operators and graphs that run in the framework, with the reason", ""),
    "sizes": ("sizes of a graph that are compiled, run in torch, or are forgotten", ""),
    "background": ("compiles in the background: asked for, done, loaded", "why one was not made there"),
    "plan": ("the plan of every program, as text", ""),
    "kernels": ("every kernel of a program: nodes, bytes, launch", "the time of every step, measured before a program's first call"),
    "cache": ("plans and kernels that were found on disk, or why not", "every kernel"),
    "calls": ("calls of programs: the first, and the first replay of a recording", "every call, with its time on the host"),
    "time": ("how long each stage of a compile takes", ""),
    "device": ("what each program is compiled for", ""),
    "source": ("the kernels' sources", ""),
    "ir": ("the graph after each pass", ""),
    "rules": ("every rewrite rule that was applied", ""),
    "rejected": ("every candidate that the planner gave up, with its reason", ""),
}
VARIABLE, OUT_VARIABLE = "TILEFUSE_LOGS", "TILEFUSE_LOGS_OUT"
ROOT = "tilefuse"
LEVELS = {"+": logging.DEBUG, "-": logging.ERROR}

_ours: list[logging.Handler] = []
# Called when the settings change: who would have to look at them at every call is told instead.
_listeners: list[Callable[[], None]] = []


def log_of(name: str) -> logging.Logger:
    """The logger of a name."""
    return logging.getLogger(f"{ROOT}.{name}")


def is_shown(name: str, level: int = logging.INFO) -> bool:
    """Whether lines of a name are shown; ask before building a costly text. Cost: 0.1 us where they are not."""
    return log_of(name).isEnabledFor(level)


def listen(changed: Callable[[], None]) -> None:
    """Has `changed` called when logs are switched on or off."""
    _listeners.append(changed)


def parse_logs(text: str) -> dict[str, int]:
    """Levels by name, in order, of a list like "+plan,recompiles,-cache".

    Raises: OptionError for an unknown name, with the nearest ones.
    """
    found: dict[str, int] = {}
    for word in filter(None, (w.strip() for w in text.split(","))):
        name = word.lstrip("+-")
        if name == "help":
            continue
        if name not in NAMES and name != "all":
            raise OptionError(f"unknown log {name!r} in {text!r}",
                              hint=nearest(name, NAMES) or f"known: all, {', '.join(NAMES)}; help prints what they tell")
        found[name] = LEVELS.get(word[0], logging.INFO)
    return found


def help_text() -> str:
    """The list of names for people."""
    rows = [f"  {name:13s} {told}{f'; +{name}: {more}' if more else ''}" for name, (told, more) in NAMES.items()]
    return "\n".join([
        f"{VARIABLE}: names with commas between them; +name tells more, -name nothing but errors", "",
        f"  {'all':13s} all of these", *rows, "",
        "Examples:", f"  {VARIABLE}=graph_breaks,recompiles,fallbacks   what torch runs, and why",
        f"  {VARIABLE}=+kernels                          kernels with measured times",
        f"  {VARIABLE}=all,-cache                        everything but the cache",
        f"  {OUT_VARIABLE}=run.log                   writes the lines to a file, too",
        "In a program: tilefuse.set_logs('graph_breaks,+kernels')", ""])


def set_logs(text: str = "", *, out: str = "", **levels: bool | int | None) -> None:
    """Shows the logs that `text` and the keywords name, and no others; see `tilefuse.set_logs`.

    Raises: OptionError for an unknown name, or a file that cannot be written.
    """
    if os.environ.get(VARIABLE):
        logging.getLogger(ROOT).warning("tilefuse.set_logs changes nothing: %s is set, and goes before it", VARIABLE)
        return
    named = [f"{_sign(level)}{name}" for name, level in levels.items() if level]
    _apply(",".join([*filter(None, [text]), *named]), out)


def _sign(level: bool | int | None) -> str:
    """The mark before a name that stands for a level."""
    if level is True or level is None:
        return ""
    return "+" if level <= logging.DEBUG else "-" if level >= logging.ERROR else ""


def from_environment(environment: Mapping[str, str]) -> None:
    """Shows the logs of TILEFUSE_LOGS. A bad list is left to the first compile, which tells of it."""
    try:
        _apply(environment.get(VARIABLE, ""), environment.get(OUT_VARIABLE, ""))
    except OptionError:
        return


def _apply(text: str, out: str) -> None:
    levels = parse_logs(text)
    if any(word.strip().lstrip("+-") == "help" for word in text.split(",")):
        print(help_text(), file=sys.stderr)
    root = logging.getLogger(ROOT)
    for handler in _ours:
        root.removeHandler(handler)
        handler.close()
    _ours.clear()
    for name in NAMES:
        log_of(name).setLevel(levels.get(name, levels.get("all", logging.WARNING)))
    # With a handler of ours a line is ours alone to show; without one it is the program's, as logging has it.
    root.propagate = not levels
    if levels:
        _ours.append(_StandardError())
        if out:
            try:
                _ours.append(logging.FileHandler(out, encoding="utf-8"))
            except OSError as cause:
                raise OptionError(f"{OUT_VARIABLE}={out!r} cannot be written: {cause.strerror or cause}",
                                  hint="name a file in a folder that exists") from cause
        for handler in _ours:
            handler.setFormatter(_Lines())
            root.addHandler(handler)
    for changed in _listeners:
        changed()


# A program that shows all of its own logs has not asked for ours: some make a compile tell all that it does.
for _name in NAMES:
    log_of(_name).setLevel(logging.WARNING)


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the time of a line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record."""
        self.stream = sys.stderr
        super().emit(record)


class _Lines(logging.Formatter):
    """A line with its log's name before it."""

    def format(self, record: logging.LogRecord) -> str:
        """`[tilefuse plan] text`; warnings of the logger "tilefuse" as they are."""
        name = record.name.removeprefix(ROOT).lstrip(".")
        text = printable(super().format(record))
        return f"[{ROOT} {name}] {text}" if name else text
