"""Chains of products: forms that are one, their tiles as text, and their kernels on the checking host executor."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.chain.chain_graphs import layers, skipping, turned_columns, windowed
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import NameLookupError, OptionError, UserError
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import generate
from tilefuse.ir.dtype import BF16, F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.kernel.pipeline import Produce, WarpgroupProduct
from tilefuse.kernel.visit import statements
from tilefuse.target.device import H200
from tilefuse.templates.notation import parse_template
from tilefuse.templates.staged.chain.compose import compose_chain
from tilefuse.templates.staged.chain.record import ProductChain
from tilefuse.templates.staged.chain.repeats import num_repeated
from tilefuse.templates.staged.chain.template import ProductChainTemplate, chain_by_hand, plan_of, schedule_chain

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
# Roundings on the way through a chain, relative to the largest element.
ROUNDOFF = {"f16": 2.0**-8, "bf16": 2.0**-5}


@dataclass(frozen=True)
class Case:
    """A pattern, strides of its values where they are not dense, and tiles made by hand (None: chosen)."""

    graph: Callable[[], Graph]
    wanted: ProductChain | None = None
    layouts: Layouts = field(default_factory=dict)

    def program(self) -> TileProgram:
        """The tile program."""
        made = schedule_chain(self.graph(), self.layouts, H200, self.wanted)
        assert isinstance(made, TileProgram), made
        return made


SIX = (32, 64, 16, 64, 16, 64)
CASES = {
    "two layers, one row": Case(lambda: layers(1, (64, 64, 64))),
    "wide layers come for each tile": Case(lambda: layers(70, (64, 256, 256), turned=False), ProductChain(64, (256, 256), 2, 2, 1, 1)),
    "four layers alike": Case(lambda: layers(70, (40, 72, 72, 72, 72), activation="relu"), ProductChain(64, (80, 80, 80, 80), 2, 2, 1, 1)),
    "layers alike between others, bf16": Case(lambda: layers(130, (64, 72, 72, 72, 40, 40, 40), BF16, turned=False),
                                              ProductChain(128, (80, 80, 80, 48, 48, 40), 2, 3, 2, 1)),
    "unlike widths, bias, bf16, three outputs": Case(lambda: layers(67, (72, 104, 40, 3), BF16, biased=True),
                                                     ProductChain(64, (112, 48, 8), 2, 3, 1, 1)),
    "unlike widths stay": Case(lambda: layers(130, (72, 40, 104, 16), biased=True), ProductChain(128, (48, 112, 16), 2, 0, 2, 1)),
    "two rows of instructions": Case(lambda: layers(200, (16, 32, 16), biased=True, activation="relu"),
                                     ProductChain(128, (32, 16), 2, 0, 1, 1)),
    "residuals and kept activations": Case(lambda: layers(67, (40, 64, 40), biased=True, kept=True, residual=True)),
    "a batch with weights of its own": Case(lambda: layers(66, (40, 32, 72), lead=(2,), own_weights=True)),
    "no maps, six layers": Case(lambda: layers(65, (64, *SIX), activation=""), ProductChain(64, SIX, 2, 2, 1, 2)),
    "a window padded again": Case(lambda: windowed(67, 36, 40)),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The checked kernels of all cases, compiled together."""
    kernels = [(compose_chain(case.program(), H200), True) for case in CASES.values()]
    return build_together(kernels, tmp_path_factory.mktemp("chains"), CHECKED_FLAGS)


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_kernel_computes_the_chain(name: str, library: ctypes.CDLL) -> None:
    """Every element of every result, with every access of the kernel checked; sums in f32 against f64."""
    program = CASES[name].program()
    graph, kernel = program.graph, compose_chain(program, H200)
    values = drawn(graph)
    given = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = call(getattr(library, f"{kernel.name}_{list(CASES).index(name)}"), kernel, given)
    assert status == 0, report
    wanted = interpret(in_double(graph), {n: v.astype(np.float64) for n, v in values.items()})
    name_by_origin = {b.origin: b.name for b in kernel.parameters}
    for result, value in zip(graph.results, wanted, strict=True):
        got = memory[name_by_origin[result]].astype(np.float64)
        error = np.abs(got - np.asarray(value).ravel()).max()
        assert error <= ROUNDOFF[graph.type_of(result).dtype.name] * max(np.abs(value).max(), 1.0)


def drawn(graph: Graph) -> dict[str, np.ndarray]:
    """Seeded inputs in the inputs' types; weights keep the size of rows."""
    random = np.random.default_rng(7)
    scale = {v.name: min(v.type.shape[-2:]) ** -0.5 if v.name[0] in "vw" else 1.0 for v in graph.inputs}
    return {v.name: (random.standard_normal(v.type.shape) * scale[v.name]).astype(NUMPY_DTYPES[v.type.dtype.name]) for v in graph.inputs}


@pytest.mark.parametrize("name", CASES)
def test_left_operands_behind_the_first_are_registers(name: str) -> None:
    """Only the first left operand lies in shared memory; right operands that stay are loaded outside of the loop over tiles."""
    program = CASES[name].program()
    kernel, plan = compose_chain(program, H200), plan_of(program)
    pipeline = kernel.pipeline
    assert pipeline is not None
    products = [s for s in statements(kernel.body) if isinstance(s, WarpgroupProduct)]
    assert sum(not p.left_registers for p in products) == 1
    at, heads = 1, []
    while at < len(plan.layers):
        heads.append(plan.layers[at])
        at += num_repeated(plan, at)
    assert sum(p.left_registers for p in products) == sum(layer.fillings for layer in heads)
    tiles = pipeline.body[-1 - len(plan.layers)] if plan.stays else pipeline.body[0]
    rings = {s.ring for s in statements((tiles,)) if isinstance(s, Produce)}
    assert rings == ({"left"} if plan.stays else {"left", "right"})


# -- texts -----------------------------------------------------------------------------------------------------------------


def test_layers_that_differ_in_their_weights_alone_are_one_loop() -> None:
    """Products of the same form behind equal maps; not where a map, a width or the place of the weights differs."""
    alike = {name: [num_repeated(plan_of(CASES[name].program()), n) for n in range(1, len(plan_of(CASES[name].program()).layers))]
             for name in ("four layers alike", "layers alike between others, bf16", "unlike widths stay", "no maps, six layers")}
    assert alike == {"four layers alike": [3, 2, 1], "layers alike between others, bf16": [2, 1, 1, 1, 1], "unlike widths stay": [1, 1],
                     "no maps, six layers": [1, 1, 1, 1, 1]}
    biased = plan_of(Case(lambda: layers(70, (72, 72, 72, 72), biased=True), ProductChain(64, (80, 80, 80), 2, 2, 1, 1)).program())
    kept = plan_of(Case(lambda: layers(70, (72, 72, 72, 72), kept=True), ProductChain(64, (80, 80, 80), 2, 2, 1, 1)).program())
    assert num_repeated(biased, 1) == num_repeated(kept, 1) == 1


@pytest.mark.parametrize("name", CASES)
def test_a_template_gives_its_program_back(name: str) -> None:
    """The program's own notation, parsed."""
    program = CASES[name].program()
    again = chain_by_hand(program, parse_template(program.notation), H200)
    assert (again.choice, again.notation) == (program.choice, program.notation)


def test_a_template_changes_tiles() -> None:
    """Rows, columns of each product, slots and blocks that a user writes."""
    program = Case(lambda: layers(4096, (64, 128, 64), activation="")).program()
    written = ("matmul [GRID-CTA_64,CTA_192,LOOP_64]R; matmul_1 [GRID-CTA_64,CTA_64,LOOP_64]RG; "
               "left_slots=3; slots=4; warpgroups=1; cta_num=7; cta_size=256;")
    assert chain_by_hand(program, parse_template(written), H200).choice == ProductChain(64, (192, 64), 3, 4, 1, 7)


TILE = "matmul [GRID-CTA_64,CTA_128,LOOP_64];"


@pytest.mark.parametrize(("written", "error", "told"), [
    ("matmul [GRID-CTA_100,CTA_128,LOOP_64];", UserError, "100 rows are no multiple of 64"),
    ("matmul [GRID-CTA_64,CTA_64,LOOP_64]; warpgroups=1;", UserError, "columns (64, 64)"),
    (f"{TILE} warpgroups=1; slots=1;", UserError, "1 slots"),
    (f"{TILE} warpgroups=1; left_slots=40;", UserError, "bytes of slots"),
    (f"{TILE} warpgroups=1; cta_size=384;", UserError, "384 threads a block"),
    ("other [GRID];", NameLookupError, "%other"),
    (f"{TILE} band=2;", OptionError, "band"),
])
def test_templates_that_cannot_be_met(written: str, error: type[Exception], told: str) -> None:
    """The error names the number."""
    program = Case(lambda: layers(4096, (64, 128, 64), activation="")).program()
    with pytest.raises(error) as raised:
        chain_by_hand(program, parse_template(written), H200)
    assert told in str(raised.value)


# -- choices and forms -----------------------------------------------------------------------------------------------------------


def test_narrow_right_operands_stay_and_wide_ones_come() -> None:
    """Five operands of 64 x 64 take 40 KiB; four of 256 x 256 take 512 KiB."""
    graphs = [partial(layers, 1 << 20, (width,) * (num + 1), activation="relu") for width, num in ((64, 5), (256, 4))]
    narrow, wide = (Case(graph).program().choice for graph in graphs)
    assert isinstance(narrow, ProductChain) and narrow.slots == 0 and narrow.warpgroups > 2
    assert isinstance(wide, ProductChain) and wide.slots > 2 and wide.warpgroups == 2


def test_right_operands_that_differ_in_a_batch_do_not_stay() -> None:
    """A block takes tiles of several places of the batch."""
    graphs = [partial(layers, 1 << 20, (64, 64, 64), lead=(2,), own_weights=own) for own in (False, True)]
    shared, own = (Case(graph).program().choice for graph in graphs)
    assert isinstance(shared, ProductChain) and isinstance(own, ProductChain) and shared.slots == 0 < own.slots


def test_neighbours_are_other_programs_of_the_same_pattern() -> None:
    """Tuning tries other tiles."""
    template, program = ProductChainTemplate(), Case(lambda: layers(4096, (64, 64, 64))).program()
    tried = template.neighbours(program, H200)
    assert program.choice not in tried and len(set(tried)) == len(tried)
    fits = [p for p in (template.program_with(program, c, H200) for c in tried) if isinstance(p, TileProgram)]
    assert len(fits) > 4 and {p.choice.template for p in fits} == {"product_chain"}


def test_work_counts_right_operands_of_every_tile() -> None:
    """8 tiles of 128 rows read 128 rows of x, both weights, and write 128 rows; weights that stay are read by each of 4 blocks."""
    fitted, weights, rows = H200.fitted.pipelined, 2 * 64 * 64 * 2, 128 * 64 * 2
    for slots, weight_bytes in ((4, 8 * fitted.shared_reads * weights), (0, 4 * weights)):
        wanted = ProductChain(128, (64, 64), 2, slots, 2, 4)
        plan = plan_of(Case(partial(layers, 1024, (64, 64, 64)), wanted).program())
        assert plan.work.blocks[0].cycles_by_unit()["l2"] == pytest.approx((weight_bytes + 16 * rows) / fitted.port_bytes_per_cycle)


@pytest.mark.parametrize(("graph", "told"), [
    (lambda: layers(64, (64, 64)), "1 products"), (lambda: turned_columns(64, 64), "does not have the elements"),
    (lambda: skipping(64, 64), "beside"), (lambda: layers(64, (64, 320, 64)), "320 columns"),
    (lambda: layers(64, (64, 64, 64), F32), "operands of 16 bits"), (lambda: layers(64, (60, 64, 64)), "no tensor copies"),
], ids=["one product", "columns turned round", "an earlier value", "wide", "f32", "rows of 120 bytes"])
def test_patterns_that_are_none(graph: Callable[[], Graph], told: str) -> None:
    """The reason names what stands in the way."""
    made = schedule_chain(graph(), {}, H200)
    assert isinstance(made, Rejected) and told in made.detail


def test_other_devices_have_none() -> None:
    """Warpgroup products exist on compute capability 9.0 alone."""
    device = replace(H200, capabilities=replace(H200.capabilities, warpgroup_products=False))
    made = schedule_chain(layers(64, (64, 64, 64)), {}, device)
    assert isinstance(made, Rejected) and made.reason is Reason.OTHER_TEMPLATE


def test_plans_with_chains_are_explained() -> None:
    """Every compile explains its plan; the level of warpgroups once had no number there, and compiles of MLPs failed."""
    graph = layers(65536, (256, 256, 256))
    made = generate(graph, constants={}, input_layouts={}, device=H200, options=Options())
    assert [k.program.template for k in made.plan.kernels] == ["product_chain"]
    tiles = made.explain(json=True)["kernels"][0]["tiles"]
    assert {"level": "warpgroup", "num": 2}.items() <= next(t for t in tiles if t["level"] == "warpgroup").items()
