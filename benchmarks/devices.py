"""The devices of a run: which ones `--devices` names, and the environment of the measuring process of each.

A measuring process sees one device only, compiles with its share of the cores and starts with empty kernel caches of its own, so that
no process profits from what another one compiled.
"""
from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = "cpu"
# Places of compiled code of torch.compile, Triton and tilefuse: variable, and folder below the run's own.
CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "TILEFUSE_CACHE_DIR": "tilefuse"}
COMPILE_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
THREADS = (COMPILE_THREADS, "OMP_NUM_THREADS", "TILEFUSE_JOBS")
# Measured figures of devices and kernels, which tilefuse keeps beside compiled kernels and may use here too.
KEPT_FOLDERS = ("devices", "measured", "tuned")


@dataclass(frozen=True)
class Place:
    """One device of a run. `visible` is CUDA's own name of it: "" for the host."""

    name: str
    visible: str


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


def num_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(num_places: int) -> int | None:
    """Threads that one of several measuring processes compiles with; None for a single one: the libraries' own choice."""
    return max(1, num_cores() // num_places) if num_places > 1 else None


def child_environment(place: Place, num_places: int, caches: Path, known: Path | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a device's measuring process, its caches in a folder below `caches`.

    `known` is tilefuse's own cache folder: measured figures of devices and kernels are copied from there, compiled kernels are not.
    """
    made = dict(environment)
    made["CUDA_VISIBLE_DEVICES"] = place.visible
    for variable, folder in CACHES.items():
        path = caches / f"device-{place.name}" / folder
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
