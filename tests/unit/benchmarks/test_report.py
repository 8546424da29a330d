"""Report of a record: limits by bytes and by operations, ratios, targets, and the tables of the workloads."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import characteristics, history, readme, results_page
from benchmarks.__main__ import main
from benchmarks.record import RESULTS, Record
from benchmarks.report import limit_us, rows, table, verdict


def ok(us: float, **more: Any) -> dict[str, Any]:
    """A measured peer."""
    return {"status": "ok", "us": us, **more}


def stitched_record(path: Path) -> Record:
    """Two cases: one bound by bytes, one by operations; the second misses what it asks."""
    header = {"suite": "stitched", "device": "a device", "cuda": "13", "copy_bytes_per_s": 1e12, "flops_per_s": {"f32": 1e13}}
    asked = {"family": "products", "dtype": "f32", "min_of_limit": 0.0, "min_speedup": 2.0, "max_compile_share": 0.25}
    return Record(path, header, {
        "bytes": {**asked, "flops": 1000,
                  "peers": {"inductor": ok(30, bytes=10**7, compile_s=8), "tilefuse": ok(12, bytes=10**7, compile_s=1)}},
        "operations": {**asked, "flops": 10**9,
                       "peers": {"inductor": ok(300, bytes=10**7, compile_s=8), "tilefuse": ok(200, bytes=10**7, compile_s=4)}},
    })


def workload_record(path: Path) -> Record:
    """One workload measured on a device, one without counts."""
    ours = ok(100, launched_kernels=10, launched_copies=2, kernel_us=60.0, memory_share=0.5, compile_s=2.0, num_kernels=8,
              num_library_calls=3, patterns={"elementwise": 4, "reduction": 3, "product": 1},
              pattern_us={"elementwise": 10.0, "reduction": 20.0, "product": 10.0}, shared_time_share=0.75,
              shared_memory={"share": 0.5, "average_bytes": 2048, "largest_bytes": 8192, "allocated_of_requested": 0.8})
    return Record(path, {"suite": "workloads", "device": "a device", "cuda": "13"}, {
        "a": {"family": "application", "dtype": "f32", "peers": {
            "eager": ok(400, graph_size=77, launched_kernels=60, launched_copies=0, kernel_us=240.0, memory_share=0.6, compile_s=0.0),
            "inductor": ok(150, launched_kernels=24, launched_copies=0, kernel_us=120.0, memory_share=0.4, compile_s=20.0),
            "tilefuse": ours}},
        "b": {"family": "application", "dtype": "f32", "peers": {"eager": ok(10, graph_size=5), "inductor": {"status": "timeout"},
                                                                 "tilefuse": ok(5)}},
    })


def test_the_larger_limit_counts(tmp_path: Path) -> None:
    """10 MB at 1 TB/s are 10 us; 1 G operations at 10 T/s are 100 us."""
    record = stitched_record(tmp_path / "r.json")
    assert [limit_us(record, e) for e in record.cases.values()] == pytest.approx([10.0, 100.0])


def test_missed_targets_are_named(tmp_path: Path) -> None:
    """Speed and compile time against torch.compile, both by case."""
    record = stitched_record(tmp_path / "r.json")
    found = rows(record, ["inductor"])
    assert [r["vs inductor"] for r in found] == pytest.approx([2.5, 1.5])
    assert [r["compile"] for r in found] == pytest.approx([0.125, 0.5])
    printed = table(record, ["inductor"])
    assert [line.endswith("below target") for line in printed.splitlines()[1:3]] == [False, True]
    told = verdict(record)
    assert "below the asked speed against torch.compile: 1 (operations)" in told
    assert "compiled for longer than the asked share of torch.compile's time: 1 (operations)" in told


def test_figures_of_a_workload(tmp_path: Path) -> None:
    """Every ratio from its two figures; copies on the device count as kernels; what was not measured is None."""
    first, second = characteristics.rows(workload_record(tmp_path / "r.json"))
    wanted = {"graph size": 77, "eager kernels": 60, "tilefuse kernels": 12, "eager kernel us": 4.0, "eager memory share": 0.6,
              "eager/inductor kernels": 2.5, "eager/tilefuse kernels": 5.0, "tilefuse/inductor kernels": 0.5, "tilefuse speed": 4.0,
              "against inductor": 1.5, "busy against inductor": 0.5, "elementwise patterns": 0.5, "product time": 0.25,
              "shared share": 0.5, "shared time": 0.75, "shared average KiB": 2.0, "shared largest KiB": 8.0, "allocated/requested": 0.8}
    assert {key: first[key] for key in wanted} == pytest.approx(wanted)
    assert second["eager kernels"] is None and second["against inductor"] is None and second["tilefuse speed"] == 2.0


def test_tables_of_workloads_print_and_name_the_targets(tmp_path: Path) -> None:
    """The text holds all four tables; the geometric mean leaves out what is missing."""
    told = characteristics.text(workload_record(tmp_path / "r.json"))
    assert all(title in told for title, _ in characteristics.TABLES)
    assert "kernels against torch.compile: 0.50 in geometric mean" in told
    assert "speed against torch.compile: 1.50 in geometric mean" in told


def test_readme_and_page_have_both_suites(tmp_path: Path) -> None:
    """A line a suite between the markers of the README; every case on the page."""
    stitched_record(tmp_path / "stitched-1.json").write()
    workload_record(tmp_path / "workloads-1.json").write()
    page, results = tmp_path / "README.md", tmp_path / "results.md"
    page.write_text("before\n<!-- results:begin -->\nold\n<!-- results:end -->\nafter\n", encoding="utf-8")
    text = readme.write(page, results, tmp_path)
    told = page.read_text(encoding="utf-8")
    assert told.startswith("before\n<!-- results:begin -->\nGeometric means on a device") and told.endswith("<!-- results:end -->\nafter\n")
    assert [line.rpartition(" | - | ")[2] for line in text.splitlines()[4:]] == ["1.94 | 0 of 2 |", "2.83 | 1.50 | 0 of 1 |"]
    written = results.read_text(encoding="utf-8")
    assert "| operations | 100.0 |" in written and "| a | 77 | 60 |" in written and "jax" not in written.partition("## ")[2]


def test_a_share_of_the_limit_speaks_for_most_cases_or_is_left_out(tmp_path: Path) -> None:
    record = stitched_record(tmp_path / "r.json")
    assert "| 2 | - |" in readme.table({"stitched": record})
    for entry in record.cases.values():
        entry["min_of_limit"] = 0.5
    assert "| 2 | 0.65 |" in readme.table({"stitched": record})


@pytest.mark.parametrize("section", results_page.SECTIONS, ids=lambda s: s.suite)
def test_every_column_of_the_page_is_explained_and_no_other(section: results_page.Section) -> None:
    """Of the newest records: each heading of a suite's tables is in its list or in the common one."""
    records = history.newest_records(RESULTS)
    if section.suite not in records:
        pytest.skip(f"no record of {section.suite}")
    tables = section.table(records[section.suite])
    heads = {h.strip() for above in re.findall(r"^\|(.*)\|\n\| ?---", tables, re.MULTILINE) for h in above.split("|")}
    common = {h for group, _ in results_page.COMMON for h in group}
    assert heads - common - set(section.columns) == set()
    # Records of fused products alone have no table of bare ones.
    assert set(section.columns) - heads <= ({"product", "jax.jit us"} if section.suite == "products" else set())


@pytest.mark.parametrize(("suite", "known"), [("stitched", "lstm/f32/32x32x256"), ("workloads", "bi-rnn/training/f32"),
                                              ("arrays", "adam/f32/96")])
def test_lists_of_cases(suite: str, known: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--list` prints names and measures nothing; `--only` chooses."""
    assert main([suite, "--list"]) == 0
    assert known in capsys.readouterr().out.splitlines()
    assert main([suite, "--list", "--only", f"^{known}$"]) == 0
    assert capsys.readouterr().out.splitlines() == [known]
