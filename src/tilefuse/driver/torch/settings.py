"""Settings of the torch backend: the meaning of torch.compile's `mode` and `options` for tilefuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilefuse.base.errors import OptionError, nearest
from tilefuse.base.options import Options, option_table

# Options that each mode of torch.compile changes. Names are torch's, so that a script needs no change but the backend's name.
MODES: dict[str, dict[str, object]] = {
    "default": {},
    "reduce-overhead": {"cuda_graph": True},
    "max-autotune": {"cuda_graph": True, "measure": True},
    "max-autotune-no-cudagraphs": {"measure": True},
}

# Options of the backend itself, beside those of the compiler: default and meaning.
BACKEND_OPTIONS: dict[str, tuple[object, str]] = {
    "strict": (False, "raise errors of the compiler itself instead of running the graph in torch and writing a reproducer"),
    "recompile_limit": (64, "number of shapes and other variants of one function that are compiled and kept"),
    "sizes_at_once": (1, "sizes of an axis, and graphs of a function, that are compiled at their first call, which waits; a later one runs "
                         "in torch until it returns. 0: the first one, too; its second call then waits. With dynamic=True all sizes run in "
                         "torch first"),
    "compile_at_call": (2, "number of the call at which a size is compiled that is not compiled at once; 1: its first, 0: never"),
    "in_background": (True, "compile sizes that return in a process of their own, while torch runs their calls; off: the call waits"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """One torch.compile call's settings."""

    options: Options
    strict: bool
    recompile_limit: int
    sizes_at_once: int
    compile_at_call: int
    in_background: bool


def settings_of(mode: str | None, options: Mapping[str, Any] | None) -> Settings:
    """The settings that `mode` and `options` name; the environment's where they name none.

    Raises: OptionError for an unknown mode or option (nearest names offered), or a value of the wrong type.
    """
    chosen = mode or "default"
    if chosen not in MODES:
        raise OptionError(f"unknown mode {chosen!r}", hint=nearest(chosen, MODES) or f"known: {', '.join(MODES)}")
    chosen_options: dict[str, Any] = {**MODES[chosen], **(options or {})}
    known = list_options()
    for name in chosen_options:
        if name not in known:
            raise OptionError(f"unknown option {name!r}", hint=nearest(name, known) or f"known: {', '.join(known)}")
    own = {name: _own(name, chosen_options.pop(name, default), default) for name, (default, _) in BACKEND_OPTIONS.items()}
    return Settings(Options.from_environment().with_overrides(**chosen_options), **own)


def _own(name: str, value: Any, default: Any) -> Any:
    if type(value) is not type(default):
        raise OptionError(f"option {name} is {type(default).__name__}, not {value!r}", hint=BACKEND_OPTIONS[name][1])
    if value < 0:
        raise OptionError(f"option {name} is {value}, and must not be negative", hint=BACKEND_OPTIONS[name][1])
    return value


def list_options() -> dict[str, object]:
    """Every name that `torch.compile(..., options={...})` may give, with its default."""
    return {o.name: o.default for o in option_table()} | {name: default for name, (default, _) in BACKEND_OPTIONS.items()}


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """Options that each mode sets, or those of one mode. Raises: OptionError for an unknown mode."""
    if mode is None:
        return {name: dict(changes) for name, changes in MODES.items()}
    if mode not in MODES:
        raise OptionError(f"unknown mode {mode!r}", hint=nearest(mode, MODES) or f"known: {', '.join(MODES)}")
    return dict(MODES[mode])
