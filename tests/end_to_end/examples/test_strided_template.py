"""The template of docs/adding_a_template.md, in a folder outside of the package: proposed, priced, printed, run and emitted."""
from __future__ import annotations

import contextlib
import io
import math
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import tilefuse
from examples.strided_template import Strided, StridedTemplate
from tests.unit.templates.host_build import SHORT_CHECKED_FLAGS, build_together, call, compiler
from tilefuse.base.errors import UserError
from tilefuse.domain.tile import TileProgram
from tilefuse.driver import torch_backend
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.printers.cuda import print_cuda
from tilefuse.runtime.compilers.nvrtc import compile_cuda, parse_resources
from tilefuse.target.catalog import A100
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates import registry
from tilefuse.templates.by_hand import program_by_hand
from tilefuse.templates.compose import compose
from tilefuse.templates.neighbours import neighbours, program_with
from tilefuse.templates.notation import parse_template
from tilefuse.templates.pattern import schedule_pattern
from tilefuse.templates.registry import kernel_template, registered

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/adding_a_template.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def strided() -> Iterator[None]:
    """The template is registered while a test runs."""
    with registered(StridedTemplate()):
        yield


@contextlib.contextmanager
def without_template() -> Iterator[None]:
    """The template is not registered inside."""
    template = registry._template_by_record.pop(Strided)
    try:
        yield
    finally:
        registry.register(template)


def scaled(rows: int, columns: int, dtype: str = "f32") -> str:
    """Text of a graph: a map with a row that all rows share."""
    return f"""graph @g(%x: {dtype}[{rows}, {columns}], %b: {dtype}[{columns}]) -> ({dtype}[{rows}, {columns}]) {{
      %y: {dtype}[{rows}, {columns}] = map [i, j] {{ add(mul(%x[i, j], %x[i, j]), %b[j]) }}
      return %y
    }}"""


def program_of(text: str, device: DeviceSpec = H200) -> TileProgram:
    graph = parse_graph(text)
    program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, device)
    assert isinstance(program, TileProgram)
    return program


def choice_of(program: TileProgram) -> Strided:
    assert isinstance(program.choice, Strided)
    return program.choice


def test_it_takes_maps_with_more_elements_than_threads() -> None:
    """Small maps, reductions and scatters stay with the compiler's own templates."""
    large = program_of(scaled(3001, 517))
    assert choice_of(large) == Strided(("r0", "r1"), 132 * 8, 256) and large.launch.num_blocks == 1056
    assert program_of(scaled(40, 50)).template == "pointwise"
    sums = "graph @g(%x: f32[4096, 1024]) -> (f32[4096]) {\n %s: f32[4096] = reduce.sum [i] over [k < 1024] { %x[i, k] }\n return %s\n}"
    assert program_of(sums).template == "rows"
    assert choice_of(program_of(scaled(3001, 517), A100)).blocks == 108 * 8


def test_its_text_gives_the_choice_back() -> None:
    """As it was printed, with other numbers, and with numbers that no device starts."""
    program = program_of(scaled(3001, 517))
    assert program.notation == "y [GRID,GRID-CTA_256]; blocks=1056; cta_num=1056; cta_size=256;"
    assert program_by_hand(program, parse_template(program.notation), H200) == program
    other = program_by_hand(program, parse_template("y [GRID,GRID-CTA_64]; blocks=7; cta_size=64;"), H200)
    assert choice_of(other) == Strided(("r0", "r1"), 7, 64) and other.launch.num_blocks == 7
    for text, why in (("y [GRID,GRID-CTA_256]; blocks=0;", "too small"), ("y [GRID,GRID-CTA_4096]; blocks=1;", "4096 threads"),
                      ("y [CTA_256,GRID]; blocks=1;", "does not fit")):
        with pytest.raises(UserError, match=why):
            program_by_hand(program, parse_template(text), H200)


def test_its_price_follows_from_its_work() -> None:
    """Bytes of the boundary at each level; more elements cost more, and nothing is faster than its bytes."""
    cost = AnalyticCost(H200)
    small, large = program_of(scaled(3001, 517)), program_of(scaled(3001, 5170))
    work = kernel_template(large.choice).work(large, H200)
    assert work.global_bytes == work.l2_bytes == 4 * (2 * 3001 * 5170 + 5170)
    assert cost.limit_us(large) < cost.cost(large).us < math.inf
    assert cost.cost(small).us < cost.cost(large).us


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_all_its_choices_compute_the_map(tmp_path: Path) -> None:
    """In checking mode, which finds accesses outside of buffers and elements that nobody stored; also grids larger than the map."""
    base = program_of(scaled(3001, 97))
    choices = (*neighbours(base, H200), Strided(("r0", "r1"), 3, 31), Strided(("r1", "r0"), 5, 64), Strided(("r0", "r1"), 9000, 96))
    programs = [p for p in (program_with(base, c, H200) for c in choices) if isinstance(p, TileProgram)]
    assert len(programs) == len(choices) == 6
    kernels = [(compose(p, H200), True) for p in programs]
    library = build_together(kernels, tmp_path, SHORT_CHECKED_FLAGS)
    draw = np.random.default_rng()
    inputs = {i.name: draw.standard_normal(i.type.shape).astype(np.float32) for i in base.graph.inputs}
    (wanted,) = interpret(base.graph, inputs)
    for number, (kernel, _) in enumerate(kernels):
        arrays = {b.name: inputs[b.origin].ravel() for b in kernel.parameters if b.origin in inputs}
        results, status, report = call(getattr(library, f"{kernel.name}_{number}"), kernel, arrays)
        assert status == 0, f"{programs[number].notation}: {report}"
        name = next(b.name for b in kernel.parameters if b.origin == "y")
        np.testing.assert_allclose(results[name][:wanted.size].reshape(wanted.shape), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_models_run_through_it(dtype: torch.dtype) -> None:
    """Odd sizes, transposed operands, NaN and infinities; an update in place overwrites what each thread has read itself."""
    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(w.t())
        return x * w.t()

    x, w = ((torch.randn(shape) * 4).to(dtype) for shape in ((257, 33), (33, 257)))
    if dtype.is_floating_point:
        x[3, 5], x[8, 1], w[0, 0] = math.nan, math.inf, -math.inf
    updated, wanted_x = x.clone(), x.clone()
    torch_backend.reset()
    result, wanted = torch.compile(step, backend="tilefuse")(updated, w), step(wanted_x, w)
    assert "strided" in torch_backend.explain()
    torch.testing.assert_close(result, wanted, equal_nan=True)
    torch.testing.assert_close(updated, wanted_x, equal_nan=True)


def test_its_cuda_compiles_and_counts_beyond_32_bits() -> None:
    """For sm_90a, without spills; a map of more than 2^31 elements has 64-bit offsets."""
    generated = tilefuse.compile(lambda x, b: torch.tanh(x + b) * x, (torch.randn(3001, 517), torch.randn(517)), target="h200")
    resources = parse_resources(compile_cuda(generated.kernels[0]).log)
    assert resources is not None and resources.spill_bytes == 0
    assert "for (int turn = 0; turn < 6; ++turn)" in generated.kernels[0].source
    huge = print_cuda(compose(program_of(scaled(70001, 40001)), H200), H200)
    assert "const long long element = " in huge and "< 2800110001" in huge


def test_explanations_show_its_tiles() -> None:
    """As those of any kernel."""
    generated = tilefuse.compile(lambda x: torch.exp(x) * x, (torch.randn(3001, 517),), target="h200")
    kernel = generated.explain(json=True)["kernels"][0]
    assert kernel["template"] == "strided" and kernel["notation"].startswith("mul [GRID,GRID-CTA_256]; blocks=1056;")
    assert {t["level"]: dict(t["tile"]) for t in kernel["tiles"]} == {
        "grid": {"r0": 3001 * 517}, "block": {"element": 6 * 256}, "thread": {"element": 6}}


def test_plans_with_it_are_not_mistaken_for_plans_without(tmp_path: Path) -> None:
    """Kept programs are found by the compiler's own files, which say nothing of a template from outside."""
    def notation() -> str:
        generated = tilefuse.compile(lambda x: torch.exp(x) * x, (torch.ones(3001, 517),), target="h200", cache_dir=str(tmp_path))
        return generated.kernels[0].source.partition("schedule: ")[2].partition("\n")[0]

    with without_template():
        usual = notation()
    assert "vector=4" in usual
    assert "blocks=1056" in notation()
    with without_template():
        assert notation() == usual


def blocks(language: str) -> list[tuple[str, str]]:
    """(file, text) of the page's code blocks in a language; the file is "" where none is named."""
    return re.findall(rf"^```{language}(?: file=(\S+))?\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_shows_the_template_as_it_is() -> None:
    """Its pieces stand in the files word for word, its CUDA is what the example prints, and its program prints what it says."""
    pieces = [(file, text) for file, text in blocks("python") if file]
    assert {file for file, _ in pieces} == {"record.py", "template.py"}
    for file, text in pieces:
        assert text in (ROOT / "examples/strided_template" / file).read_text(encoding="utf-8"), text
    (program,) = (text for file, text in blocks("python") if not file)
    with without_template(), contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(program, "docs/adding_a_template.md", "exec"), {})
    assert printed.getvalue() in PAGE


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The kernel of the page; the template is registered by the example itself."""
    with without_template():
        runpy.run_module("examples.strided_template", run_name="__main__")
    out = capsys.readouterr().out
    assert blocks("cuda")[0][1] in out
    assert float(out.rpartition(": ")[2]) < 1e-5
