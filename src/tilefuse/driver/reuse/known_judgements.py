"""Judgements of patterns that are valid for a compile: those made by the same compiler for the same device under the same options.

`known_programs.py` reuses whole programs. For a graph that is new, or has one changed node, this file reuses the schedules of patterns that
it shares with earlier graphs.
"""
from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

from tilefuse.base.options import Options
from tilefuse.driver.reuse import known_programs
from tilefuse.runtime.stores.cache import cache_of
from tilefuse.runtime.stores.judgement_store import JudgementStore, store_of
from tilefuse.target.device import DeviceSpec

# Options that choose among judged patterns and judge none: the greedy plans by which passes decide share judgements with the plan itself.
CHOOSING_OPTIONS = frozenset({"planner"})


def family(device: DeviceSpec, options: Options) -> str:
    """Equal where the same files, device record and options decide a pattern's schedule and price."""
    silent = known_programs.SILENT_OPTIONS | CHOOSING_OPTIONS
    changed = sorted((name, value) for name, value in options.changed().items() if name not in silent)
    code = tuple((name, value) for name, value in options.code_key() if name not in CHOOSING_OPTIONS)
    facts = [known_programs.compiler_fingerprint(), repr(device), code, changed]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


@contextlib.contextmanager
def judgements(device: DeviceSpec, options: Options) -> Iterator[JudgementStore | None]:
    """The store for a compile, written when it ends; None where judgements are not kept.

    Measured times decide prices too and belong to no family; with `verify`, everything is computed again.
    """
    is_own = known_programs.enabled and known_programs.only_own_templates()
    if not (is_own and options.cache and options.plan_cache) or options.measure or options.verify >= 2:
        yield None
        return
    store = store_of(cache_of(options.cache, options.cache_dir).folder, family(device, options))
    try:
        yield store
    finally:
        store.save()
