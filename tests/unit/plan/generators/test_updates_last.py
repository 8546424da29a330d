"""Updates of inputs stand behind readers of the old contents; how far apart steps of a graph are."""
from __future__ import annotations

from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.ir.layouts import channels_last_strides
from tilefuse.ir.text import parse_graph
from tilefuse.passes.update_order import behind_readers
from tilefuse.plan.assemble import Chosen
from tilefuse.plan.generators.connect import steps_before
from tilefuse.plan.generators.updates_last import updates_last
from tilefuse.plan.pattern import Pattern
from tilefuse.plan.rewrites.updated_layouts import layouts_of_updated
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200

# n overwrites p; r reads p, s reads n, t reads r and p.
GRAPH = parse_graph("""graph @g(%p: f32[8], %q: f32[8]) -> (f32[8], f32[8]) {
  %n: f32[8] = map [i] { add(%p[i], %q[i]) }
  %s: f32[8] = map [i] { exp(%n[i]) }
  %r: f32[8] = map [i] { exp(%p[i]) }
  %t: f32[8] = map [i] { mul(%r[i], %p[-1*i + 7]) }
  update %p = %n
  return %s, %t
}""")


def order(graph_text: str = "", *names: str) -> list[str]:
    """The nodes in the order in which they run, one kernel each."""
    graph = parse_graph(graph_text) if graph_text else GRAPH
    chosen = [Chosen("single", Pattern((n,), (n,)), None) for n in names or [n.name for n in graph.nodes]]
    return [c.pattern.nodes[0] for c in updates_last(graph, {}, chosen)]


def test_an_update_and_what_needs_it_move_behind_the_last_reader() -> None:
    assert order() == ["r", "t", "n", "s"]


def test_an_update_that_a_reader_needs_stays() -> None:
    text = """graph @g(%p: f32[8]) -> (f32[8]) {
      %n: f32[8] = map [i] { add(%p[i], 1.0:f32) }
      %r: f32[8] = map [i] { mul(%n[i], %p[-1*i + 7]) }
      update %p = %n
      return %r
    }"""
    assert order(text) == ["n", "r"]


def test_two_updates_that_read_each_other_move_only_as_far_as_they_can() -> None:
    """b = f(a) and a = g(b): whichever comes first, the other one would see it; the order stays, and one is copied."""
    text = """graph @g(%a: f32[8], %b: f32[8]) -> () {
      %x: f32[8] = map [i] { exp(%b[-1*i + 7]) }
      %y: f32[8] = map [i] { exp(%a[-1*i + 7]) }
      update %a = %x
      update %b = %y
      return
    }"""
    assert sorted(order(text)) == ["x", "y"]
    spec = generate(parse_graph(text), constants={}, device=H200, options=Options()).spec
    assert sum(isinstance(s, CopyStep) for s in spec.steps) >= 1


def test_an_update_is_not_packed_with_a_reader_of_the_old_contents() -> None:
    """Both are small and independent: side by side the update would have to be copied."""
    made = generate(parse_graph("""graph @g(%p: f32[64], %q: f32[7]) -> (f32[64, 3]) {
      %n: f32[64] = map [i] { sub(%p[i], 0.5:f32) }
      %m: f32[7] = map [i] { sub(%q[i], 0.5:f32) }
      %s: f32[64, 3] = map [i, j] { tanh(%p[-1*i + 63]) }
      update %p = %n
      update %q = %m
      return %s
    }"""), constants={}, device=H200, options=Options())
    home = {n: k.name for k in made.plan.kernels for n in k.pattern.nodes}
    assert home["n"] != home["s"] and not any(isinstance(s, CopyStep) for s in made.spec.steps)


def test_steps_count_products_and_reductions_on_the_longest_way() -> None:
    """Function: how long one of two readers of a value would wait for the other; maps take no step, they join what is around them."""
    graph = parse_graph("""graph @g(%x: f32[8, 8], %w: f32[8, 8]) -> (f32[8, 8], f32[8]) {
      %a: f32[8, 8] = map [i, j] { exp(%x[i, j]) }
      %p: f32[8, 8] = library.matmul (%a, %w) {precision = "default", transpose_a = false, transpose_b = false}
      %q: f32[8, 8] = library.matmul (%p, %w) {precision = "default", transpose_a = false, transpose_b = false}
      %b: f32[8, 8] = map [i, j] { add(%q[i, j], %x[i, j]) }
      %s: f32[8] = reduce.sum [i] over [k < 8] { %b[i, k] }
      return %b, %s
    }""")
    assert steps_before(graph) == {"a": 0, "p": 1, "q": 2, "b": 2, "s": 3}


def nodes_behind_readers(text: str) -> list[str]:
    """The nodes of a graph after updates were put behind readers."""
    return [n.name for n in behind_readers(parse_graph(text)).nodes]


def test_nodes_of_updates_move_behind_the_readers_before_planning() -> None:
    graph = behind_readers(GRAPH)
    assert [n.name for n in graph.nodes] == ["r", "t", "n", "s"]
    assert behind_readers(graph) is graph


def test_updates_that_wait_for_each_other_are_not_left_out() -> None:
    text = """graph @g(%a: f32[8], %b: f32[8], %c: f32[8]) -> () {
      %z: f32[8] = map [i] { add(%c[i], 1.0:f32) }
      %x: f32[8] = map [i] { exp(%b[-1*i + 7]) }
      %y: f32[8] = map [i] { mul(%a[-1*i + 7], %c[-1*i + 7]) }
      update %c = %z
      update %a = %x
      update %b = %y
      return
    }"""
    found = nodes_behind_readers(text)
    assert sorted(found) == ["x", "y", "z"] and found.index("z") > found.index("y")
    settled = behind_readers(parse_graph(text))
    assert behind_readers(settled) is settled


def test_no_kernel_writes_an_update_that_a_later_one_still_reads() -> None:
    """A layer's weight is updated from its gradient while the gradient of its input needs the old weight: no copy, whatever is fused."""
    graph = parse_graph("""graph @g(%w: f32[512, 512], %x: f32[512, 512]) -> (f32[512, 512]) {
      %g: f32[512, 512] = map [i, j] { exp(%x[i, j]) }
      %n: f32[512, 512] = map [i, j] { sub(%w[i, j], %g[i, j]) }
      %h: f32[512, 512] = library.matmul (%g, %w) {precision = "tf32", transpose_a = false, transpose_b = false}
      update %w = %n
      return %h
    }""")
    for device in (H200, host_device()):
        spec = generate(graph, constants={}, device=device, options=Options()).spec
        assert not any(isinstance(s, CopyStep) for s in spec.steps)


TRAINED = """graph @g(%x: f32[4, 8, 6, 6], %w: f32[8, 8, 3, 3], %m: f32[8, 8, 3, 3], %b: f32[8]) -> () {
  %y: f32[4, 8, 6, 6] = library.convolution (%x, %w) {dilation = (1, 1), groups = 1, has_bias = false, output_padding = (0, 0), padding = ((1, 1), (1, 1)), stride = (1, 1), transposed = false}
  %d: f32[8, 8, 3, 3] = library.convolution_backward (%y, %x, %w) {dilation = (1, 1), groups = 1, mask = (false, true, false), output_padding = (0, 0), padding = ((1, 1), (1, 1)), result = 1, stride = (1, 1), transposed = false}
  %n: f32[8, 8, 3, 3] = map [i, j, k, l] { add(mul(%m[i, j, k, l], 0.9:f32), %d[i, j, k, l]) }
  %v: f32[8, 8, 3, 3] = map [i, j, k, l] { sub(%w[i, j, k, l], %n[i, j, k, l]) }
  %c: f32[8] = map [i] { mul(%b[i], 0.5:f32) }
  update %w = %v
  update %m = %n
  update %b = %c
  return
}"""  # noqa: E501


def test_weights_of_convolutions_and_their_slots_should_lie_channels_last() -> None:
    found = layouts_of_updated(parse_graph(TRAINED), H200, Options())
    assert found == {"w": channels_last_strides((8, 8, 3, 3)), "m": channels_last_strides((8, 8, 3, 3))}
    assert layouts_of_updated(parse_graph(TRAINED), host_device(), Options()) == {}


def test_weights_that_lie_so_are_neither_packed_nor_copied() -> None:
    graph = parse_graph(TRAINED)
    layouts = layouts_of_updated(graph, H200, Options())
    spec = generate(graph, constants={}, device=H200, options=Options(), input_layouts=layouts).spec
    assert sum(isinstance(s, KernelStep) for s in spec.steps) == 2  # the image is turned, and everything is updated
    assert not any(isinstance(s, CopyStep) for s in spec.steps)


def test_an_image_that_a_convolution_and_its_gradient_read_is_turned_once() -> None:
    graph = parse_graph(TRAINED)
    layouts = layouts_of_updated(graph, H200, Options())
    spec = generate(graph, constants={}, device=H200, options=Options(), input_layouts=layouts).spec
    calls = [s for s in spec.steps if isinstance(s, LibraryStep)]
    assert [c.operands[0 if c.operator == "convolution" else 1] for c in calls] == ["x_packed"] * 2
