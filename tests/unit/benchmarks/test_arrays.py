"""The suite of symbolic arrays, in its smallest form on the host: both versions of a network are one, and every case gives a record."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import tilefuse.array as ta
from benchmarks import tables
from benchmarks.array_networks import NETWORKS, load_into
from benchmarks.arrays import COMPILE_CASE, listed, measure_array_case
from benchmarks.peers import NotApplicable
from benchmarks.record import Record
from benchmarks.report import rows, verdict

HOST = torch.device("cpu")


def measured(name: str, peer: str) -> dict[str, object]:
    """The record of a tiny version."""
    return measure_array_case(name, peer, HOST, inductor_mode="default", tiny=True)


@pytest.mark.parametrize("network", NETWORKS)
def test_both_versions_of_a_network_compute_the_same(network: str) -> None:
    ours, theirs = NETWORKS[network].arrays(True), NETWORKS[network].torch(True)
    load_into(theirs, ours.state_dict())
    assert set(ours.parameters()) == {name for name, _ in theirs.named_parameters()}
    x = torch.randn((2, *NETWORKS[network].image(True)), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = theirs.train()(x).numpy()
    found = ours(ta.asarray(x)).numpy()
    # Up to twenty layers of f32 sums over a few hundred terms each, normalised in between.
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["eager", "unfused", "tilefuse"])
def test_a_training_step_has_the_losses_of_the_reference(peer: str) -> None:
    found = measured("lenet/training/f32/64", peer)
    assert found["status"] == "ok", found.get("reason")
    assert found["us"] and len(found["losses"]) == 3  # type: ignore[arg-type]


def test_an_optimiser_and_activations_are_checked_against_torch() -> None:
    for name in ("adam/f32/96", "activation/registered/f32/1", "activation/arrays/f32/1"):
        found = measured(name, "tilefuse")
        assert found["status"] == "ok" and found["bytes"], (name, found.get("reason"))
    with pytest.raises(NotApplicable):
        measured("adam/f32/96", "unfused")


@pytest.mark.slow
def test_a_new_process_finds_what_another_compiled() -> None:
    found = measured(COMPILE_CASE, "tilefuse")
    cold, cached = found["cold"], found["cached"]
    assert cold["num_nodes"] == cached["num_nodes"] > 300  # type: ignore[index,operator]
    assert cached["total_s"] < cold["total_s"] / 2  # type: ignore[index,operator]


def test_a_record_tells_what_fusing_gives(tmp_path: Path) -> None:
    record = Record(tmp_path / "arrays-1.json", {"suite": "arrays", "device": "NVIDIA H200", "cuda": "13.0"}, {})
    case = next(c for c in listed() if c["name"] == "lenet/training/f32/64")
    for peer, us in (("eager", 300.0), ("inductor", 200.0), ("unfused", 260.0), ("tilefuse", 200.0)):
        record.add(case["name"], case, peer, {"status": "ok", "us": us, "peak_bytes": 1 << 20})
    row = rows(record, ["eager", "inductor", "unfused"])[0]
    assert row["vs unfused"] == 1.3 and row["vs best"] == 1.0 and row["asked fusion"] == 1.4
    assert "slower on 0" in verdict(record)
    line = "| lenet/training/f32/64 | 0.300 | 0.200 | 0.260 | 0.200 | - | 1.50 | 1.00 | 1.30 | 1.0 | 1.0 | 1.0 |"
    assert line in tables.arrays_table(record)
