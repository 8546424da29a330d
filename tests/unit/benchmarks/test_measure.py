"""The measuring process: inputs and reference are made once for all peers of a case."""
from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import tilefuse
from benchmarks import measure, peers
from benchmarks.case import Case, reference_of
from benchmarks.measure import Given, Server, measure_pattern

CPU = torch.device("cpu")


def small(function: object = torch.tanh) -> Case:
    """A case of one small input."""
    return Case("c/f32/8", "c", "f32", function, lambda device, generator: [torch.randn(8, device=device, generator=generator)])  # type: ignore[arg-type]


def test_peers_of_a_case_share_inputs_and_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The double precision is computed once, inputs are those that a fresh process would draw."""
    calls: list[str] = []

    def counted(case: Case, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        calls.append(case.name)
        return reference_of(case, inputs)

    monkeypatch.setattr(measure, "reference_of", counted)
    monkeypatch.setattr(measure.patterns, "cases", lambda size_mib: [small(), Case("d", "c", "f32", torch.exp, small().inputs)])
    server = Server(CPU)
    request = {"what": "pattern", "case": "c/f32/8", "peer": "eager", "size_mib": 1, "tiny": False, "inductor_mode": "default"}
    first, again = server.answer(request), server.answer({**request, "peer": "tilefuse"})
    assert first["status"] == again["status"] == "ok" and calls == ["c/f32/8"]
    kept = server.given
    assert server.answer({**request, "case": "d"})["status"] == "ok" and calls == ["c/f32/8", "d"]
    assert kept is not None and all(torch.equal(*pair) for pair in zip(kept.sets(2)[1], Given(small(), CPU).sets(2)[1]))


def test_a_peer_that_overwrites_its_inputs_is_wrong() -> None:
    """The reference is that of the inputs as they were given."""
    given = Given(Case("c", "c", "f32", lambda x: x * 2, small().inputs, eager=lambda x: x.mul_(2)), CPU)
    found = measure_pattern(given, "eager", inductor_mode="default")
    assert found["status"] == "wrong" and found["error"] > 0.5


def test_a_failed_peer_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next peer gets inputs that no failed one has touched."""
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("broken")

    monkeypatch.setattr(measure.patterns, "cases", lambda size_mib: [Case("c", "c", "f32", torch.tanh, small().inputs, eager=broken)])
    server = Server(CPU)
    asked = {"what": "pattern", "case": "c", "peer": "eager", "size_mib": 1, "tiny": False, "inductor_mode": "default"}
    assert server.answer(asked)["status"] == "failed" and server.given is None
    assert server.answer({**asked, "peer": "tilefuse"})["status"] == "ok"


def test_compilers_load_before_their_first_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a process and peer; what it compiles does not count as a part of the case."""
    from tilefuse.driver import torch_backend

    peers.warm.cache_clear()
    made: list[tuple[str, ...]] = []
    compiled = tilefuse.compile
    monkeypatch.setattr(tilefuse, "compile", lambda *given: made.append(tuple(map(str, given[1]))) or compiled(*given))
    for _ in range(2):
        assert measure_pattern(Given(small(), CPU), "tilefuse", inductor_mode="default")["status"] == "ok"
    assert len(made) == 3 and torch_backend.compiled_parts() == []


def test_a_wrong_peer_does_not_spoil_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes that it may have made to the inputs are not charged to others."""
    monkeypatch.setattr(measure.patterns, "cases", lambda size_mib: [Case("c", "c", "f32", lambda x: x * 2, small().inputs,
                                                                         eager=lambda x: x.mul_(2))])
    server = Server(CPU)
    asked = {"what": "pattern", "case": "c", "peer": "eager", "size_mib": 1, "tiny": False, "inductor_mode": "default"}
    assert [server.answer({**asked, "peer": peer})["status"] for peer in ("eager", "tilefuse")] == ["wrong", "ok"]
