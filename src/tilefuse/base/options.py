"""Options: one frozen value with every setting of a compile, read from the environment once, at the entry point.

Each option carries its documentation and whether it decides generated text; those that do enter every cache key. Nothing below the
entry points looks at the environment for a setting.
"""
from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from tilefuse.base.errors import OptionError, nearest
from tilefuse.base.logs import OUT_VARIABLE

PREFIX = "TILEFUSE_"
TRUE_WORDS = ("1", "true", "yes", "on")
FALSE_WORDS = ("0", "false", "no", "off", "")


# No number of an option has a use beyond this; some are multiplied by a MiB, some become floating-point seconds.
LARGEST = 10**9


def option(default: Any, doc: str, *, affects_code: bool, choices: tuple[Any, ...] = (), least: int = 0) -> Any:
    """A field of `Options`; those that affect code are part of every cache key.

    choices: the legal values, if they are few. least: the smallest legal number; the largest is `LARGEST`.
    """
    return field(default=default, metadata={"doc": doc, "affects_code": affects_code, "choices": choices, "least": least})


@dataclass(frozen=True, slots=True)
class Options:
    """All settings of one compile. Units stand in each option's text."""

    # Arithmetic of the code
    fast_math: bool = option(False, "let the device compiler reassociate, contract and drop NaN handling", affects_code=True)
    eager_rounding: bool = option(
        False, "round every intermediate value to its own dtype, as eager execution does, also inside a kernel", affects_code=True)
    float32_products: str = option(
        "auto", "arithmetic of f32 products inside kernels: split (three products of tf32 halves on the matrix unit, as exact as f32), "
        "threads (multiply-adds), tf32 (one product of 11 bits), auto (tf32 where torch is set to it, else split)", affects_code=True,
        choices=("auto", "split", "threads", "tf32"))
    index_checks: bool = option(
        True, "raise for indices and labels out of range (on a GPU a device-side assertion, as in eager torch, or a trap in kernels "
        "with warpgroup products); off: they are moved into range, and scatters leave them out", affects_code=True)
    check: bool = option(False, "host executor: find out-of-bounds accesses, unwritten reads and races (slow)", affects_code=True)
    plan_for: str = option(
        "", "host executor: name of a known GPU (such as h200) whose plan and kernels run on the processor, block by block: to see without "
        "it that they are right (slow; with `check` every access is checked)", affects_code=True)
    # Decisions
    fuse: bool = option(True, "let operators share kernels; off: one kernel a node", affects_code=True)
    stitch: bool = option(True, "let kernels hold small matrix products instead of calling the library for them", affects_code=True)
    channels_last: str = option(
        "auto", "memory layout around convolutions: auto (what is faster on the device), always, never", affects_code=True,
        choices=("auto", "always", "never"))
    winograd: str = option(
        "f32", "convolutions of 3 x 3 windows, one place apart, over transformed tiles: off, f32 (where that is predicted faster than the "
        "library's call, of f32 convolutions on a GPU that may not use tf32), auto (wherever that is predicted faster), always (wherever "
        "their exactness allows it)", affects_code=True, choices=("off", "f32", "auto", "always"))
    attention_gradients: str = option(
        "auto", "gradients of attention: library (the framework's call), kernels (two of ours, from logarithms of sums, with the "
        "same results in every run; calls that they do not hold stay), auto (kernels where the plan with them is predicted faster)",
        affects_code=True, choices=("library", "kernels", "auto"))
    planner: str = option(
        "ilp", "how kernels are chosen: greedy (merge while cheaper), ilp (integer program over candidates)", affects_code=True,
        choices=("greedy", "ilp"))
    plan_seconds: int = option(
        20, "seconds of processor time that the planner ilp may take; then the best plan so far is used", affects_code=True)
    peak_memory_mb: int = option(
        0, "ceiling on intermediate values alive at one time, in MiB, for the planner ilp; 0: none", affects_code=True)
    max_kernel_nodes: int = option(128, "largest number of graph nodes in one kernel", affects_code=True, least=1)
    max_kernel_operands: int = option(
        64, "largest number of tensors that one kernel of several nodes reads and writes", affects_code=True, least=1)
    passes: str = option("", "pass pipeline text; empty: the default pipeline", affects_code=True)
    device_passes: str = option("", "pipeline text of the passes behind `passes`, which need the device; empty: the default ones "
                                    "(`tilefuse opt --order` prints both)", affects_code=True)
    stop_after: str = option("", "stop after the first pass of this name (debugging)", affects_code=True)
    measure: bool = option(
        False, "time a plan's kernels on the device, the doubtful ones first, and replace those that their parts beat", affects_code=True)
    measure_seconds: int = option(10, "seconds that timing kernels may take in one compile (`measure`)", affects_code=True)
    plan: str = option("", "text of a plan, as explain prints it, that is followed instead of planning", affects_code=True)
    template: str = option("", "template of one kernel, in the notation that explain prints", affects_code=True)
    tuned: bool = option(True, "use the templates that `tilefuse tune` found for this device", affects_code=True)
    early_start: str = option(
        "inputs", "what a kernel does while the one ahead of it still runs, on devices that can: inputs (stand ready and fetch inputs of "
        "the program), ready (stand ready), off (begin when that one has ended)", affects_code=True, choices=("inputs", "ready", "off"))
    grid_level: str = option(
        "off", "kernels that read each other's results as tasks of one kernel, ordered by counters: off, priced (where waits are predicted "
        "to cost less than launches), always (wherever it is legal)", affects_code=True, choices=("off", "priced", "always"))
    tile_groups: str = option(
        "off", "a producer, a product and a user of tiles, as of a Winograd convolution, as tasks of one kernel that takes the tiles in "
        "groups: off, priced (where that is predicted faster than their kernels), always (wherever it is legal)", affects_code=True,
        choices=("off", "priced", "always"))
    task_blocks: int = option(
        0, "blocks a multiprocessor of kernels of tasks, which bounds registers (with grid_level); 0: as many as are estimated to fit",
        affects_code=True)
    task_stages: int = option(
        2, "stages of a kernel of tasks that blocks hold at once (with grid_level): tasks of the next stage fetch their weights and wait "
        "while the present one runs", affects_code=True, choices=(1, 2, 3, 4))
    task_ahead: bool = option(True, "tasks of one kernel load or fetch their weights before they wait (with grid_level)", affects_code=True)
    task_limit_ms: int = option(
        0, "debugging kernels of tasks: longest wait of a task in ms, after which the kernel stops and names task and counter; 0: none",
        affects_code=True)
    task_times: bool = option(False, "kernels of tasks record the start and the end of every task (docs/tasks.md)",
                              affects_code=True)
    # How it is checked
    verify: int = option(1, "0 off, 1 rules after each pass, 2 + established properties and the interpreter", affects_code=False,
                         choices=(0, 1, 2))
    # How it runs
    cuda_graph: bool = option(False, "replay the whole program as one CUDA graph", affects_code=False)
    keep_weights: bool = option(
        False, "keep packed and padded parameters of a torch program from one inference call to the next; they are made again when a "
        "parameter's address or version counter changes, which a write through .data does not show", affects_code=False)
    replay: str = option(
        "auto", "calls of a torch program as replays of a CUDA graph: auto (where the host would take longer than the device, results in "
        "memory of their own), never", affects_code=False, choices=("auto", "never"))
    jobs: int = option(0, "kernels compiled at the same time; 0: one a processor", affects_code=False)
    compile_processes: bool = option(
        True, "compile CUDA kernels in up to four light processes beside this one, which end with it and after 20 idle seconds; off, or "
        "with one job or one processor: in this process, where NVRTC compiles one kernel at a time", affects_code=False)
    cxx: str = option("", "C++ compiler of the host executor; empty: CXX, then g++, then clang++", affects_code=False)
    cache: bool = option(True, "keep compiled kernels on disk", affects_code=False)
    plan_cache: bool = option(
        True, "keep traced graphs, plans and sources of programs, and what was judged of patterns, on disk beside the kernels",
        affects_code=False)
    reuse_plans: bool = option(
        True, "start planning from an earlier plan of a graph that is equal up to sizes, where there is one; off: from nothing",
        affects_code=False)
    cache_dir: str = option("", "folder of the kernel cache; empty: the user's cache folder", affects_code=False)
    # Which files are trusted
    sign: str = option("", "file with the key that signs saved programs and exported caches (`tilefuse key` makes one); empty: unsigned",
                       affects_code=False)
    require_signature: str = option(
        "", "file with the key with which saved programs and exported caches must be signed to be loaded; empty: all are loaded",
        affects_code=False)
    # Output
    debug: int = option(0, "1 fallbacks and device, 2 + time, bytes, GB/s a kernel, 3 + plan, 4 + source, 5 + IR after each pass, "
                           "6 + every rule and rejected candidate", affects_code=False, choices=(0, 1, 2, 3, 4, 5, 6))
    logs: str = option("", "comma list of logs to show (name, +name for more) or hide (-name), on top of `debug`; TILEFUSE_LOGS=help lists "
                           "them", affects_code=False)
    dump_dir: str = option("", "folder that receives the graph after each pass that changed it, plan, sources and trace of every compile",
                           affects_code=False)
    trace: str = option("", "file that receives the compile's events as chrome-trace JSON (Perfetto reads it)", affects_code=False)
    progress: bool = option(False, "a progress bar on standard error while kernels are compiled", affects_code=False)

    @classmethod
    def from_mapping(cls, env: Mapping[str, str], prefix: str = PREFIX) -> Options:
        """Options named in `env`; other variables are not looked at.

        Raises: OptionError for an unknown name behind the prefix, or a value of the wrong type; the hint gives the legal ones.
        """
        known = {f"{prefix}{f.name.upper()}": f for f in fields(cls)}
        given: dict[str, Any] = {}
        for key, text in sorted(env.items()):
            if not key.startswith(prefix) or key == OUT_VARIABLE:  # where lines go is no setting of a compile
                continue
            if key not in known:
                raise OptionError(f"unknown option {key} in the environment", hint=_hint(key, known))
            given[known[key].name] = _parse(key, known[key], text)
        return cls(**given)

    @classmethod
    def from_environment(cls) -> Options:
        """Options of the process's environment (variables TILEFUSE_<NAME>)."""
        return cls.from_mapping(os.environ)

    def with_overrides(self, **given: Any) -> Options:
        """These options with some replaced; keyword names are the fields' names and values may be text.

        Raises: OptionError for an unknown name (nearest names offered) or a value of the wrong type or outside its choices.
        """
        known = {f.name: f for f in fields(self)}
        checked: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                raise OptionError(f"unknown option {name!r}", hint=_hint(name, known))
            checked[name] = _check(name, known[name], value)
        return replace(self, **checked) if checked else self

    @property
    def fetches_early(self) -> bool:
        """Whether kernels may fetch inputs while the one ahead of them still runs."""
        return self.early_start == "inputs"

    def code_key(self) -> tuple[tuple[str, object], ...]:
        """The part that decides the generated text; goes into each kernel's fingerprint."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self) if f.metadata["affects_code"])

    def changed(self) -> dict[str, object]:
        """The options that differ from their defaults, for notes and explanations."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


@dataclass(frozen=True, slots=True)
class OptionRecord:
    """One row of the options table: `variable` is the environment's name for it."""

    name: str
    variable: str
    default: object
    doc: str
    affects_code: bool
    choices: tuple[object, ...]
    least: int


def option_table() -> tuple[OptionRecord, ...]:
    """Every option in order of declaration; documentation and `tilefuse options` print it."""
    return tuple(OptionRecord(f.name, PREFIX + f.name.upper(), f.default, **f.metadata) for f in fields(Options))


def _hint(name: str, known: Mapping[str, object]) -> str:
    return nearest(name, known) or f"known: {', '.join(sorted(known))}"


def _check(name: str, of: Field[Any], value: object) -> object:
    if isinstance(value, str):
        return _parse(name, of, value)
    wanted: type = type(of.default)
    if type(value) is not wanted:
        raise OptionError(f"option {name} is {wanted.__name__}, not {value!r}", hint=_legal(of))
    return _within(name, of, value)


def _parse(name: str, of: Field[Any], text: str) -> object:
    wanted: type = type(of.default)
    word = text.strip().lower()
    if wanted is bool:
        if word not in TRUE_WORDS + FALSE_WORDS:
            raise OptionError(f"{name}={text!r} is neither true nor false", hint=_legal(of))
        return word in TRUE_WORDS
    if wanted is int:
        if not re.fullmatch("[+-]?[0-9]{1,40}", word):
            raise OptionError(f"{name}={text!r} is not a whole number", hint=_legal(of))
        return _within(name, of, int(word))
    return _within(name, of, text)


def _within(name: str, of: Field[Any], value: object) -> object:
    choices = of.metadata["choices"]
    if choices and value not in choices:
        raise OptionError(f"{name}={value!r} is not one of its values", hint=_legal(of))
    if type(value) is int and not of.metadata["least"] <= value <= LARGEST:
        raise OptionError(f"{name}={value} is outside {_range(of)}", hint=_legal(of))
    return value


def _range(of: Field[Any]) -> str:
    return f"{of.metadata['least']} to {LARGEST}"


def _legal(of: Field[Any]) -> str:
    choices = of.metadata["choices"]
    legal = f"one of {', '.join(map(str, choices))}; " if choices else f"{_range(of)}; " if type(of.default) is int else ""
    return f"{of.name}: {legal}{of.metadata['doc']}"
