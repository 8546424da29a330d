"""Scripts over a library of elementary BLAS functions, compiled to fused kernels: `tilefuse.blas.compile`."""
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilefuse.scripts.programs import Kind
    from tilefuse.scripts.script import CompiledScript

__all__ = ["compile"]

Folder = str | os.PathLike[str]


def compile(script: str, *, library: Folder | Sequence[Folder] = (), device: Any = None, name: str = "script",
            kind: Kind = "auto", deterministic: bool = False, **options: Any) -> CompiledScript:
    """A function over torch tensors, NumPy or CuPy arrays (or anything with DLPack) of a script's inputs.

    script: the text; docs/blas.md describes the language. library: a folder with functions of your own, or several, searched before
        the shipped ones.
    kind: what kernels are made of: "routines" of the library, "template" (the meanings of the functions), or "auto", the faster one.
    deterministic: no atomic additions, so that results are equal from run to run.
    device: where to run; by default where the arrays lie. options: fields of `tilefuse.base.options.Options`.
    Sizes come from the arguments: the first call with new sizes compiles. Results are new arrays of the first array argument's kind.
    Raises: ParseError and its kin, with line and caret; UserError for what is wrong with a library folder.
    """
    from tilefuse.scripts.script import compile_script

    return compile_script(script, library=library, device=device, name=name, kind=kind, deterministic=deterministic, options=options)
