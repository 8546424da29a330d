"""Trace: the ladder decides what is shown; events are chrome-trace JSON; dumps never share a folder."""
from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tilefuse.base.errors import OptionError
from tilefuse.base.options import Options
from tilefuse.base.trace import ARTIFACTS, Trace, current, enclosing, shown_artifacts, tracing


def test_each_rung_shows_all_below_it() -> None:
    for rung in range(7):
        assert shown_artifacts(rung, "") == {a for a, r in ARTIFACTS.items() if r <= rung}


def test_logs_add_and_remove() -> None:
    assert shown_artifacts(1, "+plan,-device") == {"fallbacks", "plan"}
    with pytest.raises(OptionError, match="did you mean plan"):
        shown_artifacts(0, "plann")


def test_lines_go_to_the_stream_only_where_shown() -> None:
    stream = io.StringIO()
    trace = Trace(Options(logs="plan"), stream)
    trace.line("plan", "two kernels")
    trace.line("source", "hidden")
    assert stream.getvalue() == "[tilefuse plan] two kernels\n"


def test_spans_nest_and_are_written_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "trace.json"
    with tracing(Trace(Options(trace=str(target)))) as trace:
        with trace.span("outer") as facts, trace.span("inner"):
            facts["kernels"] = 3
        current().event("miss", "cache", kernel="k0")
    events = json.loads(target.read_text())["traceEvents"]
    assert [e["name"] for e in events] == ["inner", "outer", "miss"]
    assert events[1]["args"] == {"kernels": 3} and events[1]["dur"] >= events[0]["dur"]
    assert set(trace.seconds_by_name()) == {"inner", "outer"}
    assert [p.name for p in target.parent.iterdir()] == ["trace.json"]


def test_outside_of_tracing_nothing_is_kept() -> None:
    assert enclosing() is None
    current().event("lost")
    assert current().events == []


def test_every_compile_dumps_into_a_folder_of_its_own(tmp_path: Path) -> None:
    options = Options(dump_dir=str(tmp_path))
    first, second = Trace(options), Trace(options)
    assert first.begin_dump("g") != second.begin_dump("g")
    written = first.dump("kernels/k0.cu", "text")
    assert written is not None and written.read_text() == "text"
    assert Trace().dump("plan.txt", "text") is None


def test_places_that_cannot_be_written_are_named_with_their_option(tmp_path: Path) -> None:
    """And what the trace had begun to write is gone."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="dump_dir=.*file"):
        Trace(Options(dump_dir=str(tmp_path / "file"))).begin_dump("g")
    with pytest.raises(OptionError, match="trace=.*trace.json"):
        Trace().write(tmp_path / "file" / "trace.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OptionError, match="trace=.*folder"):
        Trace().write(tmp_path / "folder")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
