"""The error tree. Every message says what was wrong, where, with which values, and what to do.

Only `UnsupportedError` may cause a fallback. Expected failure inside a search is not an error but a
`Rejected` value (see `candidate.py`).
"""
from __future__ import annotations

import difflib
from collections.abc import Iterable

from tilefuse.base.printable import printable
from tilefuse.base.source import Span


class CompilerError(Exception):
    """Root of all errors that tilefuse raises on purpose."""

    def __init__(self, message: str, *, where: Span | str | None = None, hint: str | None = None, notes: Iterable[str] = ()) -> None:
        self.message = message
        self.where = where
        self.hint = hint
        text = message
        if where is not None:
            text += f"\n  at {where}"
        if hint:
            text += f"\n  hint: {hint}"
        super().__init__(printable(text))
        for note in notes:
            self.add_note(note)

    def add_note(self, note: str, /) -> None:
        """Adds a line below the message. Names of the user's model may stand in it: no terminal obeys them."""
        super().add_note(printable(note))


class UserError(CompilerError):
    """The input is wrong; the message speaks of the input."""


class ParseError(UserError):
    """A text does not parse; `where` is the line and column."""


class TypeMismatchError(UserError, TypeError):
    """A dtype is not the one required."""


class ShapeError(UserError, ValueError):
    """A shape or extent is not the one required."""


class AxisError(ShapeError, IndexError):
    """An axis or a subscript is outside its array."""


class IndexRangeError(UserError, IndexError, RuntimeError):
    """An index or label that the program was called with lies outside what it indexes; of the classes that frameworks raise for it."""


class SharingError(UserError, ValueError, BufferError):
    """Memory cannot be shared as it was asked for."""


class NameLookupError(UserError):
    """A name is unknown; the hint gives the nearest known names."""


class OptionError(UserError):
    """An unknown pass, option or value; the hint gives the legal ones."""


class UnsupportedError(CompilerError):
    """The input is fine, but we cannot do it (yet); callers may fall back."""


class UnsupportedOpError(UnsupportedError):
    """An operator, opset or operator attribute that this frontend or stage does not cover."""


class UnsupportedDeviceError(UnsupportedError):
    """A device or architecture that this stage does not cover."""


class InfeasibleError(CompilerError):
    """A search ended with nothing; the notes carry every rejected candidate, grouped by reason."""


class ToolchainError(CompilerError):
    """NVRTC, nvcc, the C++ compiler or the solver failed; log path, source path and command are named."""


class DeviceError(CompilerError):
    """A device call failed: call, code and name."""


class OutOfMemoryError(DeviceError):
    """The device has too little memory; the message carries the memory plan."""


class InternalError(CompilerError):
    """Our bug: please report it with the trace folder."""


class VerifyError(InternalError):
    """A graph breaks a rule after a pass: pass, rule, node, text before and after."""


class PipelineError(InternalError):
    """A pass needs a property that nothing before it establishes."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> str | None:
    """A hint naming the known names nearest to `name`, small and capital letters taken as equal, or None if none is near."""
    by_small: dict[str, list[str]] = {}
    for one in sorted(known):
        by_small.setdefault(one.lower(), []).append(one)
    close = [one for small in difflib.get_close_matches(name.lower(), by_small, n=count, cutoff=0.5) for one in by_small[small]]
    return f"did you mean {' or '.join(close[:count])}?" if close else None
