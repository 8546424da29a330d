"""The commands about devices: calibrate."""
from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilefuse.base.errors import UserError
from tilefuse.tools.console import emit_json, errors, results, working


def calibrate(device: Annotated[str, typer.Option("--device", help="host or cuda; default: the GPU if there is one")] = "",
              out: Annotated[Path | None, typer.Option("--out", help="file to write instead of the one the compiler reads")] = None,
              most_mib: Annotated[int, typer.Option("--most-mib", min=1, max=16384, help="largest copy of the curve, in MiB")] = 1024,
              as_json: Annotated[bool, typer.Option("--json", help="print JSON on standard output")] = False) -> None:
    """Measure what moving bytes, launches and arithmetic cost on a device; compiles for it use the figures from then on."""
    from tilefuse.driver.compile import present_device
    from tilefuse.runtime.cache import default_folder, write_whole
    from tilefuse.runtime.calibrate import bench_of, calibrate
    from tilefuse.target.calibration import calibration_path
    from tilefuse.tools.programs import chosen_device

    spec, place = present_device(chosen_device(device))
    folder = default_folder()
    if out is None and folder is None:
        raise UserError("the cache is off, so there is no place for the figures", hint="name a file with --out, or unset TILEFUSE_CACHE")
    with working(f"measuring {spec.name}", quiet=as_json) as progress:
        task = progress.task_ids[0]
        found = calibrate(spec, bench_of(spec, int(place.partition(":")[2] or 0)), largest=most_mib << 20,
                          progress=lambda text: progress.update(task, description=f"{spec.name}: {text}"))
    path = out or calibration_path(folder, spec)  # type: ignore[arg-type]
    try:
        write_whole(path, found.text().encode())
    except OSError as cause:
        raise UserError(f"cannot write {path}: {cause.strerror}") from cause
    if as_json:
        import json

        emit_json({"file": str(path), **json.loads(found.text())})
        return
    size, us = found.transfer_curve[-1]
    results().print(f"{spec.name}: launch {found.launch_us:.2f} us, in a graph {found.graph_launch_us:.2f} us, "
                    f"{size / us / 1e3:.0f} GB/s at {size >> 20} MiB", highlight=False)
    errors().print(f"figures in {path}", markup=False, highlight=False)

