"""Pipelined walks whose powers are dropped at random: bits that lanes draw for each other, masks beside them, prices."""
from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, compiler
from tests.unit.templates.staged.walked.dropped_cases import DROPPED
from tests.unit.templates.staged.walked.variants import Variant
from tests.unit.templates.staged.walked.walk_cases import Case
from tests.unit.templates.staged.walked.walk_runs import assert_agrees_with_f64
from tilefuse.base.options import Options
from tilefuse.domain.roofline import price_candidate
from tilefuse.plan.planner import plan_graph
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.compose import compose_walk
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.template import pipelined_walk_of


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The checked kernels of all cases, compiled together."""
    kernels = [(compose_walk(case.program(), H200), True) for case in DROPPED.values()]
    return build_together(kernels, tmp_path_factory.mktemp("dropped"), CHECKED_FLAGS)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", DROPPED)
def test_the_mask_is_that_of_the_definition(name: str, library: ctypes.CDLL) -> None:
    """Every element of every result against f64, whose random numbers are the same: one other bit would show."""
    assert_agrees_with_f64(DROPPED[name], lambda kernel: getattr(library, f"{kernel}_{list(DROPPED).index(name)}"))


def test_lanes_draw_for_each_other() -> None:
    """Four numbers of a row are one call's; rows that begin within four numbers are drawn number by number."""
    draws = {name: len(pipelined_walk_of(case.program()).draws) for name, case in DROPPED.items()}
    assert [name for name, n in draws.items() if n != 1] == ["rows that begin within four numbers"]


def test_masks_bound_walks_beside_a_dropout() -> None:
    """A causal mask leaves as many turns as it does without one."""
    of = Variant(("causal",), rows=256, keys=256)
    plans = [pipelined_walk_of(Case(v.graph, PipelinedWalk(32, 1, 2, 2, 1, 3), 0.0).program()) for v in (of, replace(of, drop=0.1))]
    assert plans[0].all_turns == plans[1].all_turns < 2 * 4 * 8


def test_the_price_counts_what_lanes_share() -> None:
    """Plans take the walk; drawing every number apart would cost more."""
    of = Variant(drop=0.1, batch=4, heads=16, rows=1024, keys=1024, inner=64, width=64)
    (kernel,) = plan_graph(of.graph(), {}, H200, Options()).kernels
    assert isinstance(kernel.program.choice, PipelinedWalk)
    tiles = PipelinedWalk(128, 2, 2, 3, 1, 132)
    us = [price_candidate(pipelined_walk_of(Case(v.graph, tiles, 0.0).program()).work, H200).us
          for v in (replace(of, drop=0.0), of, replace(of, keys=1022))]
    assert us[0] < us[1] < us[2]
