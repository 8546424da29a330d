"""Plans of other sizes are found again, and a program says and records which one it started from."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.plan.graphs import layers, softmax
from tests.unit.plan.test_seeded import norms
from tilefuse.base import trace
from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph, generate, present_device
from tilefuse.driver.reuse import known_programs, known_seeds
from tilefuse.driver.reuse.known_seeds import Found, look_up, seed_key, seeded_digest
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph
from tilefuse.runtime.program import Program
from tilefuse.runtime.stores.cache import SEEDS, CacheWarning, KernelCache
from tilefuse.runtime.stores.cache_file import export_cache, import_cache
from tilefuse.runtime.stores.text_store import TextStore
from tilefuse.runtime.summary import summary_lines
from tilefuse.target.device import H200


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Options with an empty cache folder, and known programs switched on."""
    monkeypatch.setattr(known_programs, "enabled", True)
    return Options(cache_dir=str(tmp_path / "cache"))


def compiled(graph: Graph, options: Options) -> tuple[Program, bool]:
    """The program, and whether it was planned."""
    with trace.tracing(trace.Trace(options)) as told:
        program = compile_graph(graph, constants={}, device="host", options=options)
    return program, "plan" in told.seconds_by_name()


def facts(options: Options) -> dict[str, Any]:
    return {"constants": {}, "input_layouts": None, "device": present_device("host")[0], "options": options, "fallbacks": (),
            "result_layouts": None, "free_results": (), "static": (), "given_up": (), "overwritable": ()}


def start_of(program: Program) -> dict[str, Any] | None:
    start: dict[str, Any] | None = program.explain(json=True)["plan"]["start"]
    return start


def text_of(program: Program) -> tuple[object, ...]:
    """Everything of a program but the seconds that it took and the folder of its cache."""
    told = program.explain(json=True)
    told["plan"].pop("seconds")
    return program.spec.plan_text, program.spec.kernels, program.spec.steps, {**told, "options": {}}


def test_the_second_size_starts_from_the_first_and_says_so(options: Options) -> None:
    first, _ = compiled(norms(8, 16), options)
    second, _ = compiled(norms(12, 32), options)
    assert start_of(first) is None
    start = start_of(second)
    assert start is not None and start["sizes"]["x0"] == [[8, 16], [12, 32]] and start["kept"] > 0 and start["given_up"] == []
    told = second.explain()
    assert "starts from an earlier one of the same graph with x0 [8, 16] (here [12, 32])" in told and "reuse_plans" in told
    assert "planned from an earlier plan of other sizes" in "\n".join(summary_lines(second.explain(json=True)))
    draw = np.random.default_rng(0)
    inputs = {i.name: draw.integers(-3, 4, i.type.shape).astype(np.float32) for i in norms(12, 32).inputs}
    found = second(*(torch.from_numpy(x) for x in inputs.values()))[0].numpy()
    # Sums of 32 small integers, one root and a few roundings, on values up to 60.
    np.testing.assert_allclose(found, interpret(norms(12, 32), inputs)[0], rtol=1e-5, atol=1e-4)
    again, planned = compiled(norms(12, 32), options)
    assert not planned and text_of(again) == text_of(second)


def test_the_same_request_with_the_same_seed_gives_the_same_program(options: Options, tmp_path: Path) -> None:
    """What else was compiled before, and in which order, does not show; sizes that started from a plan are no seeds."""
    other = options.with_overrides(cache_dir=str(tmp_path / "other"))
    compiled(norms(8, 16), options)
    for graph in (norms(8, 16), norms(10, 16), norms(13, 32), softmax()):
        compiled(graph, other)
    one, two = compiled(norms(12, 32), options)[0], compiled(norms(12, 32), other)[0]
    assert start_of(one) == start_of(two) is not None
    assert text_of(one) == text_of(two)
    wanted = facts(options)
    assert look_up(norms(12, 32), wanted).seed == look_up(norms(12, 32), facts(other)).seed


def test_a_program_depends_on_its_seed(options: Options) -> None:
    compiled(norms(8, 16), options)
    found = look_up(norms(12, 32), facts(options))
    assert found.seed is not None and found.program is None
    afresh = generate(norms(12, 32), **facts(options)).spec
    program, _ = compiled(norms(12, 32), options)
    again = look_up(norms(12, 32), facts(options))
    assert again.program is not None and again.seed == found.seed and again.digest == found.digest
    store = known_programs._store(options)
    assert store.get(found.digest) is None and store.get(seeded_digest(found.digest, found.seed)) is not None
    assert [k.source for k in program.spec.kernels] == [k.source for k in afresh.kernels]


def test_the_option_turns_it_off(options: Options) -> None:
    compiled(norms(8, 16), options)
    off = options.with_overrides(reuse_plans=False)
    assert look_up(norms(12, 32), facts(off)).key == ""
    assert start_of(compiled(norms(12, 32), off)[0]) is None
    written = options.with_overrides(plan="plan @norms for host objective 0us unfused 0us {\n}")
    assert not known_seeds.uses_seeds(written)


def test_a_seed_that_does_not_fit_leaves_no_trace(options: Options, tmp_path: Path) -> None:
    """Where products stand otherwise against the library the program is the one made from nothing, and a seed of its own."""
    few, many = layers(2, rows=4), layers(2, rows=4096)
    fresh = options.with_overrides(cache_dir=str(tmp_path / "fresh"))
    h200 = facts(options) | {"device": H200}
    made = generate(few, **h200)
    known_seeds.keep_made(look_up(few, h200), made, few, h200)
    found = look_up(many, h200)
    assert found.seed is not None
    program = generate(many, **h200, seed=found.seed)
    afresh = generate(many, **(h200 | {"options": fresh}))
    assert program.plan.start is None and program.spec.plan_text == afresh.spec.plan_text
    assert program.spec.kernels == afresh.spec.kernels
    known_seeds.keep_made(found, program, many, h200)
    nearest = look_up(layers(2, rows=2048), h200).seed
    assert nearest is not None and nearest.sizes[0] == ("x0", (4096, 64))
    assert look_up(layers(2, rows=6), h200).seed == found.seed
    assert look_up(many, h200).program is not None


def test_keys_are_equal_up_to_numbers(options: Options) -> None:
    wanted = facts(options)
    key = seed_key(norms(8, 16), wanted)
    assert seed_key(norms(9, 1000), wanted) == key
    assert seed_key(norms(8, 16, count=3), wanted) != key
    text = "graph @{}(%x1: f32[{n}]) -> (f32[{n}]) {{\n  %y: f32[{n}] = map [i] {{ {f}(%x1[i]) }}\n  return %y\n}}"
    assert seed_key(parse_graph(text.format("a", n=4, f="exp")), wanted) == seed_key(parse_graph(text.format("b", n=7, f="exp")), wanted)
    assert seed_key(parse_graph(text.format("a", n=4, f="exp")), wanted) != seed_key(parse_graph(text.format("a", n=4, f="expm1")), wanted)
    for changed in ({"free_results": (0,)}, {"static": ("x0",)}, {"options": options.with_overrides(fast_math=True)},
                    {"device": H200}, {"input_layouts": {"x0": (1, 8)}}):
        assert seed_key(norms(8, 16), wanted | changed) != key, changed


def test_no_more_seeds_than_a_few(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_seeds, "MOST_SEEDS", 2)
    wanted, key = facts(options), seed_key(softmax(), facts(options))
    made = generate(norms(8, 16), **wanted)
    for rows in (8, 9, 10, 8):
        graph = norms(rows, 16)
        known_seeds.keep_made(Found(f"{rows:064x}", key), made, graph, wanted)
    assert [seed.sizes[0][1] for seed in known_seeds._seeds(key, options)] == [(8, 16), (9, 16)]


def test_a_damaged_file_is_a_miss(options: Options) -> None:
    compiled(norms(8, 16), options)
    (path,) = TextStore(Path(options.cache_dir), SEEDS, "seed 1").paths()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(CacheWarning, match="damaged seed"):
        assert start_of(compiled(norms(12, 32), options)[0]) is None


def test_seeds_travel_with_the_cache(options: Options, tmp_path: Path) -> None:
    compiled(norms(8, 16), options)
    compiled(norms(12, 32), options)
    other = options.with_overrides(cache_dir=str(tmp_path / "other"))
    export_cache(KernelCache(Path(options.cache_dir)), tmp_path / "file.tfcache")
    import_cache(KernelCache(Path(other.cache_dir)), tmp_path / "file.tfcache")
    program, planned = compiled(norms(12, 32), other)
    assert not planned and start_of(program) is not None
