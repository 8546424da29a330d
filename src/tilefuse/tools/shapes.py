"""Shape flags in the manner of the ONNX tools: `--shapes x:1x3x224x224 --shapes ids:1x128@i64`, or several in one, by commas."""
from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tilefuse.base.errors import OptionError, nearest
from tilefuse.ir.dtype import DTYPES

# The colon before the extents is the last one: ONNX input names may contain colons ("input:0").
_FORM = re.compile(r"(?P<name>.+):(?P<extents>scalar|\d+(x\d+)*)(@(?P<dtype>\w+))?$")


@dataclass(frozen=True, slots=True)
class ShapeFlag:
    """One input's extents, and its dtype where the flag names it."""

    name: str
    shape: tuple[int, ...]
    dtype: str | None = None


def parse_shapes(flags: Iterable[str]) -> dict[str, ShapeFlag]:
    """The inputs named by shape flags, in order. `scalar` stands for no extents.

    Raises: OptionError for a flag that has not the form NAME:1x2x3 or NAME:1x2x3@dtype, a repeated name or an unknown dtype.
    """
    flag_by_name: dict[str, ShapeFlag] = {}
    for text in (part.strip() for flag in flags for part in flag.split(",")):
        if not text:
            continue
        match = _FORM.fullmatch(text)
        if match is None:
            raise OptionError(f"--shapes {text!r} is not of the form NAME:1x2x3", hint="for example x:1x3x224x224, or ids:1x128@i64")
        name, dtype = match["name"], match["dtype"]
        if dtype is not None and dtype not in DTYPES:
            raise OptionError(f"--shapes {text!r}: unknown dtype {dtype!r}", hint=nearest(dtype, DTYPES) or f"known: {', '.join(DTYPES)}")
        if name in flag_by_name:
            raise OptionError(f"--shapes names {name!r} twice")
        extents = () if match["extents"] == "scalar" else tuple(int(e) for e in match["extents"].split("x"))
        flag_by_name[name] = ShapeFlag(name, extents, dtype)
    return flag_by_name
