"""Planning with the device at hand: calibration, timed plans and tuning run on a GPU and change no result."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tilefuse
from tilefuse.driver.compile import present_device
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.tools import cli

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SOFTMAX = parse_graph("""graph @softmax(%x: f32[64, 1024]) -> (f32[64, 1024]) {
  %m: f32[64] = reduce.max [i] over [k < 1024] { %x[i, k] }
  %e: f32[64, 1024] = map [i, j] { exp(sub(%x[i, j], %m[i])) }
  %s: f32[64] = reduce.sum [i] over [k < 1024] { %e[i, k] }
  %y: f32[64, 1024] = map [i, j] { div(%e[i, j], %s[i]) }
  return %y
}""")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path / "cache"))


def check(program: object) -> None:
    x = torch.randn(64, 1024, device="cuda")
    (y,) = program(x)  # type: ignore[operator]
    torch.testing.assert_close(y, torch.softmax(x, -1), rtol=0, atol=1e-6)


def answer(capsys: pytest.CaptureFixture[str], *command: str) -> Any:
    """A command's output as JSON; its words to people where it fails."""
    status = cli.main([*command, "--json"])
    told = capsys.readouterr()
    assert status == 0, f"status {status}: {told.err}"
    return json.loads(told.out)


def test_a_calibration_is_plausible(capsys: pytest.CaptureFixture[str]) -> None:
    """Launches take microseconds; a copy of half a gigabyte runs at about the memory's speed, one of 4 KiB far below it.

    Other work on the device may stretch any figure, so the bounds leave a factor of three, where the rates are two hundred apart.
    """
    found = answer(capsys, "calibrate", "--device", "cuda", "--most-mib", "512")
    assert 0.1 < found["graph_launch_us"] < 50 and 0.5 < found["launch_us"] < 150, found
    assert found["graph_launch_us"] < 3 * found["launch_us"], found
    times = [us for _, us in found["transfer_curve"]]
    assert times == sorted(times), found
    (least, least_us), (most, most_us) = found["transfer_curve"][0], found["transfer_curve"][-1]
    reached = most / most_us / present_device("cuda")[0].global_bytes_per_s * 1e6
    assert 1 / 3 < reached < 3 and least / least_us < 0.1 * most / most_us, found
    check(tilefuse.compile(SOFTMAX, device="cuda"))


def test_a_timed_plan_computes_the_same_and_keeps_its_records(tmp_path: Path) -> None:
    check(tilefuse.compile(SOFTMAX, device="cuda", measure=True))
    (path,) = (tmp_path / "cache" / "measured").iterdir()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) >= 5 and all(0.2 < r["us"] < 1000 for r in rows)


def test_tuning_never_makes_a_kernel_slower_or_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "softmax.txt"
    model.write_text(print_graph(SOFTMAX).replace("64", "4096"))
    (kernel,) = answer(capsys, "tune", str(model), "--device", "cuda", "--seconds", "5")["kernels"]
    assert kernel["us"] <= kernel["base_us"] and kernel["trials"] > 1 and "wrong-result" not in kernel["rejected"], kernel
    check(tilefuse.compile(SOFTMAX, device="cuda"))


def test_a_template_by_hand_runs() -> None:
    check(tilefuse.compile(SOFTMAX, device="cuda", template="s [GRID,CLUSTER_2-CTA_64]; m [GRID,CLUSTER_2-CTA_64]C;"))


PRODUCT = parse_graph("""graph @product(%x: f32[512, 1024], %w: f32[1024, 64]) -> (f32[512, 64]) {
  %p: f32[512, 64] = library.matmul (%x, %w) {precision = "default", transpose_a = false, transpose_b = false}
  %y: f32[512, 64] = map [i, j] { exp(mul(%p[i, j], 0.01:f32)) }
  return %y
}""")


def test_tuning_times_the_librarys_call_of_a_product(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The next compile knows the time of the call, takes the faster side, and computes the same."""
    model = tmp_path / "product.txt"
    model.write_text(print_graph(PRODUCT))
    tuned = answer(capsys, "tune", str(model), "--device", "cuda", "--seconds", "10")
    (call,) = tuned["calls"]
    assert call["products"] == ["p"] and 0.5 < call["us"] < 1000 and tuned["kernel_or_call"], tuned
    program = tilefuse.compile(PRODUCT, device="cuda")
    assert any("measured call" in note for note in program.explain(json=True)["notes"])
    x, w = torch.randn(512, 1024, device="cuda"), torch.randn(1024, 64, device="cuda")
    (y,) = program(x, w)
    torch.testing.assert_close(y, torch.exp(0.01 * (x @ w)), rtol=1e-4, atol=1e-4)
