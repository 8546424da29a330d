"""Scripts over a library of elementary BLAS functions, compiled to fused kernels: `tilefuse.blas.compile`."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilefuse.driver.script import CompiledScript

__all__ = ["compile"]


def compile(script: str, *, library: Sequence[str] = (), device: Any = None, name: str = "script", **options: Any) -> CompiledScript:
    """A function over torch tensors, NumPy or CuPy arrays (or anything with DLPack) of a script's inputs.

    script: the text; docs/blas.md describes the language. library: folders with functions of your own, searched before the shipped ones.
    device: where to run; by default where the arrays lie. options: fields of `tilefuse.base.options.Options`.
    Sizes come from the arguments: the first call with new sizes compiles. Results are new arrays of the first array argument's kind.
    Raises: ParseError and its kin, with line and caret; UserError for what is wrong with a library folder.
    """
    from tilefuse.driver.script import compile_script

    return compile_script(script, library=library, device=device, name=name, options=options)
