"""BLAS scripts as arguments of commands: read with their sizes, and planned for a device that need not be present."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilefuse.base.errors import NameLookupError, OptionError, UserError, nearest

if TYPE_CHECKING:
    from tilefuse.runtime.spec import KernelCode, ProgramSpec
    from tilefuse.scripts.script import CompiledScript
    from tilefuse.target.device import DeviceSpec
    from tilefuse.tools.shapes import ShapeFlag

SCRIPT_SUFFIX = ".blas"
Extents = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class PlannedScript:
    """A script's program of fused routines, as sources."""

    spec: ProgramSpec
    device: DeviceSpec

    def explain(self, json: bool = False) -> Any:
        """Why these kernels, as `Generated.explain`."""
        from tilefuse.runtime.explanation import explanation_data, explanation_text

        data = explanation_data(self.spec)
        return data if json else explanation_text(data)

    @property
    def kernels(self) -> tuple[KernelCode, ...]:
        """The kernels' sources and launches."""
        return self.spec.kernels


def is_script(model: str) -> bool:
    """Whether a command's argument names a script."""
    return Path(model).suffix == SCRIPT_SUFFIX


def script_text(path: Path) -> str:
    """The text of a script. Raises: UserError for a file that cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as cause:
        raise UserError(f"cannot read the script {path}: {cause}") from cause


def extents_of(function: CompiledScript, flags: Mapping[str, ShapeFlag]) -> Extents:
    """Extents of a script's inputs, from flags. Raises: OptionError, NameLookupError for a flag too few, too many or of another type."""
    extents = {name: flag.shape for name, flag in flags.items()}
    missing = [n for n in function.inputs if n not in extents and function.resolved.kinds[n] != "scalar"]
    if missing:
        example = ",".join(f"{n}:{'1000x1000' if function.resolved.kinds[n] == 'matrix' else '1000'}" for n in missing)
        raise OptionError(f"the sizes of {', '.join(missing)} are not known", hint=f"--shapes {example}")
    for name in extents:
        if name not in function.inputs:
            raise NameLookupError(f"the script has no input {name!r}", hint=nearest(name, function.inputs))
        own = function.resolved.dtypes[name].name
        if flags[name].dtype not in (None, own):
            raise OptionError(f"--shapes gives {name} the type {flags[name].dtype}, the script's functions take {own}",
                              hint="functions that begin with s take f32, with d f64")
    return extents


def planned_script(path: Path, flags: Mapping[str, ShapeFlag], device: str | DeviceSpec, options: Mapping[str, str]) -> Any:
    """The program of a script for given sizes: `Generated` where its kernels are made from meanings, else `PlannedScript`.

    Raises: as `extents_of`, and as reading and compiling a script.
    """
    from tilefuse.driver.compile import present_device
    from tilefuse.scripts.explain import explained
    from tilefuse.scripts.script import compile_script

    where = present_device(device)[0] if isinstance(device, str) else device
    function = compile_script(script_text(path), device="host", name=path.stem, options=options)
    search = function.search(function.graph_for(extents_of(function, flags)), where)
    choice = function.chosen(search)
    whole = search.whole_program() if choice.combination is None else None
    return PlannedScript(explained(search, choice).spec, where) if whole is None else whole
