"""The devices of a run: which ones `--devices` names, and the environment of the measuring process of each.

A measuring process sees one device only, compiles with its share of the cores and starts with empty kernel caches of its own, so that
no process profits from what another one compiled. Several may share a device: they take turns on it (`turns.py`), so that one compiles
while another measures.
"""
from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import turns

HOST = "cpu"
# Places of compiled code of torch.compile, Triton and tilefuse: variable, and folder below the run's own.
CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "TILEFUSE_CACHE_DIR": "tilefuse"}
# The same of XLA, which keeps nothing unless it is told to; a run that keeps its caches has every program kept, short ones too.
KEPT_CACHES = CACHES | {"JAX_COMPILATION_CACHE_DIR": "xla"}
KEEPING = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
COMPILE_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
THREADS = (COMPILE_THREADS, "OMP_NUM_THREADS", "TILEFUSE_JOBS")
# Measured figures of devices and kernels, which tilefuse keeps beside compiled kernels and may use here too.
KEPT_FOLDERS = ("devices", "measured", "tuned")


@dataclass(frozen=True)
class Place:
    """One measuring process of a run. `visible` is CUDA's own name of its device ("" for the host); `worker` tells processes on the same
    device apart."""

    name: str
    visible: str
    worker: int = 0

    @property
    def label(self) -> str:
        """A name for the process's own files."""
        return f"{self.name}.{self.worker}" if self.worker else self.name


def visible_gpus(num_gpus: int, environment: Mapping[str, str]) -> list[str]:
    """CUDA's names of the GPUs that this process sees, in order."""
    listed = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return listed[:num_gpus] if listed else [str(n) for n in range(num_gpus)]


def places_of(text: str, visible: Sequence[str]) -> list[Place]:
    """The devices that `text` names: "" the first GPU (the host without one), "all", or a comma list of numbers and "cpu".

    "cpu" may stand there several times (to try the harness), a GPU once: two processes on one device would disturb each other.
    Raises: ValueError for a device that is not there or named twice.
    """
    if text == "all" or not text:
        gpus = [Place(str(n), name) for n, name in enumerate(visible)]
        return (gpus if text else gpus[:1]) or [Place(HOST, "")]
    found: list[Place] = []
    for word in (w.strip() for w in text.split(",")):
        if word == HOST:
            hosts = sum(not p.visible for p in found)
            found.append(Place(f"{HOST}-{hosts + 1}" if hosts else HOST, ""))
        elif not word.isdecimal() or int(word) >= len(visible):
            there = ", ".join([*map(str, range(len(visible))), HOST])
            raise ValueError(f"there is no device {word!r}; there are {there}")
        elif any(p.name == str(int(word)) for p in found):
            raise ValueError(f"device {word} is named twice")
        else:
            found.append(Place(str(int(word)), visible[int(word)]))
    return found


def with_workers(places: Sequence[Place], count: int) -> list[Place]:
    """`count` measuring processes for each device; the first ones of all devices come first."""
    return [replace(place, worker=worker) for worker in range(count) for place in places]


def num_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(num_places: int) -> int | None:
    """Threads that one of several measuring processes compiles with; None for a single one: the libraries' own choice."""
    return max(1, num_cores() // num_places) if num_places > 1 else None


def child_environment(place: Place, num_places: int, caches: Path, known: Path | None, environment: Mapping[str, str], *,
                      shares_device: bool = False, is_kept: bool = False) -> dict[str, str]:
    """The environment of a device's measuring process, its caches in a folder below `caches`.

    `known` is tilefuse's own cache folder: measured figures of devices and kernels are copied from there, compiled kernels are not.
    shares_device: others measure on the same device, and all take turns (`turns.py`).
    is_kept: the caches are those of all processes, of this run and of others.
    """
    made = dict(environment)
    if shares_device:
        made.setdefault(turns.VARIABLE, str(caches / f"device-{place.name}.turns"))
    made["CUDA_VISIBLE_DEVICES"] = place.visible
    made |= KEEPING if is_kept else {}
    for variable, folder in (KEPT_CACHES if is_kept else CACHES).items():
        path = caches / folder if is_kept else caches / f"device-{place.label}" / folder
        path.mkdir(parents=True, exist_ok=True)
        made[variable] = str(path)
    for folder in KEPT_FOLDERS if known is not None else ():
        assert known is not None
        if (known / folder).is_dir():
            shutil.copytree(known / folder, Path(made["TILEFUSE_CACHE_DIR"]) / folder, dirs_exist_ok=True)
    threads = threads_each(num_places)
    for variable in THREADS if threads else ():
        made.setdefault(variable, str(threads))
    return made
