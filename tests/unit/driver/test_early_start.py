"""Kernels that stand ready before the one ahead of them has ended: where the text waits, where it is left out, how they are launched."""
from __future__ import annotations

import pytest
import torch

import tilefuse
from tilefuse.runtime.cuda_api import LaunchAttribute, launch_config
from tilefuse.target.launch import Launch


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2.0


@pytest.mark.parametrize(("target", "waits"), [("h200", True), ("a100", False)])
def test_a_kernel_waits_itself_where_the_device_can(target: str, waits: bool) -> None:
    program = tilefuse.compile(scaled, [torch.zeros(64, 64)], target=target)
    (kernel,) = program.spec.kernels
    assert kernel.launch.early is waits
    assert ("tf_wait_for_earlier_kernel();" in kernel.source) is waits


@pytest.mark.parametrize(("rows", "early"), [(64, True), (16384, False)])
def test_only_kernels_that_move_little_start_early(rows: int, early: bool) -> None:
    """What a launch costs is the same for all; what waiting costs grows with the blocks."""
    (kernel,) = tilefuse.compile(scaled, [torch.zeros(rows, 1024)], target="h200").spec.kernels
    assert kernel.launch.early is early and ("tf_wait_for_earlier_kernel();" in kernel.source) is early


@pytest.mark.parametrize(("launch", "attributes"), [
    (Launch(8, 128), []), (Launch(8, 128, 4), [(4, 4)]), (Launch(8, 128, 1, 0, True), [(6, 1)]),
    (Launch(8, 128, 4, 0, True), [(4, 4), (6, 1)])])
def test_launch_attributes_are_those_of_the_launch(launch: Launch, attributes: list[tuple[int, int]]) -> None:
    """Attribute numbers of the driver: 4 cluster dimension, 6 programmatic stream serialization."""
    config, kept = launch_config(launch, 0)
    found = (LaunchAttribute * config.num_attributes).from_address(config.attributes) if config.num_attributes else []
    assert [(a.id, a.value[0]) for a in found] == attributes
    assert (kept is None) is (not attributes)
