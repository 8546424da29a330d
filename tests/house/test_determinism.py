"""Same model, device and options: byte-identical plan and sources, whatever the hash seed. And what importing costs."""
from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.house.source_tree import ROOT
from tests.house.test_layering import MAY_IMPORT

# Many equal operators, several candidates for each merge, values with several users: whatever order a set would give shows here.
GENERATE = """
import hashlib, json, sys
import tilefuse.runtime.program, tilefuse.runtime.archive
rooms = sorted({name.split(".")[1] for name in sys.modules if name.startswith("tilefuse.")})
from benchmarks.compiler import layered_graph
from tilefuse.driver.compile import generate_sources
from tilefuse.ir.text import parse_graph
from tilefuse.passes import PASSES

def digests(**options):
    graph, parts = parse_graph(layered_graph(64)), {}
    for target in ("h200", "host"):
        made = generate_sources(graph, device=target, **options)
        parts[target + " plan"] = made.spec.plan_text
        parts[target + " explanation"] = made.spec.explanation
        for kernel in made.spec.kernels:
            parts[f"{target} {kernel.name}"] = kernel.source
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in parts.items()}

afresh = digests(plan_cache=False)
print(json.dumps({"rooms of the runtime": rooms, "afresh": afresh, "with judgements": digests()}))
"""

# Everything of the compiler that stands between a graph and its sources, one after the other.
CORE = """
import sys, tilefuse
for module in ("tilefuse.ir.text", "tilefuse.plan.planner", "tilefuse.printers.cuda"):
    __import__(module)
    print(module, [m for m in ("torch", "onnx") if m in sys.modules])
"""

IMPORT = "import sys, tilefuse; print([m for m in ('torch', 'onnx', 'numpy', 'networkx', 'highspy', 'typer') if m in sys.modules])"


def run(script: str, **environment: str) -> str:
    """Standard output of a fresh interpreter."""
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "PYTHONPATH": paths, **environment},
                          capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Two processes' results with two hash seeds; they share a cache, so that the second finds the judgements of the first."""
    folder = tmp_path_factory.mktemp("cache")
    both = [json.loads(run(GENERATE, PYTHONHASHSEED=seed, TILEFUSE_CACHE_DIR=str(folder))) for seed in ("1", "4242")]
    assert list((folder / "judgements").rglob("*.bin"))
    return both


def test_two_hash_seeds_give_the_same_bytes(generated: list[dict[str, Any]]) -> None:
    """Sets and dictionaries keyed by objects never decide an order, and what was judged before, by either, changes nothing."""
    first, second = generated
    for name in ("afresh", "with judgements"):
        assert list(first[name]) == list(second[name])
        assert [part for part in first[name] if first[name][part] != second[name][part]] == []
    without, with_them = ({part: digest for part, digest in first[name].items() if "explanation" not in part}
                          for name in ("afresh", "with judgements"))
    assert without == with_them


def test_the_digest_tells_texts_apart() -> None:
    """The comparison can fail: one changed byte is another digest."""
    assert hashlib.sha256(b"a").hexdigest() != hashlib.sha256(b"b").hexdigest()


def test_importing_the_package_is_light() -> None:
    """`import tilefuse` loads neither torch nor onnx nor the compiler: programs that only might use it pay nothing."""
    assert run(IMPORT).strip() == "[]"


def test_the_compilers_core_needs_no_framework() -> None:
    """Graphs, plans and sources are made without torch and onnx."""
    assert run(CORE).splitlines() == ["tilefuse.ir.text []", "tilefuse.plan.planner []", "tilefuse.printers.cuda []"]


def test_a_saved_program_runs_without_the_compiler(generated: list[dict[str, Any]]) -> None:
    """The runtime's program and loader import no room above theirs."""
    loaded = set(generated[0]["rooms of the runtime"])
    assert "runtime" in loaded
    assert loaded & set(MAY_IMPORT) <= MAY_IMPORT["runtime"] | {"runtime"}
