"""Compiles in a process beside this one: what it makes is found here, and what goes wrong there is a reason, never an error here."""
from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.plan.graphs import SOFTMAX, softmax
from tilefuse.base import trace
from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph
from tilefuse.driver.reuse import known_programs
from tilefuse.driver.reuse.background import BackgroundProcess, Request, facts_of, request_of
from tilefuse.driver.reuse.background_process import served
from tilefuse.driver.reuse.known_programs import program_digest
from tilefuse.driver.reuse.known_seeds import Found, look_up
from tilefuse.frontends.imported import Imported
from tilefuse.ir.text import parse_graph
from tilefuse.target.catalog import host_device

# Says, as the process does, that it can serve.
SERVES = "import sys; from tilefuse.driver.reuse.background import send; send(sys.stdout.buffer, '')"
WITH_CONSTANTS = parse_graph("""graph @g(%x: f32[4], const %a: f32[4], const %b: f32[4]) -> (f32[4]) {
  %y: f32[4] = map [i] { add(mul(%x[i], %a[i]), %b[i]) }
  return %y
}""")


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Options with an empty cache folder, and known programs switched on."""
    monkeypatch.setattr(known_programs, "enabled", True)
    return Options(cache_dir=str(tmp_path))


def requested(imported: Imported, options: Options) -> Request:
    found = request_of(imported, host_device(), options, ())
    assert found is not None
    return found


def requested_digest(request: Request) -> str:
    return program_digest(request.imported.graph, **facts_of(request))


def test_a_program_made_there_is_found_here(options: Options) -> None:
    """Both processes decide the same digest; numpy constants travel, data of the framework stays."""
    process = BackgroundProcess()
    data: dict[str, object] = {"a": np.arange(4, dtype=np.float32), "b": torch.ones(4)}
    tickets = [process.ask(requested(Imported(graph, constants), options))
               for graph, constants in ((softmax(), {}), (WITH_CONSTANTS, data))]
    assert process.settle(60) and [t.reason for t in tickets] == ["", ""] and all(t.done.is_set() for t in tickets)
    with trace.tracing(trace.Trace(options)) as told:
        program = compile_graph(WITH_CONSTANTS, constants=data, device=host_device(), options=options)
    assert "plan" not in told.seconds_by_name() and "compile kernels" not in told.seconds_by_name()
    assert torch.equal(program(torch.full((4,), 2.0))[0], torch.tensor([1.0, 3.0, 5.0, 7.0]))
    process.close()


def test_a_process_that_ends_is_a_reason_and_starts_again(options: Options) -> None:
    process = BackgroundProcess((sys.executable, "-c", "import sys; sys.exit('no compiler today')"))
    for _ in range(2):
        ticket = process.ask(requested(Imported(softmax()), options))
        assert process.settle(60) and "ended (status 1, no compiler today)" in ticket.reason
    process.close()
    missing = BackgroundProcess(("/no/such/python",))
    ticket = missing.ask(requested(Imported(softmax()), options))
    assert missing.settle(60) and "does not start" in ticket.reason


def test_what_nobody_waits_for_is_not_begun(options: Options) -> None:
    process = BackgroundProcess((sys.executable, "-c", f"{SERVES}; import time; time.sleep(60)"))
    first = process.ask(requested(Imported(softmax()), options))
    second = process.ask(requested(Imported(softmax()), options))
    assert not process.has_room() and not process.settle(0.05)
    _wait(lambda: not process._is_starting)
    assert not process.has_room() and not process.settle(0.05)
    del second
    _wait(process.has_room)
    assert not first.done.is_set()
    process.close()
    assert process.settle(30), "a process that is closed has nothing under way"


def test_no_request_is_made_before_the_process_can_serve() -> None:
    """Nor are sizes compiled for calls that came meanwhile; one that never can serve is a reason for the next request."""
    process = BackgroundProcess((sys.executable, "-c", f"import time; time.sleep(0.5); {SERVES}; time.sleep(60)"))
    assert process.has_room(), "asking starts it"
    process.start()
    assert not process.has_room() and not process.settle(0.05)
    assert process.settle(60) and process.has_room()
    process.close()
    ended = BackgroundProcess((sys.executable, "-c", "pass"))
    ended.start()
    assert ended.settle(60) and ended.has_room()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_requests_are_made_only_for_what_another_process_would_make(options: Options) -> None:
    made = Imported(softmax())
    assert request_of(made, host_device(), replace(options, cache=False), ()) is None
    assert request_of(made, host_device(), replace(options, measure=True), ()) is None
    assert request_of(made, host_device(), replace(options, plan_cache=False), ()) is None


def test_the_seed_of_a_request_is_what_the_process_plans_from(options: Options) -> None:
    """The program that it makes is found here without planning, and starts from the plan that this process found when it asked."""
    other = parse_graph(SOFTMAX.replace("4", "6"))
    compile_graph(softmax(), constants={}, device=host_device(), options=options)
    wanted = requested(Imported(other), options)
    assert wanted.found.seed is not None and wanted.found.program is None
    assert served(wanted) == ""
    again = look_up(other, facts_of(wanted))
    assert again.seed == wanted.found.seed and again.program is not None
    with trace.tracing(trace.Trace(options)) as told:
        program = compile_graph(other, constants={}, device=host_device(), options=options)
    assert "plan" not in told.seconds_by_name() and "earlier one" in program.explain()


def test_another_program_and_errors_are_refused(options: Options) -> None:
    """A digest that differs means another compiler or other settings; an error of the compiler is told in one line."""
    wanted = requested(Imported(softmax()), options)
    assert "would compile another program" in served(replace(wanted, found=Found("0")))
    refused = replace(wanted, options=replace(options, passes="no-such-pass"))
    refused = replace(refused, found=Found(requested_digest(refused)))
    assert served(refused).startswith("OptionError in the background: ")
    assert served(wanted) == "" and served(wanted) == ""


LEAVES = """
import sys, tilefuse.driver.reuse.known_programs
from tests.unit.plan.graphs import SOFTMAX, softmax
from tilefuse.base.options import Options
from tilefuse.driver.reuse.background import background, request_of
from tilefuse.frontends.imported import Imported
from tilefuse.target.catalog import host_device
ticket = background().ask(request_of(Imported(softmax()), host_device(), Options(cache_dir=sys.argv[1]), ()))
while background()._process is None:
    pass
print(background()._process.pid, flush=True)
if sys.argv[2] == "killed":
    import os
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("end", ["ends", "killed"])
def test_it_ends_with_its_parent(end: str, tmp_path: Path) -> None:
    """However that ends, and in the middle of a compile."""
    done = subprocess.run([sys.executable, "-c", LEAVES, str(tmp_path), end], capture_output=True, text=True, timeout=60)
    assert done.returncode == (0 if end == "ends" else -9) and not done.stderr
    deadline = time.monotonic() + 30
    while _runs(int(done.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{number}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
