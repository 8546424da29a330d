"""docs/array_passes.md: its programs run, and what it says of the cache holds between processes."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilefuse.driver.kernel_passes  # noqa: F401  registers its passes before the fixture looks
from tilefuse.passes import PASSES

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "array_passes.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

STEP = """
import json
import numpy as np
import tilefuse.array as ta
from tilefuse.base import trace
from tilefuse.base.options import Options
from tilefuse.driver.reuse import known_programs

known_programs.compiler_fingerprint = lambda: "the same"  # nobody may edit the compiler between the two processes

def trained(names):
    def loss(w, x):
        for name in names:
            x = ta.tanh(x @ w[name])
        return ta.mean(x * x)

    def step(w, x):
        value, g = ta.value_and_grad(loss)(w, x)
        return {k: w[k] - 0.1 * g[k] for k in w}, value

    w = {k: ta.evaluate(ta.eye(8) * (n + 1)) for n, k in enumerate(names)}
    with trace.tracing(trace.Trace(Options())) as told:
        w, value = ta.compile(step, donate=0)(w, ta.ones((4, 8)))
    seconds = told.seconds_by_name()
    return {"planned": "plan" in seconds, "compiled": "compile kernels" in seconds, "value": float(value)}

print(json.dumps([trained(names) for names in NAMES_HERE]))
"""


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Passes of the page are gone after it."""
    passes = dict(PASSES)
    yield
    PASSES.clear()
    PASSES.update(passes)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_every_program_of_the_page_runs(number: int) -> None:
    exec(compile(PROGRAMS[number], "docs/array_passes.md", "exec"), {})


def run(names: list[list[str]], cache: Path) -> list[dict[str, object]]:
    """What a process finds for each of these names of weights, one after the other."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TILEFUSE_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", STEP.replace("NAMES_HERE", repr(names))], env=environment, capture_output=True, text=True,
                          timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_a_training_step_seen_before_is_neither_planned_nor_compiled_by_another_process(tmp_path: Path) -> None:
    first, = run([["a", "b", "c"]], tmp_path)
    again, renamed = run([["a", "b", "c"], ["first", "second", "third"]], tmp_path)
    assert first["planned"] and first["compiled"]
    assert not again["planned"] and not again["compiled"]
    # Other names of the user's are another graph, but the same kernels.
    assert renamed["planned"] and not renamed["compiled"]
    assert first["value"] == again["value"] == renamed["value"]
