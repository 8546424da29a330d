"""Sizes that change from call to call: what a whole stream of calls takes, compilation included, and whether its results are right.

    python -m benchmarks sizes [--quick] [--only REGEX] [--peers LIST] [--budget SECONDS]        LIST may name measurements of tilefuse

Every peer of a case has a process of its own with empty caches. Tilefuse is measured once more with what it kept on disk (`warm`), and
once with no size compiled before it returns (`tilefuse_later`: option sizes_at_once=0).
"""
from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.compiler import python
from benchmarks.environment import default_device, describe
from benchmarks.record import Record
from benchmarks.size_streams import STREAMS

PEERS = ("eager", "aot_eager", "inductor")
# Measurements of tilefuse: the options of each, and the name of its cache folder.
OURS: dict[str, tuple[dict[str, int], str]] = {
    "tilefuse": ({}, "ours"), "warm": ({}, "ours"), "tilefuse_later": ({"sizes_at_once": 0}, "later")}
QUICK = ("generate/40", "returning/10")
TIMEOUT_S = 300.0
LEAST_TIMEOUT_S = 20.0

MEASURE = """
import json
from benchmarks.environment import default_device
from benchmarks.size_streams import measured
print(json.dumps(measured({name!r}, {peer!r}, {tiny}, default_device(), {options}, {settles})))
"""


def run(out: Path, *, only: str = "", quick: bool = False, budget_s: float = 0.0, tiny: bool = False, is_listed: bool = False,
        peers: Sequence[str] | None = None) -> int:
    """Measure every stream, print and store it, or only print the names. Exit status 1 if tilefuse failed or was wrong."""
    chosen = [name for name in STREAMS if re.search(only, name) and (not quick or name in QUICK)]
    if is_listed:
        print("\n".join(chosen))
        return 0
    others = [peer for peer in (PEERS if peers is None else peers) if peer not in OURS]
    ours = [peer for peer in OURS if peer in (peers or ())] or list(OURS)
    record = Record.start(out, "sizes", describe(default_device()))
    started = time.monotonic()
    is_good = True
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="tilefuse-sizes-", ignore_cleanup_errors=True) as folder:
            for peer in (*others, *ours):
                left_s = budget_s - (time.monotonic() - started) if budget_s else TIMEOUT_S
                if left_s <= 0:
                    break
                options, cache = OURS.get(peer, (None, "ours"))
                caches = {"TILEFUSE_CACHE_DIR": f"{folder}/{cache}", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
                script = MEASURE.format(name=name, peer="tilefuse" if peer in OURS else peer, tiny=tiny, options=options,
                                        settles=peer == "tilefuse")
                found = python(script, caches, min(TIMEOUT_S, max(left_s, LEAST_TIMEOUT_S)))
                is_good = is_good and (peer not in OURS or found["status"] == "ok" and found["right"])
                record.add(name, {"family": name.split("/")[0]}, peer, found)
                print(f"{name:<14} {peer:<10} " + "  ".join(_shown(k, v) for k, v in found.items() if k != "trace"), flush=True)
    print(f"record: {record.path}")
    return 0 if is_good else 1


def _shown(key: str, value: Any) -> str:
    return f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
