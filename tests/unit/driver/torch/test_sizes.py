"""When a size of a graph over named sizes is compiled, and where, with a compiler that a test steers."""
from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from tilefuse.driver.torch.sizes import Policy, SizedPart
from tilefuse.driver.torch.symbols import with_sizes


class SteeredCompiler:
    """Notes what it is asked for; compiles in the background end when a test says so."""

    def __init__(self, room: bool = True, takes: bool = True) -> None:
        self.room, self.takes = room, takes
        self.made: list[str] = []
        self.asked: dict[str, SteeredPending] = {}

    def now(self, gm: fx.GraphModule, sizes: str) -> Any:
        self.made.append(sizes)
        return lambda arguments: (arguments[-1] * 2, f"compiled for {sizes}")

    def has_room(self) -> bool:
        return self.room

    def later(self, gm: fx.GraphModule, sizes: str) -> SteeredPending | None:
        if self.takes:
            self.asked[sizes] = SteeredPending(self, gm, sizes)
            return self.asked[sizes]
        return None


class SteeredPending:
    def __init__(self, compiler: SteeredCompiler, gm: fx.GraphModule, sizes: str) -> None:
        self.compiler, self.gm, self.sizes, self.ready = compiler, gm, sizes, False

    def is_ready(self) -> bool:
        return self.ready

    def finish(self) -> Any:
        return self.compiler.now(self.gm, self.sizes)


def part(compiler: SteeredCompiler, at_once: int = 0, at_call: int = 2, most: int = 64) -> SizedPart:
    gm = make_fx(lambda x: x * 2, tracing_mode="symbolic")(torch.ones(5))
    return SizedPart(gm, "inference", "g", Policy(at_once, at_call, most, in_background=True), compiler,
                     lambda arguments: (arguments[-1] * 2, "torch"))


def how(sized: SizedPart, n: int) -> str:
    """The program that ran a call with n elements; its result is right."""
    made: Sequence[Any] = sized([torch.ones(n)])
    assert torch.equal(made[0], torch.full((n,), 2.0))
    return str(made[1]).rpartition("=")[2]


def test_torch_runs_a_size_until_its_program_is_ready() -> None:
    compiler = SteeredCompiler()
    sized = part(compiler)
    assert [how(sized, 7) for _ in range(3)] == ["torch"] * 3 and len(compiler.asked) == 1 and not compiler.made
    assert "s" in sized.notes()[-1] and "(3 calls, being compiled in the background)" in sized.notes()[-1]
    pending, = compiler.asked.values()
    pending.ready = True
    assert "compiled, and loaded at the next call" in sized.notes()[-1]
    assert [how(sized, n) for n in (7, 8, 7)] == ["7", "torch", "7"] and len(compiler.made) == 1
    assert sized.num_in_torch == 4


def test_the_first_size_waits_and_one_that_comes_once_is_never_asked_for() -> None:
    compiler = SteeredCompiler()
    sized = part(compiler, at_once=1)
    assert [how(sized, n) for n in (5, 6, 7, 8, 5)] == ["5", "torch", "torch", "torch", "5"]
    assert len(compiler.made) == 1 and not compiler.asked


def test_no_request_is_made_while_others_wait() -> None:
    """A request costs its call time, so a size that comes back meanwhile runs in torch and is asked for later."""
    compiler = SteeredCompiler(room=False)
    sized = part(compiler)
    assert [how(sized, 7) for _ in range(3)] == ["torch"] * 3 and not compiler.asked
    assert "its compile waits for others" in sized.notes()[-1]
    compiler.room = True
    assert how(sized, 7) == "torch" and len(compiler.asked) == 1


def test_what_cannot_be_compiled_elsewhere_is_compiled_here() -> None:
    compiler = SteeredCompiler(takes=False)
    sized = part(compiler)
    assert [how(sized, 7) for _ in range(3)] == ["torch", "7", "7"] and len(compiler.made) == 1


def test_waiting_programs_are_bounded_and_the_oldest_goes() -> None:
    compiler = SteeredCompiler()
    sized = part(compiler, most=2)
    for n in (5, 6, 7):
        how(sized, n), how(sized, n)
    for pending in compiler.asked.values():
        pending.ready = True
    assert [how(sized, n) for n in (7, 6, 5)] == ["7", "6", "torch"]


def test_threads_load_a_program_once() -> None:
    compiler = SteeredCompiler()
    sized = part(compiler)
    how(sized, 7), how(sized, 7)
    next(iter(compiler.asked.values())).ready = True
    ran: list[str] = []
    threads = [threading.Thread(target=lambda: ran.extend(how(sized, 7) for _ in range(50))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ran) == 200 and set(ran) <= {"7", "torch"} and ran[-1] == "7" and len(compiler.made) == 1


def test_stand_ins_are_those_that_torch_would_make() -> None:
    """Types of nodes with numbers for symbols: shape, strides, type, device and mode as by torch's own call, memory of their own."""
    gm = make_fx(lambda x: ((x * 2).t(), x.half().expand(3, *x.shape), x.sum(0) > 0), tracing_mode="symbolic")(torch.ones(5, 4))
    traced = [n.meta["val"] for n in gm.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    numbers = {s: sympy.Integer(n) for s, n in zip(dict.fromkeys(d.node.expr for d in traced[0].shape), (7, 6))}
    made = [n.meta["val"] for n in with_sizes(gm, numbers).graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    assert len(made) == len(traced) and tuple(made[0].shape) == (7, 6)
    for new, old in zip(made, traced, strict=True):
        wanted = old.new_empty_strided(tuple(new.shape), new.stride())
        assert type(new) is type(wanted) and new.fake_mode is wanted.fake_mode and (new.dtype, new.device) == (wanted.dtype, wanted.device)
        assert all(type(n) is int for n in (*new.shape, *new.stride())) and not new.requires_grad
    assert len({new.untyped_storage()._cdata for new in made}) == len(made)
