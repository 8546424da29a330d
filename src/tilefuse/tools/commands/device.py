"""The commands about devices: calibrate."""
from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tilefuse.base.errors import UserError
from tilefuse.target.device import DeviceSpec
from tilefuse.tools.console import emit_json, errors, results, working


def calibrate(device: Annotated[str, typer.Option("--device", help="host or cuda; default: the GPU if there is one")] = "",
              out: Annotated[Path | None, typer.Option("--out", help="file to write instead of the one the compiler reads")] = None,
              most_mib: Annotated[int, typer.Option("--most-mib", min=1, max=16384, help="largest copy of the curve, in MiB")] = 1024,
              blas: Annotated[bool, typer.Option("--blas", help="the BLAS library's routines instead, for predictions of scripts")] = False,
              library: Annotated[list[Path] | None, typer.Option("--library", help="--blas: folder with functions of your own")] = None,
              only: Annotated[str, typer.Option("--functions", help="--blas: comma list of functions; default: all")] = "",
              seconds: Annotated[float | None, typer.Option("--seconds", min=0.1,
                                                            help="--blas: begin nothing after so many seconds")] = None,
              as_json: Annotated[bool, typer.Option("--json", help="print JSON on standard output")] = False) -> None:
    """Measure what moving bytes, launches and arithmetic cost on a device; compiles for it use the figures from then on."""
    from tilefuse.driver.compile import present_device
    from tilefuse.runtime.calibrate import bench_of, calibrate
    from tilefuse.runtime.stores.cache import default_folder, new_part, write_whole
    from tilefuse.target.calibration import calibration_path
    from tilefuse.tools.programs import chosen_device

    spec, place = present_device(chosen_device(device))
    if blas:
        _calibrate_blas(spec, place, library or (), only, math.inf if seconds is None else seconds, as_json)
        return
    folder = default_folder()
    path = out if out is not None or folder is None else calibration_path(folder, spec)
    if path is None:
        raise UserError("the cache is off, so there is no place for the figures", hint="name a file with --out, or unset TILEFUSE_CACHE")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_part(path.parent):
            pass  # minutes of measuring would be lost where the figures cannot be written
    except OSError as cause:
        raise UserError(f"cannot write {path}: {cause.strerror}") from cause
    with working(f"measuring {spec.name}", quiet=as_json) as progress:
        task = progress.task_ids[0]
        measured = calibrate(spec, bench_of(spec, int(place.partition(":")[2] or 0)), largest=most_mib << 20,
                             progress=lambda text: progress.update(task, description=f"{spec.name}: {text}"))
    try:
        write_whole(path, measured.text().encode())
    except OSError as cause:
        raise UserError(f"cannot write {path}: {cause.strerror}") from cause
    if as_json:
        import json

        emit_json({"file": str(path), **json.loads(measured.text())})
        return
    size, us = measured.transfer_curve[-1]
    results().print(f"{spec.name}: launch {measured.launch_us:.2f} us, in a graph {measured.graph_launch_us:.2f} us, "
                    f"{size / us / 1e3:.0f} GB/s at {size >> 20} MiB", highlight=False)
    errors().print(f"figures in {path}", markup=False, highlight=False)



def _calibrate_blas(spec: DeviceSpec, place: str, folders: Sequence[Path], only: str, seconds: float, as_json: bool) -> None:
    from tilefuse.base.errors import NameLookupError, nearest
    from tilefuse.base.options import Options
    from tilefuse.scripts.calibrate import calibrate_routines, routine_journal
    from tilefuse.scripts.language.routine_library import read_library

    functions = read_library(*folders).functions
    names = [n.strip() for n in only.split(",") if n.strip()]
    for name in names:
        if name not in functions:
            raise NameLookupError(f"there is no function {name}", hint=nearest(name, functions))
    options = Options.from_environment()
    with working(f"benchmarking routines on {spec.name}", quiet=as_json) as progress:
        task = progress.task_ids[0]
        count = calibrate_routines([functions[n] for n in names or functions], spec, place, options, seconds=seconds,
                                   report=lambda name, done: progress.update(task, description=f"{done}: {name}"))
    path = routine_journal(spec, options).path
    if as_json:
        emit_json({"file": str(path), "device": spec.name, "measured": count})
        return
    results().print(f"{spec.name}: {count} routines measured in simulated fusions", highlight=False)
    errors().print(f"figures in {path}", markup=False, highlight=False)
