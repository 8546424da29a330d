"""Programs compiled before are found again by everything that decides them, and by nothing less."""
from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tilefuse
from tests.unit.plan.graphs import layers, softmax
from tilefuse.base import trace
from tilefuse.base.options import Options
from tilefuse.driver import compile as driver_compile
from tilefuse.driver.compile import compile_graph, present_device
from tilefuse.driver.reuse import known_programs
from tilefuse.driver.reuse.known_programs import is_keepable, program_digest
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.runtime.program import Program
from tilefuse.runtime.stores.cache import CacheWarning, KernelCache
from tilefuse.runtime.stores.cache_file import export_cache, import_cache
from tilefuse.runtime.stores.program_store import ProgramStore


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Options with an empty cache folder, and known programs switched on."""
    monkeypatch.setattr(known_programs, "enabled", True)
    return Options(cache_dir=str(tmp_path))


def compiled(graph: Graph, options: Options, constants: dict[str, np.ndarray] | None = None) -> tuple[Program, bool]:
    """The program, and whether it was planned."""
    with trace.tracing(trace.Trace(options)) as told:
        program = compile_graph(graph, constants=constants or {}, device="host", options=options)
    return program, "plan" in told.seconds_by_name()


def test_a_program_seen_before_is_not_planned_again(options: Options) -> None:
    first, planned = compiled(softmax(), options)
    again, planned_again = compiled(softmax(), options)
    assert planned and not planned_again
    assert again.spec == first.spec
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).half()
    assert torch.equal(first(x)[0], again(x)[0])


def test_another_process_finds_it(options: Options) -> None:
    compiled(softmax(), options)
    fingerprint = known_programs.compiler_fingerprint()  # this process's: nobody may edit the compiler under the test
    script = f"""
from tests.unit.plan.graphs import softmax
from tests.unit.driver.reuse.test_known_programs import compiled
from tilefuse.base.options import Options
from tilefuse.driver.reuse import known_programs
known_programs.compiler_fingerprint = lambda: {fingerprint!r}
print(compiled(softmax(), Options(cache_dir={options.cache_dir!r}))[1])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("changed", [{"fuse": False}, {"fast_math": True}, {"eager_rounding": True}, {"max_kernel_nodes": 2}])
def test_an_option_that_decides_text_makes_another_program(options: Options, changed: dict[str, object]) -> None:
    compiled(softmax(), options)
    assert compiled(softmax(), options.with_overrides(**changed))[1]


def test_each_part_of_the_request_counts(options: Options) -> None:
    device, _ = present_device("host")
    graph = softmax()
    x = graph.inputs[0].name

    def digest(**given: object) -> str:
        base: dict[str, object] = {
            "graph": graph, "constants": {}, "input_layouts": None, "device": device, "options": options, "fallbacks": (),
            "result_layouts": None, "free_results": ()}
        return program_digest(**(base | given))  # type: ignore[arg-type]

    others = [
        digest(graph=replace(graph, name="other")), digest(input_layouts={x: (1, 4)}), digest(device=replace(device, launch_us=9.0)),
        digest(fallbacks=[("aten.sort", "no meaning")]), digest(result_layouts={graph.results[0]: (1, 4)}), digest(free_results=(0,)),
        digest(constants={"w": np.zeros(3, np.float32)}), digest(constants={"w": np.ones(3, np.float32)}),
    ]
    assert len({digest(), *others}) == len(others) + 1
    assert digest() == digest()


def test_contents_of_constants_that_passes_may_read_count(options: Options) -> None:
    graph = parse_graph("""graph @g(%x: f32[80], const %w: f32[80]) -> (f32[80]) {
  %v: f32[80] = map [i] { exp(%w[i]) }
  %y: f32[80] = map [i] { add(%x[i], mul(%v[i], %v[i])) }
  return %y
}""")
    x = torch.ones(80)
    for value in (1.0, 2.0, 1.0):
        w = np.full(80, value, np.float32)
        program, _ = compiled(graph, options, {"w": w})
        # exp within one unit in the last place, then two roundings
        assert torch.allclose(program(x)[0], torch.from_numpy(1 + np.exp(w) ** 2), rtol=8 * 2**-24)
    assert not compiled(graph, options, {"w": np.full(80, 2.0, np.float32)})[1]


def test_weights_are_bound_anew(options: Options) -> None:
    graph = layers(2, rows=4)
    draw = np.random.default_rng(0)
    given = [{i.name: torch.from_numpy(draw.standard_normal(i.type.shape, dtype=np.float32)) for i in graph.inputs if i.constant}
             for _ in range(2)]
    x = torch.ones(4, 64)
    first = compile_graph(graph, constants=given[0], device="host", options=options)
    second = compile_graph(graph, constants=given[1], device="host", options=options)
    fresh = compile_graph(graph, constants=given[1], device="host", options=options.with_overrides(plan_cache=False))
    assert not torch.equal(first(x)[0], second(x)[0])
    assert torch.equal(second(x)[0], fresh(x)[0])


def test_a_changed_compiler_plans_again(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(softmax(), options)
    monkeypatch.setattr(known_programs, "compiler_fingerprint", lambda: "another")
    assert compiled(softmax(), options)[1]


def test_a_damaged_file_is_a_miss(options: Options) -> None:
    compiled(softmax(), options)
    path, = ProgramStore(Path(options.cache_dir)).paths()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(CacheWarning, match="damaged program"):
        assert compiled(softmax(), options)[1]
    assert not compiled(softmax(), options)[1]


def test_what_is_timed_shown_or_dumped_is_not_kept(options: Options, tmp_path: Path) -> None:
    assert is_keepable(options)
    for changed in ({"measure": True}, {"verify": 2}, {"dump_dir": str(tmp_path)}, {"cache": False}, {"plan_cache": False},
                    {"stop_after": "decompose"}):
        assert not is_keepable(options.with_overrides(**changed)), changed
    with trace.tracing(trace.Trace(options.with_overrides(debug=3))):
        assert not is_keepable(options)


def test_a_program_that_no_compiler_takes_is_not_kept(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_compile, "keep_made", lambda *_: pytest.fail("kept"))
    with pytest.raises(Exception, match="C\\+\\+ compiler"):
        compile_graph(softmax(), constants={}, device="host", options=options.with_overrides(cxx="no-such-compiler"))


def test_old_programs_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Options) -> None:
    monkeypatch.setattr("tilefuse.runtime.stores.text_store.MAX_ENTRIES", 10)
    store = ProgramStore(tmp_path)
    program, _ = compiled(softmax(), options)
    from tilefuse.runtime.stores.program_store import StoredProgram

    for number in range(40):
        store.put(f"{number:02x}" + "0" * 62, StoredProgram(program.spec, {}))
    assert len(store.paths()) <= 12


def test_an_exported_cache_carries_programs(options: Options, tmp_path: Path) -> None:
    compiled(softmax(), options)
    away = KernelCache(tmp_path / "away")
    assert export_cache(KernelCache(options.cache_dir), tmp_path / "cache.zip") > 0
    assert import_cache(away, tmp_path / "cache.zip") > 0
    with trace.tracing(trace.Trace(options)) as told:
        compile_graph(softmax(), constants={}, device="host", options=options.with_overrides(cache_dir=str(tmp_path / "away")))
    assert "plan" not in told.seconds_by_name() and len(ProgramStore(tmp_path / "away").paths()) == 1


def test_a_registered_operators_text_counts(options: Options) -> None:
    from tilefuse.arrays.evaluation.custom_meaning import HostMeaning
    from tilefuse.ir.custom import register_function, unregister_function

    found = []
    for text in ("x + 1", "x + 2"):
        register_function("plus_some", "(x: float) -> float", text, meaning=HostMeaning("plus_some"))
        try:
            graph = parse_graph("graph @g(%x: f32[4]) -> (f32[4]) {\n  %y: f32[4] = map [i] { plus_some(%x[i]) }\n  return %y\n}")
            found.append(compiled(graph, options)[0](torch.zeros(4))[0].tolist())
        finally:
            unregister_function("plus_some")
    assert found == [[1.0] * 4, [2.0] * 4]


def test_every_room_that_decides_is_a_folder_with_files() -> None:
    """A room that is not there would take part in no digest: a changed compiler would answer with programs of the old one."""
    root = Path(tilefuse.__file__).parent
    assert all(any((root / room).rglob("*.py")) for room in known_programs.DECIDING_ROOMS)
    undecided = {"pages", "standalone", "frontends", "inspection", "nn", "optim", "tools"}
    assert {p.parent.name for p in root.glob("*/__init__.py")} == {*known_programs.DECIDING_ROOMS, *undecided}
