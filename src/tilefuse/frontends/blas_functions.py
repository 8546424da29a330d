"""Libraries of elementary functions: the shipped one and users' folders, and finding the function that a call means.

A library is a folder with one folder a function (see blas_metadata.py). Users' libraries come first: a function there hides the shipped
one of the same name.
"""
from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tilefuse.base.errors import UserError
from tilefuse.frontends.blas_metadata import METADATA, MetadataReader, Slip
from tilefuse.ir.elementary import ComposedFunction, ElementaryFunction

AnyFunction = ElementaryFunction | ComposedFunction


@dataclass(frozen=True)
class FunctionLibrary:
    """Functions by name, and by the name that scripts call (where several stand, they differ in the number of inputs).

    composed: those that are calls of others.
    """

    functions: Mapping[str, ElementaryFunction]
    composed: Mapping[str, ComposedFunction] = field(default_factory=dict)

    @property
    def called(self) -> dict[str, tuple[AnyFunction, ...]]:
        """Call name -> its functions."""
        found: dict[str, tuple[AnyFunction, ...]] = {}
        everything: list[AnyFunction] = [*self.functions.values(), *self.composed.values()]
        for function in everything:
            name = function.called or function.name
            found[name] = (*found.get(name, ()), function)
        return found


def shipped_folder() -> Path:
    """The folder of the library that comes with tilefuse."""
    return Path(__file__).parent / "blas_library"


def read_library(*folders: str | os.PathLike[str], shipped: bool = True) -> FunctionLibrary:
    """The functions of the folders, earlier ones first, and of the shipped library.

    Raises: UserError that tells every slip of the folders' metadata.
    """
    found: dict[str, AnyFunction] = {}
    for folder in (*map(Path, folders), *([shipped_folder()] if shipped else [])):
        functions, slips = _read(folder, _stamp(folder))
        if slips:
            raise UserError(f"the library {folder} cannot be used:\n" + "\n".join(map(str, slips)),
                            hint="docs/blas.md describes the metadata and the rules for routines")
        for function in functions:
            found.setdefault(function.name, function)
    return FunctionLibrary({n: f for n, f in found.items() if isinstance(f, ElementaryFunction)},
                           {n: f for n, f in found.items() if isinstance(f, ComposedFunction)})


def library_slips(folder: str | os.PathLike[str]) -> tuple[Slip, ...]:
    """What is wrong with the metadata of a library, or of a folder that is one function."""
    return _read(Path(folder), _stamp(Path(folder)))[1]


def _folders(folder: Path) -> Sequence[Path]:
    """The folders of functions: the folder itself, where it holds the metadata of one."""
    if (folder / METADATA).is_file():
        return [folder]
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "_"))) if folder.is_dir() else []


def _stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the files, so that a changed library is read again."""
    found: list[tuple[str, int, int]] = []
    for one in _folders(folder):
        with os.scandir(one) as entries:
            found += [(e.path, e.stat().st_size, e.stat().st_mtime_ns) for e in entries if e.is_file()]
    return tuple(sorted(found))


@cache
def _read(folder: Path, stamp: tuple[tuple[str, int, int], ...]) -> tuple[tuple[AnyFunction, ...], tuple[Slip, ...]]:
    if not stamp:
        return (), (Slip(str(folder), "", "is no library: there is no folder with a " + METADATA + " in it",
                         "a library is a folder with one folder a function; docs/blas.md has an example"),)
    functions: list[AnyFunction] = []
    slips: list[Slip] = []
    for one in _folders(folder):
        reader = MetadataReader(one)
        functions += reader.functions()
        slips += reader.slips
    return tuple(functions), (*slips, *_across(functions))


def _across(functions: Iterable[AnyFunction]) -> Iterable[Slip]:
    """Slips between functions: one name twice."""
    by_name: dict[str, AnyFunction] = {}
    by_call: dict[tuple[str, int], AnyFunction] = {}
    for function in functions:
        first = by_name.setdefault(function.name, function)
        call = (function.called or function.name, len(function.inputs))
        other = by_call.setdefault(call, function)
        if first is not function:
            yield Slip(str(Path(function.origin) / METADATA), "names", f"{function.name} is also defined in {first.origin}",
                       "rename one of them")
        elif other is not function:
            yield Slip(str(Path(function.origin) / METADATA), "called", f"scripts already call {call[0]} with {call[1]} arguments for "
                       f"{other.name}", "functions of one call name differ in the number of inputs")
