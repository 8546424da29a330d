"""Same model, device and options: byte-identical plan and sources, whatever the hash seed. And what importing costs."""
from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source_tree import ROOT

# Many equal operators, several candidates for each merge, values with several users: whatever order a set would give shows here.
GENERATE = """
import hashlib, json, sys
from benchmarks.compiler import layered_graph
from tilefuse.driver.compile import generate_sources
from tilefuse.ir.text import parse_graph
from tilefuse.passes import PASSES
graph = parse_graph(layered_graph(64))
parts = {}
for target in ("h200", "host"):
    made = generate_sources(graph, device=target)
    parts[target + " plan"] = made.spec.plan_text
    parts[target + " explanation"] = made.spec.explanation
    for kernel in made.spec.kernels:
        parts[f"{target} {kernel.name}"] = kernel.source
print(json.dumps({name: hashlib.sha256(text.encode()).hexdigest() for name, text in parts.items()}))
"""

IMPORT = "import sys, tilefuse; print([m for m in ('torch', 'onnx', 'numpy', 'networkx', 'highspy', 'typer') if m in sys.modules])"


def run(script: str, **environment: str) -> str:
    """Standard output of a fresh interpreter."""
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "PYTHONPATH": paths, **environment},
                          capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_hash_seeds_give_the_same_bytes(tmp_path: Path) -> None:
    """Sets and dictionaries keyed by objects never decide an order, and what was judged before, by either, changes nothing."""
    kept = {"TILEFUSE_CACHE_DIR": str(tmp_path)}
    first = json.loads(run(GENERATE, PYTHONHASHSEED="1", **kept))
    again = json.loads(run(GENERATE, PYTHONHASHSEED="4242", **kept))
    assert list((tmp_path / "judgements").rglob("*.bin"))
    assert again == first
    second = json.loads(run(GENERATE, PYTHONHASHSEED="4242", TILEFUSE_PLAN_CACHE="0"))
    first, second = ({name: digest for name, digest in told.items() if "explanation" not in name} for told in (first, second))
    assert list(first) == list(second)
    assert [name for name in first if first[name] != second[name]] == []


def test_the_digest_tells_texts_apart() -> None:
    """The comparison can fail: one changed byte is another digest."""
    assert hashlib.sha256(b"a").hexdigest() != hashlib.sha256(b"b").hexdigest()


def test_importing_the_package_is_light() -> None:
    """`import tilefuse` loads neither torch nor onnx nor the compiler: programs that only might use it pay nothing."""
    assert run(IMPORT).strip() == "[]"


@pytest.mark.parametrize("module", ["tilefuse.ir.text", "tilefuse.plan.planner", "tilefuse.printers.cuda"])
def test_the_compilers_core_needs_no_framework(module: str) -> None:
    """Graphs, plans and sources are made without torch and onnx."""
    assert run(f"import sys, {module}; print([m for m in ('torch', 'onnx') if m in sys.modules])").strip() == "[]"


def test_a_saved_program_runs_without_the_compiler() -> None:
    """The runtime's program and loader import no room above theirs."""
    rooms = ("ir", "passes", "schedule", "plan", "codegen", "frontends", "driver")
    script = ("import sys, tilefuse.runtime.program, tilefuse.runtime.archive; "
              f"print([r for r in {rooms!r} if 'tilefuse.' + r in sys.modules])")
    assert run(script).strip() == "[]"
