"""Updates by packed kernels: members write where their inputs lie, unless another part still reads these."""
from __future__ import annotations

import torch

from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph, generate
from tilefuse.ir.text import parse_graph
from tilefuse.runtime.spec import CopyStep, KernelStep, ProgramSpec
from tilefuse.target.device import H200

STEPS = """graph @steps(%p: f32[64], %g: f32[64], %q: f32[7], %h: f32[7], %r: f32[300]) -> (f32[300]) {
  %n: f32[64] = map [i] { sub(%p[i], mul(0.5:f32, %g[i])) }
  %m: f32[7] = map [i] { sub(%q[i], mul(0.5:f32, %h[i])) }
  %t: f32[300] = map [i] { mul(%r[i], 2.0:f32) }
  update %p = %n
  update %q = %m
  return %t
}"""
# s reads what n overwrites, in a part of its own.
SEEN = """graph @seen(%p: f32[64], %q: f32[7]) -> (f32[64]) {
  %n: f32[64] = map [i] { sub(%p[i], 0.5:f32) }
  %m: f32[7] = map [i] { sub(%q[i], 0.5:f32) }
  %s: f32[64] = map [i] { tanh(%p[-1*i + 63]) }
  update %p = %n
  update %q = %m
  return %s
}"""
TABLES = """graph @tables(%a: f32[50, 4], %b: f32[9, 4], %i: i64[6], %x: f32[6, 4], %q: f32[33]) -> () {
  %s: f32[50, 4] = scatter.sum over [k < 6, j < 4] into %a at [%i[k], index(j)] { %x[k, j] }
  %t: f32[9, 4] = scatter.sum over [k < 6, j < 4] into %b at [%i[k], index(j)] { mul(%x[k, j], 2.0:f32) }
  %n: f32[33] = map [i] { mul(%q[i], 3.0:f32) }
  update %a = %s
  update %b = %t
  update %q = %n
  return
}"""
# The product of one row is a part that computes sums, nodes that the graph does not have.
ROW = """graph @row(%x: f16[1, 512], %w: f16[64, 512], %p: f16[1, 64], %r: f32[300]) -> (f32[300]) {
  %y: f16[1, 64] = library.matmul (%x, %w) {precision = "default", transpose_a = false, transpose_b = true}
  %n: f16[1, 64] = map [i, j] { f16(sub(f32(%p[i, j]), mul(0.5:f32, f32(%y[i, j])))) }
  %z: f32[300] = map [i] { tanh(%r[i]) }
  update %p = %n
  return %z
}"""


def spec_of(text: str) -> ProgramSpec:
    return generate(parse_graph(text), constants={}, device=H200, options=Options()).spec


def run(text: str, *tensors: torch.Tensor) -> list[torch.Tensor]:
    results = []
    for check in (False, True):
        given = [t.clone() for t in tensors]
        program = compile_graph(parse_graph(text), constants={}, device="host", options=Options().with_overrides(check=check))
        results.append([*program(*given), *given])
    for plain, checked in zip(*results, strict=True):
        assert torch.equal(plain, checked)
    return results[0]


def test_members_are_updated_in_place_without_copies() -> None:
    spec = spec_of(STEPS)
    assert [type(s) for s in spec.steps] == [KernelStep]
    assert spec.kernels[0].one_structure
    p, g, q, h, r = torch.arange(64.0), torch.ones(64), torch.arange(7.0), torch.full((7,), 2.0), torch.arange(300.0)
    t, p2, _, q2, *_ = run(STEPS, p, g, q, h, r)
    assert torch.equal(t, 2 * r)
    assert torch.equal(p2, p - 0.5)
    assert torch.equal(q2, q - 1)


def test_a_part_whose_product_became_sums_updates_in_place() -> None:
    """The kernel knows its sums, the plan knows the product: the update was an internal error."""
    spec = spec_of(ROW)
    assert [type(s) for s in spec.steps] == [KernelStep]
    x, w, p = (torch.rand(*shape, dtype=torch.float16) for shape in ((1, 512), (64, 512), (1, 64)))
    r = torch.rand(300)
    z, _, _, updated, _ = run(ROW, x, w, p, r)
    torch.testing.assert_close(z, r.tanh())
    torch.testing.assert_close(updated.double(), p.double() - 0.5 * x.double() @ w.double().T, rtol=2e-3, atol=2e-2)


def test_an_input_that_another_part_reads_is_not_overwritten() -> None:
    """In one kernel the update would race with the other part; it is copied at the end, or its kernel comes behind the other's."""
    for device_steps in (spec_of(SEEN).steps,):
        kernels = [s for s in device_steps if isinstance(s, KernelStep)]
        assert len(kernels) > 1 or any(isinstance(s, CopyStep) and s.target == "p" for s in device_steps)
    p, q = torch.linspace(-1, 1, 64), torch.arange(7.0)
    s, p2, q2 = run(SEEN, p, q)
    torch.testing.assert_close(s, torch.tanh(p.flip(0)))
    assert torch.equal(p2, p - 0.5)
    assert torch.equal(q2, q - 0.5)


def test_scatters_side_by_side_update_their_tables() -> None:
    a, b, x, q = torch.randn(50, 4), torch.randn(9, 4), torch.randn(6, 4), torch.randn(33)
    i = torch.tensor([0, 3, 3, 8, 2, 0])
    a2, b2, _, _, q2 = run(TABLES, a, b, i, x, q)
    torch.testing.assert_close(a2, a.index_add(0, i, x))
    torch.testing.assert_close(b2, b.index_add(0, i, 2 * x))
    assert torch.equal(q2, 3 * q)


# A step of a decoder: the new row is part of what is read behind it.
CACHE = """graph @cache(%k: f32[2, 8, 4], %i: i64[1], %x: f32[2, 1, 4], %q: f32[2, 4]) -> (f32[2, 8]) {
  %y: f32[2, 1, 4] = map [b, r, c] { tanh(%x[b, r, c]) }
  %s: f32[2, 8, 4] = scatter.set over [b < 2, r < 1, c < 4] into %k at [index(b), in_range(%i[0], 8:i64), index(c)] { %y[b, 0, c] }
  %p: f32[2, 8, 4] = map [b, r, c] { mul(%s[b, r, c], %q[b, c]) }
  %w: f32[2, 8] = reduce.sum [b, r] over [c < 4] { %p[b, r, c] }
  update %k = %s
  return %w
}"""
# The old contents are read behind the scatter: its result needs memory of its own until the end.
OLD = CACHE.replace("mul(%s[b, r, c], %q[b, c])", "mul(add(%s[b, r, c], %k[b, r, c]), %q[b, c])").replace("@cache", "@old")


def test_a_cache_is_read_where_its_new_row_was_written() -> None:
    """No copy of the cache, neither before the scatter nor behind the step: there were two where anything read the new contents."""
    spec = spec_of(CACHE)
    assert all(isinstance(s, KernelStep) for s in spec.steps) and len(spec.steps) == 2
    k, i, x, q = torch.randn(2, 8, 4), torch.tensor([5]), torch.randn(2, 1, 4), torch.randn(2, 4)
    w, k2, *_ = run(CACHE, k, i, x, q)
    expected = k.index_copy(1, i, x.tanh())
    torch.testing.assert_close(k2, expected)
    torch.testing.assert_close(w, (expected * q[:, None]).sum(2))


def test_a_cache_whose_old_contents_are_read_is_copied() -> None:
    """The kernel behind the scatter reads both."""
    assert any(isinstance(s, CopyStep) for s in spec_of(OLD).steps)
    k, i, x, q = torch.randn(2, 8, 4), torch.tensor([5]), torch.randn(2, 1, 4), torch.randn(2, 4)
    w, k2, *_ = run(OLD, k, i, x, q)
    expected = k.index_copy(1, i, x.tanh())
    torch.testing.assert_close(k2, expected)
    torch.testing.assert_close(w, ((expected + k) * q[:, None]).sum(2))
