"""Attention over a cache in pages, in the ways in which torch gathers them: right on the host executor, one kernel on an H200."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

import tilefuse.array as ta
from tests.end_to_end.torch.strict import strict
from tilefuse.arrays.graph import graph_of
from tilefuse.base.errors import IndexRangeError
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.frontends.torch.decompositions import decompositions
from tilefuse.frontends.torch.fx import import_fx
from tilefuse.ir.graph import Graph
from tilefuse.passes import DEFAULT_PIPELINE
from tilefuse.passes.manager import PassContext, Pipeline
from tilefuse.plan.pattern import PlannedKernel
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.record import PipelinedWalk

pytestmark = pytest.mark.usefixtures("fresh")

# Keys or values of the heads of a cache, from its pages and the table: [batch, heads, length, width].
Gather = Callable[[Tensor, Tensor], Tensor]


def subscripted(pages: Tensor, table: Tensor) -> Tensor:
    """Advanced indexing."""
    return pages[table].flatten(1, 2).transpose(1, 2)


def selected(pages: Tensor, table: Tensor) -> Tensor:
    """index_select over the flattened table."""
    rows = pages.index_select(0, table.flatten())
    return rows.reshape(table.shape[0], -1, *pages.shape[2:]).transpose(1, 2)


def embedded(pages: Tensor, table: Tensor) -> Tensor:
    """An embedding of flattened pages."""
    return F.embedding(table, pages.flatten(1)).reshape(table.shape[0], -1, *pages.shape[2:]).transpose(1, 2)


def heads_first(pages: Tensor, table: Tensor) -> Tensor:
    """Pages whose heads come before their rows."""
    return pages.transpose(1, 2)[table].transpose(1, 2).flatten(2, 3)


def written_out(gather: Gather) -> Callable[..., Tensor]:
    """Products and a softmax over the columns below lengths; heads of queries share heads of keys."""
    def attention(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
        k, v = (gather(x, table).repeat_interleave(q.shape[1] // keys.shape[2], 1) for x in (keys, values))
        column = torch.arange(k.shape[2], device=q.device)
        scores = torch.where(column < lengths[:, None, None, None], q @ k.mT * q.shape[-1]**-0.5, float("-inf"))
        return torch.softmax(scores, -1) @ v
    return attention


def called(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """torch's operator on gathered keys and values."""
    k, v = (subscripted(x, table) for x in (keys, values))
    seen = torch.arange(k.shape[2], device=q.device) < lengths[:, None, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)


def grouped(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """Einstein sums with heads that share keys as a dimension of their own; a scale written as a quotient."""
    batch, heads, rows, width = q.shape
    k, v = (x[table].flatten(1, 2) for x in (keys, values))
    scores = torch.einsum("bgirw,bngw->bgirn", q.reshape(batch, k.shape[2], -1, rows, width), k) / width**0.5
    seen = torch.arange(k.shape[1], device=q.device) < lengths[:, None, None, None, None]
    y = torch.einsum("bgirn,bngw->bgirw", torch.softmax(torch.where(seen, scores, float("-inf")), -1), v)
    return y.reshape(batch, heads, rows, width)


WAYS = {f.__name__: written_out(f) for f in (subscripted, selected, embedded, heads_first)} | {
    "called": called, "grouped": grouped}


def inputs(dtype: torch.dtype, batch: int = 3, heads: int = 4, key_heads: int = 2, rows: int = 1, page: int = 16, pages: int = 6,
           width: int = 32) -> list[Tensor]:
    """Queries, pages of keys and of values, numbers of pages, some of them from the end, and lengths."""
    random = torch.Generator().manual_seed(7)
    count = batch * pages + 2
    made = [torch.randn(s, generator=random).to(dtype) for s in ((batch, heads, rows, width), *2 * [(count, page, key_heads, width)])]
    table = torch.randperm(count, generator=random)[:batch * pages].reshape(batch, pages)
    lengths = torch.randint(1, page * pages + 1, (batch,), generator=random)
    return [*made, torch.where(table % 3 == 0, table - count, table), lengths]


def graph(fn: Callable[..., Tensor], given: list[Tensor]) -> Graph:
    """The function as a graph in normal form."""
    with FakeTensorMode():
        fake = [torch.empty(x.shape, dtype=x.dtype) for x in given]
        traced = make_fx(fn, decomposition_table=decompositions())(*fake)
    with _disable_current_modes():
        return Pipeline.parse(DEFAULT_PIPELINE).run(import_fx(traced, "paged").graph, PassContext())


def kernels_of(of: Graph) -> tuple[PlannedKernel, ...]:
    """The kernels of a plan for an H200."""
    return generate(of, constants={}, input_layouts={}, device=H200, options=Options.from_environment()).plan.kernels


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("page", [16, 5, 1])
def test_results_are_those_of_f64(way: str, page: int) -> None:
    """Compiled for the host, pages of any size."""
    given = inputs(torch.float32, rows=2, page=page)
    if way in ("selected", "embedded"):
        # These operators count from the start alone.
        given[3] = given[3] % given[1].shape[0]
    compiled = torch.compile(WAYS[way], backend=strict, dynamic=False)
    wide = [x.double() if x.is_floating_point() else x for x in given]
    torch.testing.assert_close(compiled(*given).double(), WAYS[way](*wide), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_one_kernel_looks_pages_up(way: str) -> None:
    """A walk of the kind that tensor copies feed, with both gathers in it, for one query and for many."""
    for rows in (1, 200):
        of = graph(WAYS[way], inputs(torch.float16, batch=8, heads=32, key_heads=8, rows=rows, pages=64, width=128))
        (kernel,) = kernels_of(of)
        assert isinstance(kernel.program.choice, PipelinedWalk)


def test_an_array_function_looks_pages_up() -> None:
    """`take` of arrays, a table of integers."""
    of = inputs(torch.float16, batch=4, heads=8, key_heads=8, rows=16, pages=64, width=64)
    q, keys, values = (ta.asarray(x.numpy()) for x in of[:3])
    table = ta.asarray(torch.arange(256).reshape(4, 64).numpy())
    k, v = (ta.permute_dims(ta.reshape(ta.take(x, table, axis=0), (4, 1024, 8, 64)), (0, 2, 1, 3)) for x in (keys, values))
    y = ta.matmul(ta.softmax(ta.matmul(q, ta.matrix_transpose(k)) * 0.125), v)
    (kernel,) = kernels_of(Pipeline.parse(DEFAULT_PIPELINE).run(graph_of([y])[0], PassContext()))
    assert isinstance(kernel.program.choice, PipelinedWalk)


def test_numbers_out_of_range_are_errors() -> None:
    """As eager torch has it, also where a length hides the page."""
    given = inputs(torch.float32)
    compiled = torch.compile(WAYS["subscripted"], backend=strict, dynamic=False)
    given[3][2, 1] = 20
    with pytest.raises(IndexRangeError, match="index 20 at .*2, 1"):
        compiled(*given)
