"""Forms of weights that are kept between calls: which steps are taken apart, and when they run again."""
from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.unit.runtime.handmade import host_kernel, value
from tilefuse.runtime.kept_weights import KeptWeights, split_weights
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep, ProgramSpec
from tilefuse.runtime.stores.cache import KernelCache

COUNT = 32


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> KernelCache:
    return KernelCache(tmp_path_factory.mktemp("kernels"))


def spec(*more: KernelStep | LibraryStep | CopyStep) -> ProgramSpec:
    """p = 2 w; q = p + c; y = x + q[window], with a constant c; and further steps."""
    values = (value("x", "input", (COUNT,)), value("w", "input", (COUNT,)), value("c", "constant", (COUNT,)),
              value("p", "intermediate", (COUNT,)), value("q", "intermediate", (COUNT,)), value("v", "view", (COUNT,), base="q"),
              value("y", "result", (COUNT,)))
    twice, add = host_kernel("twice", "tf_twice(a[i])", COUNT), host_kernel("add", "a[i] + b[i]", COUNT, 2)
    steps = (KernelStep(0, ("w", "p")), KernelStep(1, ("p", "c", "q")), KernelStep(1, ("x", "v", "y")), *more)
    return ProgramSpec("conv", "host", ("x", "w"), ("y",), values, (twice, add), steps)


def kept(program: Program) -> KeptWeights:
    split = split_weights(program.spec, ("w",))
    assert split is not None
    return KeptWeights(program, split, lambda rest: rest.call_boxed)


def test_steps_that_read_weights_alone_are_apart() -> None:
    split = split_weights(spec(), ("w",))
    assert split is not None and split.read == ("w",) and split.kept == ("q",)
    assert split.weights.inputs == ("w",) and split.weights.results == ("q",) and len(split.weights.steps) == 2
    assert split.rest.inputs == ("x", "w", "q") and split.rest.results == ("y",) and split.rest.steps == (KernelStep(0, ("x", "v", "y")),)
    assert [k.name for k in split.rest.kernels] == ["add"] and "p" not in {v.name for v in split.rest.values}


def test_weights_are_prepared_when_they_change(cache: KernelCache) -> None:
    program = Program(spec(), {"c": torch.ones(COUNT)}, cache=cache)
    run, x, w = kept(program), torch.arange(float(COUNT)), torch.full((COUNT,), 3.0)
    for _ in range(3):
        assert torch.equal(run([x, w])[0], x + 7)
    assert run.num_prepared == 1
    place = run._kept[0].data_ptr()
    w.add_(1)
    assert torch.equal(run([x, w])[0], x + 9) and run.num_prepared == 2
    other = torch.full((COUNT,), 5.0)
    assert torch.equal(run([x, other])[0], x + 11) and run.num_prepared == 3
    assert torch.equal(run([x, w])[0], x + 9) and run.num_prepared == 4 and run._kept[0].data_ptr() == place
    parameter = torch.nn.Parameter(w.clone())
    run([x, parameter])
    with torch.no_grad():
        parameter.mul_(2)
    assert torch.equal(run([x, parameter])[0], x + 17)
    parameter.data = torch.zeros(COUNT)
    assert torch.equal(run([x, parameter])[0], x + 1)


@pytest.mark.parametrize("write", [
    "add_", "foreach", "inference", "set", "adam", "fused adam", "compiled",
])
def test_every_write_that_is_promised_to_show_does(cache: KernelCache, write: str) -> None:
    program = Program(spec(), {"c": torch.ones(COUNT)}, cache=cache)
    run, x, w = kept(program), torch.arange(float(COUNT)), torch.nn.Parameter(torch.full((COUNT,), 3.0))
    for _ in range(2):
        run([x, w])
    before, w.grad = w.detach().clone(), torch.ones(COUNT)
    with torch.no_grad():
        match write:
            case "add_":
                w.add_(1)
            case "foreach":
                torch._foreach_mul_([w], 2.0)
            case "inference":
                with torch.inference_mode():
                    w.mul_(2)
            case "set":
                w.set_(torch.zeros(COUNT))
            case "adam" | "fused adam":
                torch.optim.Adam([w], 0.5, fused=write == "fused adam").step()
            case "compiled":
                torch.compile(lambda p: p.mul_(2), backend="aot_eager")(w)
    assert not torch.equal(before, w)
    assert torch.equal(run([x, w])[0], x + 2 * w.detach() + 1)


def test_tensors_without_a_version_run_the_whole_program(cache: KernelCache) -> None:
    program = Program(spec(), {"c": torch.ones(COUNT)}, cache=cache)
    run, x = kept(program), torch.arange(float(COUNT))
    with torch.inference_mode():
        w = torch.full((COUNT,), 3.0)
        for n in range(3):
            w.fill_(n)
            assert torch.equal(run([x, w])[0], x + 2 * n + 1)
    assert run.num_prepared == 0


@pytest.mark.parametrize("why", ["no weights", "updated", "given", "written again", "random"])
def test_what_must_run_at_each_call_does(why: str) -> None:
    made = spec()
    match why:
        case "no weights":
            made = dataclasses.replace(made, steps=(KernelStep(0, ("x", "p")), *made.steps[1:]))
        case "updated":
            made = dataclasses.replace(made, updates=("w",))
        case "given":
            values = tuple(dataclasses.replace(v, role="result") if v.name in ("p", "q") else v for v in made.values)
            made = dataclasses.replace(made, values=values, results=("y", "q", "p"))
        case "written again":
            made = dataclasses.replace(made, steps=(made.steps[0], KernelStep(1, ("x", "c", "p")), *made.steps[1:]))
        case "random":
            made = dataclasses.replace(made, steps=(LibraryStep("random_seed", (), ("p",)), *made.steps[1:]))
    assert split_weights(made, ("w",)) is None


def test_a_kernel_counts_on_the_one_ahead_only_where_it_still_is() -> None:
    """Behind a step that is apart now, a kernel must not start early."""
    made = spec(KernelStep(1, ("y", "v", "z")))
    early = tuple(dataclasses.replace(k, launch=dataclasses.replace(k.launch, early=True)) for k in made.kernels)
    made = dataclasses.replace(made, kernels=early, values=(*made.values, value("z", "result", (COUNT,))), results=("y", "z"))
    split = split_weights(made, ("w",))
    assert split is not None
    assert [split.rest.kernels[s.kernel].launch.early for s in split.rest.steps if isinstance(s, KernelStep)] == [False, True]
    assert [split.weights.kernels[s.kernel].launch.early for s in split.weights.steps if isinstance(s, KernelStep)] == [True, True]


def test_values_computed_from_an_update_in_place_are_no_weights() -> None:
    """t = copy of x, += w; u = 2 t; z = 2 u; and w + c beside: a kernel reads the value that it updates, and all that follows depends on x.
    Darknet-53 by calls could not be compiled: all layers behind the first were taken for weights."""
    twice, add, update = (host_kernel(name, text, COUNT, n) for name, text, n in (
        ("twice", "tf_twice(a[i])", 1), ("add", "a[i] + b[i]", 2), ("update", "a[i]", 1)))
    out = update.parameters[-1]
    update = dataclasses.replace(update, parameters=(*update.parameters[:-1], dataclasses.replace(out, role="inout")))
    values = (value("x", "input", (COUNT,)), value("w", "input", (COUNT,)), value("c", "constant", (COUNT,)),
              *(value(name, "intermediate", (COUNT,)) for name in "tuvp"), value("z", "result", (COUNT,)), value("y", "result", (COUNT,)))
    steps = (KernelStep(0, ("x", "t")), KernelStep(2, ("w", "t")), KernelStep(0, ("t", "u")), KernelStep(0, ("u", "v")),
             KernelStep(0, ("v", "z")), KernelStep(1, ("w", "c", "p")), KernelStep(1, ("x", "p", "y")))
    made = ProgramSpec("chain", "host", ("x", "w"), ("z", "y"), values, (twice, add, update), steps)
    split = split_weights(made, ("w",))
    assert split is not None and split.kept == ("p",) and split.weights.steps == (KernelStep(0, ("w", "c", "p")),)
    assert len(split.rest.steps) == 6
