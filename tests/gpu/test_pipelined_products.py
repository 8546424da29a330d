"""Pipelined products on a device: every case of the host's tests, and sizes that fill the device, against f64 or f32."""
from __future__ import annotations

import numpy as np
import pytest
import torch

import tilefuse
from tests.unit.templates.staged.pipelined.byte_graphs import scaled as scaled_bytes
from tests.unit.templates.staged.pipelined.byte_graphs import sums
from tests.unit.templates.staged.pipelined.product_graphs import gated, of_bytes, plain
from tests.unit.templates.staged.pipelined.row_cases import ROW_CASES
from tests.unit.templates.staged.pipelined.row_graphs import residual_norm, soft
from tests.unit.templates.staged.pipelined.swapped_cases import SWAPPED_CASES
from tests.unit.templates.staged.pipelined.test_byte_products import BYTE_CASES
from tests.unit.templates.staged.pipelined.test_byte_products import ROUNDOFF as BYTE_ROUNDOFF
from tests.unit.templates.staged.pipelined.test_byte_products import drawn as drawn_bytes
from tests.unit.templates.staged.pipelined.test_operand_parts import PARTS, PARTS_CASES, UNIT
from tests.unit.templates.staged.pipelined.test_pipelined import CASES, ROUNDOFF, Case, drawn
from tests.unit.templates.staged.pipelined.test_split import SPLIT_CASES, scaled
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import present_device
from tilefuse.driver.measure.lone_kernel import lone_program
from tilefuse.ir.dtype import BF16, F32
from tilefuse.ir.interpret import interpret
from tilefuse.ir.layouts import Layouts
from tilefuse.runtime.calls.library import TORCH_DTYPES
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import plan_of, schedule_product


def has_warpgroup_products() -> bool:
    """Whether the device at hand multiplies by warpgroups."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_warpgroup_products(), reason="needs a CUDA device of compute capability 9.0")]


ALL_CASES = CASES | {f"few rows: {name}": case for name, case in SWAPPED_CASES.items()}


def on_device(case: Case) -> tuple[TileProgram, dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
    """The program, its inputs and its results, equal from call to call."""
    program = schedule_product(case.graph(), case.layouts, present_device()[0], case.wanted)
    assert isinstance(program, TileProgram), program
    values, results = run_thrice(program, drawn(program.graph), case.layouts)
    return program, values, results


def run_thrice(program: TileProgram, inputs: dict[str, np.ndarray],
               layouts: Layouts) -> tuple[dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
    """Inputs and results on the device, equal from call to call."""
    device, place = present_device()
    values: dict[str, torch.Tensor] = {}
    for name, value in inputs.items():
        kind = TORCH_DTYPES[program.graph.type_of(name).dtype.name]
        strides = layouts.get(name) or torch.empty(value.shape, device="meta").stride()
        values[name] = torch.empty_strided(value.shape, strides, dtype=kind, device="cuda")
        values[name].copy_(torch.from_numpy(value if value.dtype.kind in "iu" else value.astype(np.float32)))
    lone = lone_program(program, device, place, Options.from_environment())
    results = [tuple(r.clone() for r in lone(*(values[n] for n in lone.spec.inputs))) for _ in range(3)]
    for again in results[1:]:
        assert all(torch.equal(a.double().nan_to_num(), b.double().nan_to_num()) for a, b in zip(results[0], again, strict=True))
    return values, results[0]


@pytest.mark.parametrize("name", ALL_CASES)
def test_kernel_computes_the_product(name: str) -> None:
    """Every element of every result."""
    program, values, results = on_device(ALL_CASES[name])
    graph = program.graph
    wanted = interpret(in_double(graph), {n: (v.double() if v.is_floating_point() else v).cpu().numpy() for n, v in values.items()})
    for result, got, value in zip(graph.results, results, wanted, strict=True):
        error = np.abs(got.double().cpu().numpy() - np.asarray(value).reshape(tuple(got.shape))).max()
        assert error <= 4 * ROUNDOFF[graph.type_of(result).dtype.name] * max(np.abs(value).max(), 1.0)


@pytest.mark.parametrize("size", [(4096, 4096, 1024), (4000, 5000, 520), (8192, 520, 4096), (130, 16384, 72)])
@pytest.mark.parametrize("turned", [(False, True), (False, False), (True, True)])
def test_large_products(size: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    """More tiles than the device has blocks, and tiles that hang over both ends; bf16 against products in f32."""
    program, values, (got,) = on_device(Case(lambda: plain(*size, BF16, turned)))
    x, w = values["x"].float(), values["w"].float()
    wanted = (x.T if turned[0] else x) @ (w.T if turned[1] else w)
    assert float((got.float() - wanted).norm() / wanted.norm()) < 2.0**-8


@pytest.mark.parametrize("name", SPLIT_CASES)
def test_kernel_adds_its_parts(name: str) -> None:
    """Every element of every result, equal from call to call: counters are zero again."""
    case = SPLIT_CASES[name]
    program = schedule_product(case.graph(), case.layouts, present_device()[0], case.wanted)
    assert isinstance(program, TileProgram), program
    graph = program.graph
    values, results = run_thrice(program, scaled(graph), case.layouts)
    wanted = interpret(in_double(graph), {n: (v.double() if v.is_floating_point() else v).cpu().numpy() for n, v in values.items()})
    for result, got, value in zip(graph.results, results, wanted, strict=True):
        error = np.abs(got.double().cpu().numpy() - np.asarray(value).reshape(tuple(got.shape))).max()
        assert error <= 8 * ROUNDOFF[graph.type_of(result).dtype.name] * max(np.abs(value).max(), 1.0)


@pytest.mark.parametrize("size", [(256, 256, 65536), (512, 512, 16384), (128, 768, 3072), (1, 4096, 4096), (100, 200, 30000)])
def test_few_tiles(size: tuple[int, int, int]) -> None:
    """The chosen tiles, whose inner axes are divided, or whose weights are the left operand where rows are few; equal from call to call;
    bf16 against products in f64."""
    program, values, (got,) = on_device(Case(lambda: plain(*size, BF16)))
    assert isinstance(program.choice, Pipelined) and (program.choice.split > 1 or program.choice.swapped and size[0] <= 16)
    wanted = values["x"].double() @ values["w"].double().T
    assert float((got.double() - wanted).norm() / wanted.norm()) < 2.0**-8


def test_two_large_results() -> None:
    """Both results of a tile pass through stages of their own."""
    _, values, (activated, added) = on_device(Case(lambda: gated(4096, 4096, 512)))
    sums = (values["x"].float() @ values["w"].float().T).half().float() + values["bias"].float()
    wanted = torch.tanh(sums)
    assert float((activated.float() - wanted).norm() / wanted.norm()) < 2.0**-9
    wanted = wanted + values["residual"].float()
    assert float((added.float() - wanted).norm() / wanted.norm()) < 2.0**-9


@pytest.mark.parametrize("size", [(46400, 46408, 64), (9_000_000, 72, 256), (8_650_000, 256, 64)])
def test_more_elements_than_31_bits_count(size: tuple[int, int, int]) -> None:
    """A result, a left operand, and a result again of more than 2^31 elements: first, last and random rows against products in f32."""
    rows, columns, inner = size
    assert max(rows * columns, rows * inner) > 2**31
    device, place = present_device()
    program = schedule_product(plain(*size, BF16), {}, device)
    assert isinstance(program, TileProgram), program
    generator = torch.Generator("cuda").manual_seed(11)
    x, w = (torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16) for shape in ((rows, inner), (columns, inner)))
    lone = lone_program(program, device, place, Options.from_environment())
    got, = lone(*({"x": x, "w": w}[n] for n in lone.spec.inputs))
    at = torch.cat([torch.arange(300, device="cuda"), rows - 1 - torch.arange(300, device="cuda"),
                    torch.randint(rows, (400,), device="cuda", generator=generator)])
    wanted = x[at].float() @ w.float().T
    assert float((got[at].float() - wanted).norm() / wanted.norm()) < 2.0**-8


@pytest.mark.parametrize("name", ROW_CASES)
def test_kernel_reduces_rows(name: str) -> None:
    """Rows of one block and of clusters; NaN and infinities; every element of every result."""
    case = ROW_CASES[name]
    program = case.program(present_device()[0])
    inputs = case.inputs(program.graph)
    _, results = run_thrice(program, inputs, {})
    case.check(program.graph, inputs, [(r.float() if r.is_floating_point() else r).cpu().numpy().ravel() for r in results])


@pytest.mark.parametrize("size", [(8192, 1024, 4096), (8192, 768, 768), (4096, 2048, 512), (4100, 4096, 1024), (20000, 250, 136)])
def test_large_norms(size: tuple[int, int, int]) -> None:
    """More tiles of rows than clusters run at once; f16 against torch's norm of sums in f32."""
    program, values, (total, normed) = on_device(Case(lambda: residual_norm(*size)))
    choice = program.choice
    assert isinstance(choice, Pipelined) and choice.cluster * choice.columns >= size[1]
    sums = (values["x"].float() @ values["w"].float().T).half() + values["bias"] + values["residual"]
    assert float((total.float() - sums.float()).norm() / sums.float().norm()) < 2.0**-9
    wanted = torch.nn.functional.layer_norm(total.float(), (size[1],), values["scale"].float(), values["shift"].float(), 1e-5)
    assert float((normed.float() - wanted).norm() / wanted.norm()) < 2.0**-9


def test_large_softmax() -> None:
    """Two exchanges a tile; rows of sixteen blocks."""
    _, values, (got,) = on_device(Case(lambda: soft(8192, 4096, 256)))
    wanted = torch.softmax((values["x"].float() @ values["w"].float().T).half().float(), -1)
    assert float((got.float() - wanted).norm() / wanted.norm()) < 2.0**-8


@pytest.mark.parametrize(("rows", "columns", "inner"),
                         [(1, 4096, 4096), (16, 14336, 4096), (16, 4096, 14336), (48, 4096, 4096), (9, 1000, 4104)])
def test_few_rows_of_large_products(rows: int, columns: int, inner: int) -> None:
    """Chosen tiles, with parts of the inner axis where these are chosen; bf16 against products in f32."""
    program, values, (got,) = on_device(Case(lambda: plain(rows, columns, inner, BF16)))
    assert plan_of(program).choice.swapped or rows > 16
    wanted = values["x"].float() @ values["w"].float().T
    assert float((got.float() - wanted).norm() / wanted.norm()) < 2.0**-8


@pytest.mark.parametrize("rows", [1, 16, 40, 256])
def test_weights_of_8_bits(rows: int) -> None:
    """Expanded by consumers, for few rows and for many."""
    program, values, (got,) = on_device(Case(lambda: of_bytes(rows, 11008, 4096)))
    assert plan_of(program).choice.swapped
    wanted = values["x"].double() @ values["w"].double().T * values["scale"].double()
    assert float((got.double() - wanted).norm() / wanted.norm()) < 2.0**-7


# -- bytes, and f32 as high and low parts --------------------------------------------------------------------------------------

# Bits below the largest product of an instruction that the tensor cores keep of 8-bit floats, and products of an instruction.
KEPT, TERMS = 2.0**-13, 32


@pytest.mark.parametrize("name", BYTE_CASES)
def test_products_of_bytes(name: str) -> None:
    """Integers exactly; 8-bit floats within the bits that the tensor cores keep of one slot, or of all with fast sums."""
    case = BYTE_CASES[name]
    program = schedule_product(case.graph(), case.layouts, present_device()[0], case.wanted)
    assert isinstance(program, TileProgram), program
    graph = program.graph
    values, (got,) = run_thrice(program, drawn_bytes(graph), {})
    double = {n: v.double() if v.is_floating_point() else v for n, v in values.items()}
    x, w = double["x"].double(), double["w"].double()
    scale = double["scale_x"] * double["scale_w"] if "scale_x" in double else torch.ones((), device="cuda")
    wanted, terms = (x @ w.mT) * scale + double.get("bias", 0.0), (x.abs() @ w.abs().mT) * scale.abs()
    dtype = graph.type_of(graph.results[0]).dtype.name
    lost = 0.0 if values["x"].dtype in (torch.int8, torch.uint8) else KEPT * 4
    bound = lost * terms + 2 * BYTE_ROUNDOFF[dtype] * wanted.abs() + 2.0**-9 * (dtype == "f8e4m3") + 2.0**-20 * terms * (dtype != "i32")
    assert bool(((got.double() - wanted).abs() <= bound).all())


@pytest.mark.parametrize("fast", [False, True])
def test_long_sums_of_8_bit_floats(fast: bool) -> None:
    """Sums of a slot that are added in f32 are as exact for long inner axes as for short ones."""
    program = schedule_product(scaled_bytes(256, 256, 32768, result=F32, precision="fast" if fast else "default"), {}, present_device()[0])
    assert isinstance(program, TileProgram), program
    values, (got,) = run_thrice(program, drawn_bytes(program.graph), {})
    x, w = values["x"].double(), values["w"].double()
    scale = (values["scale_x"] * values["scale_w"]).double()
    error = ((got.double() - (x @ w.T) * scale).abs() / ((x.abs() @ w.abs().T) * scale.abs())).max()
    assert float(error) <= (KEPT * TERMS if fast else KEPT)


def test_large_products_of_integers() -> None:
    """More tiles than the device has blocks, exactly."""
    _, values, (got,) = on_device(Case(lambda: sums(4000, 5000, 528)))
    assert torch.equal(got, torch._int_mm(values["x"], values["w"].T))


@pytest.mark.parametrize("name", PARTS_CASES)
def test_products_of_parts_are_as_exact_as_f32(name: str) -> None:
    """Every element against f64."""
    program, values, results = on_device(PARTS_CASES[name])
    graph = program.graph
    double = {n: v.double().cpu().numpy() for n, v in values.items()}
    wanted = interpret(in_double(graph), double)
    terms = interpret(in_double(graph), {n: np.abs(v) for n, v in double.items()})
    for got, value, magnitude in zip(results, wanted, terms, strict=True):
        error = np.abs(got.double().cpu().numpy() - np.asarray(value).reshape(tuple(got.shape))).max()
        assert error <= 4 * (PARTS + 200 * UNIT) * max(np.abs(magnitude).max(), 1.0)


@pytest.mark.parametrize("size", [(4096, 4096, 1024), (4000, 5000, 520), (256, 256, 32768)])
def test_large_products_of_parts(size: tuple[int, int, int]) -> None:
    """More tiles than the device has blocks, long sums: no less exact than the library's product in f32."""
    _, values, (got,) = on_device(Case(lambda: plain(*size, F32)))
    x, w = values["x"], values["w"]
    wanted = x.double() @ w.double().T
    terms = x.double().abs() @ w.double().abs().T
    torch.backends.cuda.matmul.allow_tf32 = False
    ours, library = (((r.double() - wanted).abs() / terms).max() for r in (got, x @ w.T))
    assert float(ours) <= max(4 * float(library), PARTS)


@pytest.mark.parametrize("classes", [32000, 50257])
def test_cross_entropy_without_scores(classes: int) -> None:
    """Partial results of each row from the product's kernel; bf16 against torch in f32."""
    generator = torch.Generator("cuda").manual_seed(5)
    x, w = (torch.randn(n, 512, generator=generator, device="cuda", dtype=torch.bfloat16) for n in (4096, classes))
    c = torch.randint(classes, (4096,), generator=generator, device="cuda")
    c[::7] = -100
    compiled = tilefuse.compile(lambda x, w, c: torch.nn.functional.cross_entropy((x @ w.T).float(), c), (x, w, c))
    wanted = torch.nn.functional.cross_entropy((x @ w.T).float(), c)
    assert abs(float(compiled(x, w, c)) - float(wanted)) <= 1e-3 * float(wanted)
