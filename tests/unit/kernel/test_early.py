"""Kernels that work before the kernel ahead of them has ended: what they may touch, what they compute, and faults that are found."""
from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import SHORT_CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.stitched_cases import StitchedCase, smooth, tiles
from tests.unit.templates.stitched_graphs import attention, clamped_layers, gated_state, lstm_step, normed_chain
from tests.unit.templates.test_compose import assert_within, buffer_of
from tilefuse.ir.affine import number
from tilefuse.ir.dtype import F16, F32
from tilefuse.ir.scalar import const
from tilefuse.kernel.asynchronous import AsyncCopy, AwaitEarlier, Prefetch
from tilefuse.kernel.early import before_waiting, untimely
from tilefuse.kernel.ir import Barrier, Kernel, Store
from tilefuse.kernel.visit import statements
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose


@dataclass(frozen=True)
class EarlyCase:
    """A kernel with settled inputs. early: inputs whose copies stand before the wait."""

    case: StitchedCase
    settled: frozenset[str]
    early: frozenset[str]

    def kernel(self) -> Kernel:
        """The kernel IR."""
        return compose(self.case.program(), H200, self.settled)


def early(name: str, case: StitchedCase, settled: str, copied: str) -> tuple[str, EarlyCase]:
    """A case by name; inputs in one string each."""
    return name, EarlyCase(case, frozenset(settled.split()), frozenset(copied.split()))


STEP = StitchedCase("step", lstm_step(8, 32, 8), tiles(4, 8, threads=128), 64, smooth)
CASES = dict([
    early("a step on threads", STEP, "x w u", "x w u"),
    early("a step, weights only", STEP, "w u", "w u"),
    early("a step, half of the weights", STEP, "u", "u"),
    early("a step on the matrix unit", StitchedCase("step", lstm_step(32, 32, 8), tiles(16, 8, threads=32), 64, smooth),
          "x w u", "x w u"),
    early("a step of f16", StitchedCase("step", lstm_step(32, 32, 8, F16), tiles(16, 8, threads=32), 64, smooth), "x w u", "x w u"),
    early("a step of f16 whose tiles are a loop", StitchedCase("step", lstm_step(128, 16, 16, F16), tiles(128, 16, threads=32), 64, smooth),
          "x w u", "x w u"),
    early("a state that is computed first", StitchedCase("gated", gated_state(6, 16), tiles(4, 8), 64, smooth), "w", "w"),
    early("a state of odd width", StitchedCase("step", lstm_step(4, 7, 5), tiles(2, 5), 64, smooth), "x w u", ""),
    early("attention", StitchedCase("attention", attention(2, 20, 8), tiles(1, 8, 8), 64, smooth), "k v", "k"),
    early("layers", StitchedCase("layers", clamped_layers(40, (32, 16, 16), F16), tiles(16, 16)), "w0 w1", "w0"),
    early("layers walked", StitchedCase("layers", clamped_layers(100, (16, 16, 16), F16), tiles(16, 16, groups=3)), "w0 w1", "w0 w1"),
    early("a chain", StitchedCase("chain", normed_chain(6, 24), tiles(4, 24), 2000, smooth), "w0 w1", "w0"),
])


def copied_early(kernel: Kernel) -> frozenset[str]:
    """Values that the kernel touches in global memory before it waits."""
    origin = {b.name: b.origin for b in kernel.parameters}
    return frozenset(origin[s.buffer] for s in statements(before_waiting(kernel)) if isinstance(s, (AsyncCopy, Prefetch)))


@pytest.mark.parametrize("name", CASES)
def test_settled_inputs_come_before_the_wait(name: str) -> None:
    """And nothing else does; without settled inputs the kernel waits where it begins."""
    case = CASES[name]
    kernel = case.kernel()
    assert copied_early(kernel) == case.early
    assert not any(isinstance(s, Barrier) for s in before_waiting(kernel))
    assert untimely(kernel, case.settled) == []
    plain = case.case.kernel()
    assert before_waiting(plain) == () and untimely(plain, frozenset()) == []
    assert not any(isinstance(s, AwaitEarlier) for s in plain.body)


@pytest.mark.parametrize("name", CASES)
def test_the_text_waits_once(name: str) -> None:
    """Also where the kernel is launched when the one ahead has ended: then it does not wait at all."""
    kernel = CASES[name].kernel()
    wait = "  tf_wait_for_earlier_kernel();"
    assert print_cuda(kernel, H200).count(wait) == 1
    assert wait not in print_cuda(replace(kernel, launch=replace(kernel.launch, early=False)), H200)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_kernels_that_begin_early_compute_their_graphs(tmp_path: Path, seed: int = 5) -> None:
    """No finding of the checking mode, and every result within its bound."""
    kernels = {name: case.kernel() for name, case in CASES.items()}
    library = build_together([(k, True) for k in kernels.values()], tmp_path, SHORT_CHECKED_FLAGS)
    for n, (name, kernel) in enumerate(kernels.items()):
        case = CASES[name].case
        inputs = case.inputs(np.random.default_rng(seed))
        buffers = {b.name: inputs[b.origin].ravel() for b in kernel.parameters if b.origin in inputs}
        memory, status, report = call(getattr(library, f"{kernel.name}_{n}"), kernel, buffers)
        assert status == 0, f"{name}: {report}"
        for result, (value, bound) in zip(case.graph.results, case.wanted(inputs), strict=True):
            assert_within(memory[buffer_of(kernel, result).name].reshape(value.shape), value, bound, f"{name} %{result}, seed {seed}")


def moved_wait(kernel: Kernel, by: int) -> Kernel:
    """The kernel with its wait so many statements later."""
    place = len(before_waiting(kernel))
    rest = [s for s in kernel.body if not isinstance(s, AwaitEarlier)]
    return replace(kernel, body=(*rest[:place + by], kernel.body[place], *rest[place + by:]))


def faults(case: EarlyCase) -> dict[str, tuple[Kernel, Set[str]]]:
    """Kernels that begin too early, and what is settled."""
    kernel = case.kernel()
    place = len(before_waiting(kernel))
    wait = kernel.body[place]
    (first, *_) = (s for s in statements(before_waiting(kernel)) if isinstance(s, AsyncCopy))
    out = next(b for b in kernel.parameters if b.role == "out")
    ahead = Store(out.name, number(0), const(0, F32))
    by_word = tuple(replace(s, num_elements=1) if s is first else s for s in (first,))
    return {
        "waits at the end": (moved_wait(kernel, len(kernel.body) - place - 1), case.settled),
        "waits twice": (replace(kernel, body=(*kernel.body, wait)), case.settled),
        "copies what is written": (kernel, case.settled - {next(b.origin for b in kernel.parameters if b.name == first.buffer)}),
        "stores before": (replace(kernel, body=(ahead, *kernel.body)), case.settled),
        "copies through the first-level cache": (replace(kernel, body=(*by_word, *kernel.body)), case.settled),
    }


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.early])
def test_too_early_accesses_are_found(name: str) -> None:
    """Each planted fault, and none in the kernel as it is."""
    silent = [fault for fault, (kernel, settled) in faults(CASES[name]).items() if not untimely(kernel, settled)]
    assert silent == []
