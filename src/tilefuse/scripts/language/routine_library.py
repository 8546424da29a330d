"""Libraries of elementary functions: the shipped one and users' folders, and the functions that a call may mean.

A library is a folder with one folder for each function (see scripts/language/metadata.py). Users' libraries come first: a function there
hides the shipped one of the same name. Users' libraries are read and checked whole. Of the shipped library only names are read, and a
function when a script calls it: reading all functions takes as long as choosing the first program of a script.
"""
from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

from tilefuse.base.errors import InternalError, UserError
from tilefuse.scripts.language.elementary import ComposedFunction, ElementaryFunction
from tilefuse.scripts.language.metadata import METADATA, Listed, MetadataReader, Slip

AnyFunction = ElementaryFunction | ComposedFunction
Stamp = tuple[tuple[str, int, int], ...]
AnyFunctionKind = TypeVar("AnyFunctionKind")


class OnDemand(Mapping[str, AnyFunctionKind]):
    """Functions by name; listed ones are read when a caller asks for them."""

    def __init__(self, initial: Mapping[str, AnyFunctionKind | Listed], stamp: Stamp) -> None:
        self._functions = dict(initial)
        self._stamp = stamp

    def __getitem__(self, name: str) -> AnyFunctionKind:
        function = self._functions[name]
        return cast(AnyFunctionKind, _function_of(function, self._stamp)) if isinstance(function, Listed) else function

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __contains__(self, name: object) -> bool:
        return name in self._functions


@dataclass(frozen=True)
class FunctionLibrary:
    """Functions by name.

    composed  functions that consist of calls of others
    calls     name by which scripts call -> names of its functions, which differ in the number of inputs
    """

    functions: Mapping[str, ElementaryFunction]
    composed: Mapping[str, ComposedFunction]
    calls: Mapping[str, tuple[str, ...]]

    def called(self, call: str) -> tuple[AnyFunction, ...]:
        """The functions that a script's call of this name may mean."""
        return tuple(self.functions[n] if n in self.functions else self.composed[n] for n in self.calls.get(call, ()))


def shipped_folder() -> Path:
    """The folder of the library that comes with tilefuse."""
    return Path(__file__).parent / "library"


def read_library(*folders: str | os.PathLike[str], shipped: bool = True) -> FunctionLibrary:
    """The functions of the folders, earlier ones first, and of the shipped library.

    Raises: UserError with every fault of the folders' metadata.
    """
    users: dict[str, AnyFunction] = {}
    for folder in map(Path, folders):
        functions, slips = _read(folder, _stamp(folder))
        _check_usable(folder, slips)
        for function in functions:
            users.setdefault(function.name, function)
    stamp = _stamp(shipped_folder()) if shipped else ()
    listed = {entry.name: entry for entry in _listed(shipped_folder(), stamp) if entry.name not in users}
    plain: dict[str, ElementaryFunction | Listed] = {n: f for n, f in users.items() if isinstance(f, ElementaryFunction)}
    plain |= {n: entry for n, entry in listed.items() if not entry.composed}
    composed: dict[str, ComposedFunction | Listed] = {n: f for n, f in users.items() if isinstance(f, ComposedFunction)}
    composed |= {n: entry for n, entry in listed.items() if entry.composed}
    calls: dict[str, tuple[str, ...]] = {}
    for name, entry in (*plain.items(), *composed.items()):
        calls[entry.called or name] = (*calls.get(entry.called or name, ()), name)
    return FunctionLibrary(OnDemand(plain, stamp), OnDemand(composed, stamp), calls)


def _check_usable(folder: Path, slips: Sequence[Slip]) -> None:
    if slips:
        raise UserError(f"the library {folder} cannot be used:\n" + "\n".join(map(str, slips)),
                        hint="docs/blas.md describes the metadata and the rules for routines")


def library_slips(folder: str | os.PathLike[str]) -> tuple[Slip, ...]:
    """Faults of the metadata of a library, or of a folder that is one function."""
    return _read(Path(folder), _stamp(Path(folder)))[1]


def _folders(folder: Path) -> Sequence[Path]:
    """The folders of functions in a library; the folder itself if it is that of one function."""
    if (folder / METADATA).is_file():
        return [folder]
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "_"))) if folder.is_dir() else []


def _stamp(folder: Path) -> Stamp:
    """Names, sizes and times of the files, so that a changed library is read again."""
    files: list[tuple[str, int, int]] = []
    for function_folder in _folders(folder):
        with os.scandir(function_folder) as entries:
            files += [(e.path, e.stat().st_size, e.stat().st_mtime_ns) for e in entries if e.is_file()]
    return tuple(sorted(files))


@cache
def _listed(folder: Path, stamp: Stamp) -> tuple[Listed, ...]:
    """Names of a library's functions; none if the stamp is empty."""
    return tuple(entry for place in (_folders(folder) if stamp else ()) for entry in MetadataReader(place).listed())


@cache
def _function_of(listed: Listed, stamp: Stamp) -> AnyFunction:
    """One function of the shipped library. Raises: UserError where its metadata are wrong (somebody changed them)."""
    reader = MetadataReader(listed.folder)
    functions = [f for f in reader.functions(listed.dtype) if f.name == listed.name]
    _check_usable(listed.folder, reader.slips)
    if not functions:
        raise InternalError(f"{listed.name} is in {listed.folder} by name only; please report")
    return functions[0]


@cache
def _read(folder: Path, stamp: Stamp) -> tuple[tuple[AnyFunction, ...], tuple[Slip, ...]]:
    if not stamp:
        return (), (Slip(str(folder), "", "is no library: there is no folder with a " + METADATA + " in it",
                         "a library is a folder with one folder for each function; docs/blas.md has an example"),)
    functions: list[AnyFunction] = []
    slips: list[Slip] = []
    for function_folder in _folders(folder):
        reader = MetadataReader(function_folder)
        functions += reader.functions()
        slips += reader.slips
    return tuple(functions), (*slips, *_across(functions))


def _across(functions: Iterable[AnyFunction]) -> Iterable[Slip]:
    """Faults between functions: two with one name, or two that a call may mean."""
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
