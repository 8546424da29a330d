"""The suite of products: its cases, what they count and check, its command, its report and its page."""
from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import prune, readme, results_page
from benchmarks.__main__ import main, parser, select
from benchmarks.case import Case, allowed_error, as_tuple, reference_of
from benchmarks.measure import Given, Server, measure_pattern
from benchmarks.precision import products_in
from benchmarks.products import bare, fused, grouped, jax_products, listing
from benchmarks.products.tables import products_table
from benchmarks.products.verdict import verdict
from benchmarks.record import Record
from benchmarks.report import limit_us, rows, table

CPU = torch.device("cpu")
SMALL = listing.cases(tiny=True)


def inputs_of(case: Case) -> tuple[torch.Tensor, ...]:
    """One set of a case's inputs on the host."""
    return tuple(case.inputs(CPU, torch.Generator().manual_seed(3)))


# -- cases ---------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_small_versions_agree_with_double_precision_and_count_their_operations(case: Case) -> None:
    """Every case runs in its own type; `flops` are those that torch counts; so are those of a fused product's products alone."""
    inputs = inputs_of(case)
    with products_in(case.dtype), FlopCounterMode(display=False) as counter:
        outputs = as_tuple((case.eager or case.function)(*inputs))
    # torch does not count its grouped product; a product for each group is counted below.
    assert counter.get_total_flops() == (0 if case.family == grouped.GROUPED else case.flops)
    assert case.sample is not None
    assert case.sample.error(inputs, outputs, reference_of(case, inputs)) <= allowed_error(case.dtype)
    if case.bare is not None:
        with FlopCounterMode(display=False) as alone:
            case.bare(*inputs if case.bare_operands is None else case.bare_operands(inputs))
        assert alone.get_total_flops() == case.flops


def test_names_are_unique_and_small_versions_are_the_same_cases() -> None:
    """Also where sizes shrink: a name stands for one case."""
    full, small = listing.listed(), listing.listed(tiny=True)
    assert len({c["name"] for c in full}) == len({c["name"] for c in small}) == len(full)
    kinds = [[(c["name"].rpartition("/")[0], c["family"], c["rank"]) for c in cases] for cases in (full, small)]
    assert [k for k in kinds[0] if "einsum" not in k[0]] == [k for k in kinds[1] if "einsum" not in k[0]]
    assert [c["rank"] for c in full] == sorted(c["rank"] for c in full)


def test_cases_that_the_targets_name() -> None:
    """At least 60 bare products, of four types and all transposes; the eleven anchors first, each with two variants or more."""
    names = [c["name"] for c in listing.listed()]
    plain = [n for n in names if listing.is_bare(n)]
    assert len(plain) >= 60 and len(plain) == len(bare.cases(False))
    assert len(names) - len(plain) == len(fused.cases(False)) + len(grouped.cases(False))
    for dtype in bare.TYPES:
        assert {n.split("/")[2] for n in plain if n.startswith(f"product/{dtype}/")} == {"nn", "nt", "tn", "tt"}
        assert {f"{side}x{side}x{side}" for side in (1024, 2048, 4096, 8192)} <= {n.split("/")[-1] for n in plain if f"/{dtype}/" in n}
    few = {tuple(map(int, n.split("/")[-1].split("x"))) for n in plain if n.startswith("few-rows/bf16/nt")}
    assert few == {(m, *w) for m in (1, 8, 16, 64, 128, 512) for w in ((4096, 4096), (14336, 4096), (4096, 14336))}
    anchors = ["linear-gelu/f16/8192x4096x1024", "gated-pair/bf16/4096x11008x4096", "linear-residual-layernorm/f16/16384x768x3072",
               "rmsnorm-linear/bf16/8192x6144x4096", "linear-softmax/f16/8192x1000x2048", "linear-crossentropy/bf16/8192x32000x2048",
               "int8-weight-linear/bf16/16x11008x4096", "mlp/f16/65536x256x4", "linear-relu-squared/bf16/8192x8192x2048",
               "rmsnorm-linear-residual/bf16/1x4096x4096", "linear-backward/bf16/8192x4096x1024"]
    assert names[:11] == anchors
    assert all(sum(n.startswith(a.partition("/")[0] + "/") for n in names) >= 3 for a in anchors)
    assert set(fused.max_us_by_name()) <= set(anchors)
    asked = {c["name"]: c for c in listing.listed()}
    assert asked["odd/bf16/nn/4095x4097x4099"]["min_speedup"] == 4.0 and asked["few-rows/bf16/nt/16x4096x4096"]["min_of_limit"] == 0.92


def test_peers_that_are_asked_for_measure_every_case() -> None:
    """Without such a list bare products leave torch.compile out, and fused ones JAX."""
    usual = {c["name"]: c["rivals"] for c in select(parser().parse_args(["products"]))}
    assert usual["product/f32/nn/8192x8192x8192"] == ["eager", "jax"] and usual["mlp/f16/65536x256x4"] == ["eager", "inductor"]
    assert not any("rivals" in c for c in select(parser().parse_args(["products", "--peers", "eager,inductor"])))


def test_few_rows_read_cold_weights() -> None:
    """The input sets of a product of few rows are together larger than a cache of 60 MB, four times."""
    from benchmarks.timing import L2_ROTATION, num_input_sets

    case = next(c for c in listing.cases() if c.name == "few-rows/bf16/nt/1x4096x4096")
    moved = 2 * (4096 * 4096 + 2 * 4096)
    assert num_input_sets(moved, CPU) * moved >= L2_ROTATION * (32 << 20) and case.flops == 2 * 4096 * 4096


def test_jax_multiplies_the_same() -> None:
    """Every bare product whose operands NumPy can hold."""
    jax = pytest.importorskip("jax")
    for case in (c for c in SMALL if c.jax is not None and c.dtype != "bf16"):
        inputs = inputs_of(case)
        assert case.jax is not None and case.sample is not None
        result = torch.from_numpy(jax.device_get(case.jax(*(t.numpy() for t in inputs))).copy())
        assert case.sample.error(inputs, (result,), reference_of(case, inputs)) <= allowed_error(case.dtype), case.name


def test_every_bare_product_has_a_form_in_jax() -> None:
    """Its rivals are held against all of them."""
    assert all(c.jax is not None for c in bare.cases(False)) and callable(jax_products.product("tf32", True, False))


# -- measuring -----------------------------------------------------------------------------------------------------------------

def test_tf32_is_a_setting_of_the_measurement() -> None:
    """On for tf32, off for f32, left alone for others; as before afterwards, also when a peer fails."""
    settings = torch.backends.cuda.matmul
    before = settings.allow_tf32
    with products_in("tf32"):
        assert settings.allow_tf32
        with products_in("bf16"):
            assert settings.allow_tf32
        with pytest.raises(ValueError, match="failed"), products_in("f32"):
            assert not settings.allow_tf32
            raise ValueError("failed")
        assert settings.allow_tf32
    assert settings.allow_tf32 == before


@pytest.mark.parametrize("dtype", ["tf32", "f32"])
def test_every_peer_is_prepared_checked_and_timed_with_the_setting(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tilefuse reads it when it compiles, torch with each call."""
    seen: set[tuple[torch.dtype, bool]] = set()

    def seeing(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        seen.add((a.dtype, torch.backends.cuda.matmul.allow_tf32))
        return a @ b

    case = next(c for c in SMALL if c.name.startswith(f"product/{dtype}/nn/"))
    monkeypatch.setattr(listing, "cases", lambda tiny: [replace(case, function=seeing)])
    request = {"what": "product", "case": case.name, "size_mib": 1, "tiny": True, "inductor_mode": "default"}
    server = Server(CPU)
    assert [server.answer({**request, "peer": peer})["status"] for peer in ("eager", "tilefuse")] == ["ok", "ok"]
    assert (torch.float32, dtype == "tf32") in seen and (torch.float32, dtype != "tf32") not in seen


def test_products_alone_are_timed_beside_tilefuse_only() -> None:
    """On the same input sets; errors are recorded for each peer."""
    case = next(c for c in SMALL if c.name.startswith("linear-gelu/f16"))
    given = Given(case, CPU)
    told = {peer: measure_pattern(given, peer, inductor_mode="default") for peer in ("eager", "tilefuse")}
    assert told["tilefuse"]["bare_us"] > 0 and "bare_us" not in told["eager"]
    assert all(t["status"] == "ok" and 0 < t["error"] <= allowed_error("f16") for t in told.values())


def test_a_wrong_result_is_found_by_its_rows() -> None:
    """A part that the norm of the whole matrix would hide makes a peer wrong."""
    def wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = a @ b.t()
        out[100:110, 10:14] = 0
        return out

    plain = next(c for c in bare.cases(False) if c.name == "few-rows/bf16/nt/512x4096x4096")
    small = Case("c", "c", "bf16", plain.function, fused.normal("bf16", (2048, 32), (512, 32)), eager=wrong, sample=plain.sample)
    assert measure_pattern(Given(small, CPU), "eager", inductor_mode="default")["status"] == "wrong"


@pytest.mark.slow
def test_a_tiny_run_on_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two measuring processes that take turns: every peer of each case, the rates of all types, the verdict."""
    asked = "^(linear-gelu/f16/5|product/tf32/nn/44|odd/f32/nt)"
    assert main(["products", "--tiny", "--devices", "cpu", "--processes", "2", "--only", asked, "--peers", "eager",
                 "--out", str(tmp_path)]) == 0
    record = Record.load(next(tmp_path.glob("*.json")))
    assert len(record.cases) == 3 and all(set(e["peers"]) == {"eager", "tilefuse"} for e in record.cases.values())
    assert record.header["flops_per_s"].keys() == set(bare.TYPES) and set(record.header["devices"]) == {"cpu"}
    assert record.header["takes_turns"] and record.header["num_side_by_side"] == 1
    told = capsys.readouterr().out
    assert "tilefuse ran 3 of 3 cases" in told and "bare products against the best peer" in told


# -- report --------------------------------------------------------------------------------------------------------------------

def ok(us: float, **more: Any) -> dict[str, Any]:
    """A measured peer."""
    return {"status": "ok", "us": us, "bytes": 10**6, **more}


def products_record(path: Path) -> Record:
    """Two bare products (one slow, one of few rows) and two fused ones (one above its products alone) on a device called H200."""
    header = {"suite": "products", "device": "NVIDIA H200", "cuda": "13", "copy_bytes_per_s": 1e12,
              "flops_per_s": {"bf16": 1e15, "f16": 5e14}, "time": "2026-01-01T00:00:00",
              "inductor_mode": "max-autotune-no-cudagraphs", "compile_threads_each": 4}
    facts = {c["name"]: c for c in listing.listed()}

    def entry(name: str, **peers: Any) -> dict[str, Any]:
        return {**facts[name], "peers": peers}

    names = ("product/bf16/nt/4096x4096x4096", "few-rows/bf16/nt/16x4096x4096", "linear-gelu/f16/8192x4096x1024",
             "linear-backward/bf16/8192x4096x1024")
    return Record(path, header, {
        names[0]: entry(names[0], eager=ok(200), jax=ok(190), tilefuse=ok(250, compile_s=1.0, library_calls=["mm"])),
        names[1]: entry(names[1], eager=ok(2), jax={"status": "failed"}, tilefuse=ok(1.25, compile_s=3.0, library_calls=[])),
        names[2]: entry(names[2], eager=ok(300), inductor=ok(250), tilefuse=ok(150, bare_us=100.0, compile_s=1.0, library_calls=[])),
        names[3]: entry(names[3], eager=ok(300), inductor=ok(200), tilefuse=ok(100, bare_us=100.0, compile_s=1.0, library_calls=[])),
    })


def test_ratios_and_limits_of_products(tmp_path: Path) -> None:
    """The larger limit by the rate of the case's type; the best peer of a bare product, the products alone of a fused one."""
    record = products_record(tmp_path / "r.json")
    plain, few, gelu, backward = rows(record, ["eager", "inductor", "jax"])
    assert [limit_us(record, e) for e in record.cases.values()] == pytest.approx(
        [2 * 4096**3 / 1e9, 1.0, 2 * 8192 * 4096 * 1024 / 5e8, 4 * 8192 * 4096 * 1024 / 1e9])
    assert (plain["vs best"], few["of limit"], gelu["of bare"], backward["vs inductor"]) == pytest.approx((0.76, 0.8, 1.5, 2.0))
    assert plain["TFLOP/s"] == pytest.approx(2 * 4096**3 / 250 / 1e6) and "TFLOP/s" in table(record, [])
    marked = [line.split()[0] for line in table(record, ["eager", "inductor", "jax"]).splitlines() if line.endswith("below target")]
    assert marked == [plain["case"], few["case"], gelu["case"]]


def test_the_verdict_names_targets_and_what_misses_them(tmp_path: Path) -> None:
    told = verdict(products_record(tmp_path / "r.json"))
    assert "bare products against the best peer: 1.103 in geometric mean of 2 (asked 1.00); least 0.760 (product/bf16/nt/4096" in told
    assert "below the asked speed: 1 (product/bf16/nt/4096x4096x4096)" in told
    assert "few rows against the copy bandwidth: 0.800 in geometric mean of 1 (asked of each 0.92); below: 1 (few-rows" in told
    assert "1.225 in geometric mean of 2; most 1.500 (linear-gelu/f16/8192x4096x1024); above the asked share: 1 (linear-gelu" in told
    assert "fused products against torch.compile: 1.826 in geometric mean of 2 (asked 1.25); slower on 0" in told
    assert "above the asked time: 1 of 1: linear-gelu/f16/8192x4096x1024 150.0 us (asked 125.0)" in told
    assert "cold compiles: 1.00 s in the median, 3.00 s at most, 4 threads a process; longer than asked: 1 (few-rows" in told
    assert "peers without a result: few-rows/bf16/nt/16x4096x4096 (jax)" in told


def test_a_verdict_of_nothing_and_of_a_failure(tmp_path: Path) -> None:
    """A record without times says so; another device has no times asked."""
    record = products_record(tmp_path / "r.json")
    record.header["device"] = "another"
    assert "above the asked time" not in verdict(record)
    for entry in record.cases.values():
        entry["peers"]["tilefuse"] = {"status": "failed"}
    told = verdict(record)
    assert told.startswith("tilefuse ran 0 of 4 cases\nno result of tilefuse: product/bf16")


def test_page_readme_and_history_hold_products(tmp_path: Path) -> None:
    """Every column of the page is explained, and no other; two lines of the README; a line of history with figures of its own."""
    record = products_record(tmp_path / "products-h200-1.json")
    record.write()
    section = next(s for s in results_page.SECTIONS if s.suite == "products")
    told = products_table(record)
    heads = {h.strip() for above in re.findall(r"^\|(.*)\|\n\| ?---", told, re.MULTILINE) for h in above.split("|")}
    common = {h for group, _ in results_page.COMMON for h in group}
    assert heads - common == set(section.columns)
    assert "| linear-gelu/f16/8192x4096x1024 | 137.4 | 100.0 | 300.0 | 250.0 | 150.0 | 458.1 | 0.92 | 1.50 | 1.67 | 0 |" in told
    assert "| **few rows** (geometric mean of 1) |  |  |  |  |  | 0.80 | 1.60 |  |" in told
    page, results = tmp_path / "README.md", tmp_path / "results.md"
    page.write_text("<!-- results:begin -->\n<!-- results:end -->\n", encoding="utf-8")
    lines = readme.write(page, results, tmp_path).splitlines()
    assert [line.split("|")[2].strip() for line in lines if "matrix products" in line] == ["2", "2"]
    assert "## Matrix products, alone and with their neighbours" in results.read_text(encoding="utf-8")
    assert "bare × best peer 1.103, fused 1.225 of their products alone" in prune.line(record)
    assert "products" not in readme.table({})
