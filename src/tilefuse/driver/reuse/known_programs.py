"""Programs compiled before, here or in another process: reused without passes, planning, scheduling and printing.

    graph text + layouts + constants that passes may read + device + options + the compiler's own files  ->  digest  ->  plan and sources

A program is known only if everything that decides its text is equal. Timing a plan's kernels decides it too and is no text, so such
compiles are never stored. Machine code is looked up by its sources afterwards, as for any program.
"""
from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilefuse.base import trace
from tilefuse.base.options import Options
from tilefuse.driver.lowering.product_precision import framework_convolutions, framework_products
from tilefuse.ir.custom import custom_texts
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.text import print_graph
from tilefuse.passes.manager import PASSES
from tilefuse.runtime.stores.cache import cache_of
from tilefuse.runtime.stores.measurements import journal_path
from tilefuse.runtime.stores.program_store import ProgramStore, StoredProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.registry import kernel_templates

# Rooms whose files decide the program of a graph. Frontends do not: the graph's text is part of the key.
DECIDING_ROOMS = ("base", "target", "ir", "runtime", "passes", "kernel", "domain", "printers", "emit", "templates", "plan", "driver",
                  "scripts", "arrays")
# Options that change neither a program nor its explanation.
SILENT_OPTIONS = frozenset({"cache_dir", "jobs", "compile_processes", "progress", "trace", "logs", "debug"})
# Artifacts whose texts come from stages that a known program skips.
STAGE_ARTIFACTS = frozenset({"plan", "source", "ir", "rules", "rejected"})

# Switched off by tests that plant faults in the compiler: a known program would hide them.
enabled = True


def is_keepable(options: Options) -> bool:
    """Whether programs of these options are looked up and stored: not where the compile times, checks, dumps or shows anything."""
    return (enabled and options.cache and options.plan_cache and not options.measure and options.verify < 2 and not options.dump_dir
            and not options.stop_after and not any(map(trace.current().shows, STAGE_ARTIFACTS))
            and only_own_templates() and _only_own_passes(f"{options.passes},{options.device_passes}"))


def only_own_templates() -> bool:
    """Whether all registered kernel templates are the package's: the fingerprint does not cover the files of others."""
    return all(type(t).__module__.startswith("tilefuse.") for t in kernel_templates())


def _only_own_passes(pipeline: str) -> bool:
    # The fingerprint does not cover the files of a user's pass.
    return all(cls.__module__.startswith("tilefuse.") for name, cls in PASSES.items() if name in pipeline)


def compiler_fingerprint() -> str:
    """A digest of the compiler's own files: another compiler may plan differently. Cost: 10 ms, once per process."""
    return files_digest(DECIDING_ROOMS)


@functools.cache
def files_digest(rooms: tuple[str, ...]) -> str:
    """A digest of the files of rooms of the package. Cost: linear in their bytes, once a process."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for room in rooms:
        for path in sorted((root / room).rglob("*")):
            if path.suffix in (".py", ".h", ".cuh", ".cu"):
                digest.update(str(path.relative_to(root)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def program_digest(graph: Graph, constants: Mapping[str, object], input_layouts: Layouts | None, device: DeviceSpec, options: Options,
                   fallbacks: Iterable[tuple[str, str]], result_layouts: Layouts | None, free_results: Collection[int],
                   static: Collection[str] = (), given_up: Collection[str] = (), overwritable: Collection[str] = (), text: str = "") -> str:
    """The digest under which the program of these arguments of `compile_graph` is kept.

    text: the graph's text, if it is already printed.
    Cost: linear in the graph's text and in the small constants' bytes.
    """
    facts = [
        told_in_numbers(text or print_graph(graph), input_layouts, fallbacks, result_layouts), told_in_words(graph, device, options),
        sorted(free_results), sorted(static), sorted(given_up), sorted(overwritable),
        _tuning_digest(device, options) if options.tuned else "",
        [(name, _content(data)) for name, data in sorted(constants.items()) if isinstance(data, np.ndarray)],
    ]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def told_in_numbers(text: str, input_layouts: Layouts | None, fallbacks: Iterable[tuple[str, str]],
                    result_layouts: Layouts | None) -> list[object]:
    """The part of a program's digest that contains sizes. text: the graph's."""
    return [text, _strides(input_layouts), _strides(result_layouts), sorted(fallbacks)]


def told_in_words(graph: Graph, device: DeviceSpec, options: Options) -> list[object]:
    """The part of a program's digest that is the same for a graph of other sizes."""
    return [
        compiler_fingerprint(), _torch_version(), custom_texts(graph), repr(device), options.code_key(),
        sorted((name, value) for name, value in options.changed().items() if name not in SILENT_OPTIONS),
        framework_products() if options.float32_products == "auto" else "", framework_convolutions(),
    ]


def _strides(layouts: Layouts | None) -> list[tuple[str, tuple[int, ...]]]:
    return sorted((name, tuple(strides)) for name, strides in (layouts or {}).items())


def _content(data: np.ndarray) -> str:
    """The part of a constant that passes may read: the contents of a numpy array. Other data (weights on a device) is only bound."""
    return f"{data.dtype}{data.shape}{hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()}"


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _tuning_digest(device: DeviceSpec, options: Options) -> str:
    path = journal_path(cache_of(options.cache, options.cache_dir).folder, "tuned", f"{device.name}-{device.num_multiprocessors}")
    return hashlib.sha256(path.read_bytes()).hexdigest() if path is not None and path.exists() else ""


def find_program(digest: str, options: Options) -> StoredProgram | None:
    """The program kept under a digest."""
    stored = _store(options).get(digest)
    trace.current().line("cache", f"plan and sources {'found' if stored is not None else 'not found'} under {digest[:12]}")
    trace.current().event("known program" if stored is not None else "unknown program", "cache", digest=digest[:12])
    return stored


def keep_program(digest: str, made: Any, given: Mapping[str, object], options: Options) -> None:
    """Stores the result of `generate`; of its constants only those that are not the caller's (`given`)."""
    own = {name: data for name, data in made.constants.items() if given.get(name) is not data}
    _store(options).put(digest, StoredProgram(made.spec, own))


def _store(options: Options) -> ProgramStore:
    return ProgramStore(cache_of(options.cache, options.cache_dir).folder)
