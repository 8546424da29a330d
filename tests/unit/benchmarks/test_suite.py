"""A run over several devices: order of cases, one device a case, budget, resuming, failures, interrupts."""
from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks import suite
from benchmarks.__main__ import main
from benchmarks.devices import Place, with_workers
from benchmarks.record import Record
from benchmarks.report import device_text, limit_us
from benchmarks.suite import Queue, Run, earlier_seconds, families_in_turn, longest_first

PLACES = [Place("0", "0"), Place("1", "1")]


class StandIn:
    """Answers like a measuring process: what it was asked, and how fast its device copies."""

    asked: list[tuple[str, str, str]] = []
    answer: Any = None

    def __init__(self, log_path: Path, environment: dict[str, str]) -> None:
        self.device = environment["CUDA_VISIBLE_DEVICES"]
        self.is_closed = False

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        if request["what"] == "bandwidth":
            return {"status": "ok", request["key"]: {"64": 1e12, "256": 1e12 * (1 + int(self.device))}}
        StandIn.asked.append((request["case"], request["peer"], self.device))
        return StandIn.answer(request) if StandIn.answer else {"status": "ok", "us": 10.0, "bytes": 10**7, "compile_s": 1.0}

    def stop(self) -> None:
        StandIn.asked.append(("", "stop", self.device))

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started here."""
    StandIn.asked, StandIn.answer = [], None
    monkeypatch.setattr(suite, "Bench", StandIn)


def cases(*names: str) -> list[dict[str, Any]]:
    """Cases of one family."""
    return [{"name": n, "family": "f", "dtype": "f32", "rank": 0} for n in names]


def run_of(record: Record, **more: Any) -> Run:
    """A run of two peers on two devices."""
    limits = [{"what": "bandwidth", "key": "copy_curve_bytes_per_s"}]
    return Run(record, PLACES, ["eager"], {"what": "pattern"}, limits=limits, **more)


def test_peers_of_a_case_stay_on_one_device_and_ratios_use_its_bandwidth(tmp_path: Path) -> None:
    """Both devices work; the header keeps both curves; a limit is that of the case's own device."""
    record = Record(tmp_path / "r.json", {"device": "a device"}, {})
    meeting = threading.Barrier(2)
    begun: set[str] = set()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["case"] not in begun and len(begun) < 2:
            begun.add(request["case"])
            meeting.wait(10)  # the first two cases are in hand at the same time: on two devices
        return {"status": "ok", "us": 10.0, "bytes": 10**7}

    StandIn.answer = answer
    run_of(record).measure(cases("a", "b", "c", "d"))
    devices = {name: {d for n, _, d in StandIn.asked if n == name} for name in "abcd"}
    assert all(len(found) == 1 for found in devices.values()) and set().union(*devices.values()) == {"0", "1"}
    assert len(StandIn.asked) == 8
    assert record.header["num_side_by_side"] == 2
    assert {n: d["copy_bytes_per_s"] for n, d in record.header["devices"].items()} == {"0": 1e12, "1": 2e12}
    assert {e["device"]: limit_us(record, e) for e in record.cases.values()} == pytest.approx({"0": 10.0, "1": 5.0})
    assert device_text(record) == "a device x 2 side by side, copy 1.50 TB/s (1.00 to 2.00)"
    assert Record.load(record.path).cases == record.cases


def test_a_resumed_case_stays_on_its_device_or_is_measured_anew(tmp_path: Path) -> None:
    """A case that a device of this run began it ends; one that another device began is measured again for every peer."""
    record = Record(tmp_path / "r.json", {}, {
        "a": {"family": "f", "device": "1", "peers": {"eager": {"status": "ok", "us": 1.0}}},
        "b": {"family": "f", "device": "9", "peers": {"eager": {"status": "ok", "us": 1.0}}},
    })
    run_of(record).measure(cases("a", "b"))
    assert ("a", "tilefuse", "1") in StandIn.asked and not any(n == "a" and p == "eager" for n, p, _ in StandIn.asked)
    assert {p for n, p, _ in StandIn.asked if n == "b"} == {"eager", "tilefuse"} and record.cases["b"]["device"] in ("0", "1")


def test_a_spent_budget_starts_nothing_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message counts the complete cases."""
    record = Record(tmp_path / "r.json", {}, {})
    run_of(record, budget_s=1.0).measure(cases("a", "b"))
    assert StandIn.asked == [] and "budget spent: 0 of 2 cases are complete" in capsys.readouterr().err


def test_a_slow_compiler_costs_itself_only(tmp_path: Path) -> None:
    """Tilefuse is asked before it, the next case after it by a new process, and the record says what the compiler did not do in time."""
    record = Record(tmp_path / "r.json", {}, {})
    StandIn.answer = lambda request: {"status": "timeout"} if request["peer"] == "inductor" else {"status": "ok", "us": 1.0}
    Run(record, PLACES[:1], ["eager", "inductor"], {"what": "workload"}, apart=True).measure(cases("a", "b"))
    each = [("eager", "0"), ("tilefuse", "0"), ("inductor", "0"), ("stop", "0")]
    assert [a[1:] for a in StandIn.asked] == [*each, *each]
    assert {n: e["peers"]["inductor"]["status"] for n, e in record.cases.items()} == {"a": "timeout", "b": "timeout"}


def test_the_end_of_the_budget_is_no_time_out_of_the_peer(tmp_path: Path) -> None:
    """A case that the end of the run cut short is not in the record: a resumed run measures it."""
    record = Record(tmp_path / "r.json", {}, {})
    StandIn.answer = lambda request: {"status": "timeout"} if request["peer"] == "tilefuse" else {"status": "ok", "us": 1.0}
    Run(record, PLACES[:1], ["eager"], {"what": "workload"}, budget_s=100.0, timeout_s=300.0).measure(cases("a"))
    assert set(record.cases["a"]["peers"]) == {"eager"}


def test_an_interrupt_ends_every_device_and_keeps_what_was_measured(tmp_path: Path) -> None:
    """The case in hand is not recorded: it was not the case's fault."""
    record = Record(tmp_path / "r.json", {}, {})

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["case"] == "b":
            raise KeyboardInterrupt
        return {"status": "ok", "us": 1.0}

    StandIn.answer = answer
    with pytest.raises(KeyboardInterrupt):
        Run(record, PLACES[:1], ["eager"], {"what": "pattern"}).measure(cases("a", "b", "c"))
    kept = json.loads(record.path.read_text())["cases"]
    assert list(kept) == ["a"] and set(kept["a"]["peers"]) == {"eager", "tilefuse"}


def test_longest_cases_go_first_within_a_rank(tmp_path: Path) -> None:
    """Times come from earlier records; a case without one counts as its family's mean."""
    Record(tmp_path / "models-1.json", {}, {
        "a": {"peers": {"inductor": {"compile_s": 3.0}, "tilefuse": {"compile_s": 1.0}}},
        "c": {"peers": {"tilefuse": {"compile_s": 2, "took_s": 9.0}}},
        "d": {"peers": {"tilefuse": {"compile_s": 50.0}}}}).write()
    listed = [*cases("a", "b", "c"), {"name": "d", "family": "g", "rank": 1}, {"name": "e", "family": "g", "rank": 0}]
    seconds = earlier_seconds("models", tmp_path)
    assert seconds == {"a": 4.0, "c": 9.0, "d": 50.0}
    assert [c["name"] for c in longest_first(listed, seconds)] == ["e", "c", "b", "a", "d"]
    assert [c["name"] for c in longest_first(listed, {})] == ["a", "b", "c", "e", "d"]
    assert [c["name"] for c in longest_first([*cases("a", "b"), {"name": "z", "family": "f", "usual_s": 5.0}], seconds)] == ["z", "a", "b"]


def test_a_queue_keeps_begun_cases_for_their_device() -> None:
    """Others go to whoever asks."""
    queue = Queue(cases("a", "b"), {"a": "1"})
    assert [queue.take("0"), queue.take("0"), queue.take("1"), queue.take("1")] == [*reversed(cases("b")), None, *cases("a"), None]


def test_cases_of_a_record_are_put_in_order(tmp_path: Path) -> None:
    """Those that the list does not name stay in front."""
    record = Record(tmp_path / "r.json", {}, {n: {"peers": {}} for n in ("c", "x", "a", "b")})
    record.arrange(["a", "b", "c"])
    assert list(record.cases) == ["x", "a", "b", "c"]


@pytest.mark.slow
def test_two_hosts_measure_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two true processes on the host, small cases, tilefuse alone: no peer is measured where none is asked for."""
    monkeypatch.undo()
    asked = ["patterns", "--size-mib", "1", "--devices", "cpu,cpu", "--peers", "", "--only", "^(elementwise|gelu-bias)/f32"]
    assert main([*asked, "--out", str(tmp_path)]) == 0
    record = Record.load(next(tmp_path.glob("*.json")))
    assert len(record.cases) == 2 and all(set(e["peers"]) == {"tilefuse"} for e in record.cases.values())
    assert set(record.header["devices"]) == {"cpu", "cpu-2"} and "x 2 side by side" in capsys.readouterr().out


@pytest.mark.parametrize(("what", "known"), [("compiler", "growth/1000"), ("planner", "copy-f32-"), ("sizes", "generate/40")])
def test_other_suites_list_their_cases_too(what: str, known: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`--list` prints names, measures nothing and leaves no record."""
    assert main([what, "--list", "--out", str(tmp_path)]) == 0
    assert known in capsys.readouterr().out and not list(tmp_path.iterdir())


# -- several processes a device, and cases that name their peers ----------------------------------------------------------------

def test_processes_of_one_device_share_it_and_measure_its_limits_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both work, each case stays with one; the device is named once, and the record says that they take turns."""
    record = Record(tmp_path / "r.json", {"device": "a device"}, {})
    meeting = threading.Barrier(2)
    limits: list[str] = []
    begun: set[str] = set()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["case"] not in begun and len(begun) < 2:
            begun.add(request["case"])
            meeting.wait(10)  # two processes have a case in hand at the same time
        return {"status": "ok", "us": 10.0, "bytes": 10**7}

    class Counting(StandIn):
        def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
            if request["what"] == "bandwidth":
                limits.append(self.device)
            return super().ask(request, timeout_s)

    monkeypatch.setattr(suite, "Bench", Counting)
    StandIn.answer = answer
    places = with_workers(PLACES[:1], 2)
    Run(record, places, ["eager"], {"what": "pattern"}, limits=[{"what": "bandwidth", "key": "copy_curve_bytes_per_s"}]).measure(
        cases("a", "b", "c"))
    assert limits == ["0"] and set(record.header["devices"]) == {"0"} and {e["device"] for e in record.cases.values()} == {"0"}
    assert record.header["num_side_by_side"] == 1 and record.header["takes_turns"] and len(StandIn.asked) == 6


def test_a_case_is_measured_beside_its_rivals_only(tmp_path: Path) -> None:
    """Tilefuse always is; a case without a list is measured beside all; the rest of the budget's count knows it."""
    record = Record(tmp_path / "r.json", {}, {})
    listed = [{**case, "rivals": rivals} for case, rivals in zip(cases("a", "b"), (["eager", "jax"], ["inductor"]), strict=True)]
    Run(record, PLACES[:1], ["eager", "inductor", "jax"], {"what": "product"}).measure([*listed, *cases("c")])
    assert {n: list(e["peers"]) for n, e in record.cases.items()} == {
        "a": ["eager", "tilefuse", "jax"], "b": ["tilefuse", "inductor"], "c": ["eager", "tilefuse", "inductor", "jax"]}


def test_families_of_one_rank_take_turns() -> None:
    """A run that is cut short has a case of each family; cases of a higher rank come later, in the order of their families' turns."""
    listed = [{"name": name, "family": name[0], "rank": rank} for name, rank in
              (("a1", 0), ("a2", 0), ("a3", 0), ("b1", 0), ("b2", 1), ("c1", 1), ("c2", 1))]
    assert [c["name"] for c in families_in_turn(listed)] == ["a1", "b1", "a2", "a3", "b2", "c1", "c2"]


def test_a_run_with_caches_that_stay_records_no_compile_time(tmp_path: Path) -> None:
    """Its compiles are no cold ones; the folder is there for the next run."""
    record = Record.start(tmp_path, "products", {})
    run_of(record, caches=tmp_path / "caches").measure(cases("a"))
    (entry,) = record.cases.values()
    assert record.header["keeps_caches"]
    assert all("compile_s" not in peer for peer in entry["peers"].values()) and (tmp_path / "caches" / "tilefuse").is_dir()
