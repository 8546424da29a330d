"""Cases of attention by name, and the tiles of theirs that are timed."""
from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.attention.cases import attention_of
from benchmarks.attention.decode import main
from benchmarks.attention.gradients import error_of as gradient_error
from benchmarks.attention.gradients import kernels_text, names_of_cases, planned, read
from benchmarks.attention.gradients import main as gradients_main
from benchmarks.attention.listing import CASES
from benchmarks.attention.timed import BOUND, compact, error_of, near_tiles
from benchmarks.profile import arguments_of
from tests.unit.templates.host_build import compiler
from tilefuse.driver import torch_backend
from tilefuse.runtime.calls.step_times import StepTime
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.record import PipelinedWalk

SMALL = ("f16/plain/1x2x70k90x16", "bf16/causal/2x4g2x70x16", "f16/window20/1x2x90x16", "f16/prefix20/1x2x70x16", "f16/alibi/1x2x70x16",
         "f16/cap5/1x2x70x16", "f16/bias/2x2x70x16", "f16/headbias/2x2x70x16", "f16/mask/2x2x70x16", "f16/padding/2x2x70x16",
         "f16/lengths/3x2x70x16", "f16/logs/1x2x70x16")


@pytest.mark.parametrize("name", SMALL)
def test_rows_in_double_precision_are_those_of_the_definition(name: str) -> None:
    """Every kind, on the host."""
    case = attention_of(name)
    inputs = case.inputs("cpu")
    y = case.definition()(*inputs)
    assert error_of(case, inputs, y[0] if isinstance(y, tuple) else y) <= BOUND[case.dtype]
    wrong = (y[0] if isinstance(y, tuple) else y).clone()
    wrong[-1, -1, -1, -1] += 1.0
    assert error_of(case, inputs, wrong) > BOUND[case.dtype]


@pytest.mark.parametrize("name", ["f16/plain/4x16x4096", "f32/plain/1x1x8x8", "f16/plain/1x1x8x8/more"])
def test_other_names_are_none(name: str) -> None:
    """A name of another form is an error."""
    with pytest.raises(ValueError, match="names no attention"):
        attention_of(name)


def test_walks_of_few_rows_are_listed_beside_whole_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each number of parts and heads, the whole walk among them, and a star at the one that a plan takes."""
    main(["--list", "--device", "h200", "--keys", "2048", "--batches", "1", "--key-heads", "8", "--widths", "64"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "== f16/plain/1x32g8x1k2048x64: 0.99 us of bytes"
    assert [line for line in lines if "*" in line] == lines[:1] and "heads=4" in lines[0] and "parts" in lines[0]
    assert "parts" not in lines[-1] and "heads" not in lines[-1]


def test_walks_in_other_columns_are_listed_too(capsys: pytest.CaptureFixture[str]) -> None:
    """As many heads and parts as the walk that a plan takes, columns far apart."""
    words = ["--list", "--device", "h200", "--keys", "8192", "--batches", "1", "--key-heads", "8", "--widths", "64", "--tiles", "1"]
    main(words)
    few = capsys.readouterr().out.splitlines()
    main([*words, "--columns", "2"])
    more = [line for line in capsys.readouterr().out.splitlines() if line not in few]
    settings = [dict(word.split("=") for word in line.split() if "=" in word) for line in (few[1], *more)]
    assert len(more) == 2 and len({(s["heads"], s["parts"]) for s in settings}) == 1
    columns = sorted(int(s["columns"]) for s in settings)
    assert all(b - a >= 32 for a, b in zip(columns, columns[1:], strict=False))


def test_near_tiles_are_different_and_the_cheapest_is_first() -> None:
    """At most as many as asked for; names of the list are cases."""
    tiles = near_tiles(attention_of("bf16/causal/4x12x1536x80"), H200, 5)
    assert len({t.choice for t in tiles}) == len(tiles) == 5 and min(t.us for t in tiles) == tiles[0].us
    assert all(isinstance(attention_of(n).rows, int) for n in CASES) and len(set(CASES)) == len(CASES)
    shortest = PipelinedWalk(64, 1, 1, 2, 1, 3)
    assert compact(shortest) == {"columns": 64, "warpgroups": 1, "left_slots": 1, "slots": 2, "band": 1, "blocks": 3}


@pytest.mark.parametrize("name", ["f16/plain/2x2x70k90x16", "bf16/causal/2x4g2x70x16"])
def test_gradients_in_double_precision_are_those_of_the_definition(name: str) -> None:
    """Those of eager torch are right, and others are not; heads that share keys have one gradient, or one each."""
    case = attention_of(name)
    q, k, v = (x.requires_grad_() for x in case.inputs("cpu")[:3])
    group = case.heads // case.key_heads
    g = torch.randn_like(q)
    repeated = [x.repeat_interleave(group, 1) for x in (k, v)]
    y = torch.nn.functional.scaled_dot_product_attention(q, *repeated, is_causal=case.kind == "causal")
    gradients, each = (torch.autograd.grad(y, (q, *of), g, retain_graph=True) for of in ((k, v), repeated))
    inputs = [x.detach() for x in (g, q, k, v)]
    assert gradient_error(case, inputs, gradients) <= 2 * BOUND[case.dtype] >= gradient_error(case, inputs, each)
    assert gradient_error(case, inputs, [gradients[0], gradients[1] + 1, gradients[2]]) > 0.1


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_programs_of_a_call_are_those_that_run() -> None:
    """Torch runs the first calls of a function's second variant: there is no program of theirs, and after a reset there is one again."""
    torch_backend.reset()

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2.0

    compiled = torch.compile(double, backend=torch_backend.backend, dynamic=False)
    found = []
    for size, begins_anew in ((64, True), (96, False), (96, True)):
        if begins_anew:
            torch_backend.reset()
        call = partial(compiled, torch.ones(size))
        call()
        found.append([x.shape for _, tensors in arguments_of(torch_backend.compiled_parts(), call) for x in tensors])
    torch_backend.reset()
    assert found == [[(64,)], [], [(96,)]]


def test_plans_are_saved_for_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Written here, read there: the same program."""
    gradients_main(["--plan", str(tmp_path), "--device", "h200", "f16/plain/2x2x200x64"])
    assert "walked_back" in capsys.readouterr().out
    of, again = planned("f16/plain/2x2x200x64", H200), read("f16/plain/2x2x200x64", tmp_path)
    assert (again.name, again.device, again.kernels, again.spec) == (of.name, "h200", of.kernels, of.spec)


def test_kernels_of_a_program_beside_their_predicted_times() -> None:
    """By their place, as long as both are as many."""
    steps = [StepTime("k_a", "kernel", 3.0, 0, 0.0), StepTime("k_b", "kernel", 5.0, 0, 0.0)]
    lines = kernels_text([("rows", "", 1.5), ("walked_back", "columns=64", 4.0)], steps)
    assert [line.split() for line in lines] == [["3.0", "us", "predicted", "1.5", "rows"],
                                                ["5.0", "us", "predicted", "4.0", "walked_back", "columns=64"]]
    assert kernels_text([], steps[:1]) == ["      3.0 us  k_a"]


def test_gradients_are_predicted_without_a_device() -> None:
    """Row sums and two walks for each case; names are cases, each once."""
    names = names_of_cases()
    assert len(set(names)) == len(names) > 40 and all(attention_of(n).rows for n in names)
    of = planned("bf16/causal/4x16x4096x64", H200)
    templates = [template for template, _, us in of.kernels if us > 0]
    assert of.us == sum(k[2] for k in of.kernels) and [len(k.parameters) > 2 for k in of.spec.kernels] == [True] * 3
    assert templates.count("walked_back") == 2 and len(templates) == 3
