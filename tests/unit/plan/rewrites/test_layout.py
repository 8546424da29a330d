"""Layouts: convolutions run channels last on CUDA, what is around them follows, and what is fixed stays."""
from __future__ import annotations

from dataclasses import replace

from tilefuse.base.options import Options
from tilefuse.ir.affine import row_major_strides
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import channels_last_strides, is_channels_last
from tilefuse.ir.text import parse_graph
from tilefuse.passes.device.packed_weights import with_packed_weights
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.rewrites.layout import plan_layouts
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200

ATTRIBUTES = ('{dilation = (1, 1), groups = 1, has_bias = false, output_padding = (0, 0), padding = ((1, 1), (1, 1)), '
              'stride = (1, 1), transposed = false}')


def chain(result: str = "%s") -> Graph:
    shape = "f32[2, 16]" if result == "%s" else "f16[2, 16, 8, 8]"
    return parse_graph(f"""graph @g(%x: f16[2, 4, 8, 8], const %w: f16[16, 4, 3, 3], const %v: f16[16, 16, 3, 3]) -> ({shape}) {{
      %a: f16[2, 16, 8, 8] = library.convolution (%x, %w) {ATTRIBUTES}
      %b: f16[2, 16, 8, 8] = map [n, c, h, q] {{ f16(maximum(f32(%a[n, c, h, q]), 0.0:f32)) }}
      %d: f16[2, 16, 8, 8] = library.convolution (%b, %v) {ATTRIBUTES}
      %e: f16[2, 16, 8, 8] = map [n, c, h, q] {{ f16(add(f32(%d[n, c, h, q]), f32(%b[n, c, h, q]))) }}
      %s: f32[2, 16] = reduce.sum [n, c] over [h < 8, q < 8] {{ f32(%e[n, c, h, q]) }}
      return {result}
    }}""")


def test_everything_behind_the_first_convolution_is_channels_last() -> None:
    graph = chain()
    layouts = plan_layouts(graph, {}, {}, H200, "auto")
    assert set(layouts) == {"w", "v", "a", "b", "d", "e"}
    assert all(is_channels_last(s, graph.type_of(v).shape) for v, s in layouts.items())


def test_a_result_keeps_the_layout_that_the_caller_wants() -> None:
    graph = chain("%e")
    assert "e" not in plan_layouts(graph, {}, {}, H200, "auto")
    wanted = channels_last_strides((2, 16, 8, 8))
    assert plan_layouts(graph, {}, {"e": wanted}, H200, "auto")["e"] == wanted


def test_an_argument_that_is_channels_last_is_followed_without_constant_weights() -> None:
    graph = parse_graph("""graph @g(%x: f32[2, 4, 8, 8]) -> (f32[2]) {
      %a: f32[2, 4, 4, 8] = reduce.max [n, c, h, q] over [k < 2] { %x[n, c, 2*h + k, q] }
      %s: f32[2] = reduce.sum [n] over [c < 4, h < 4, q < 8] { %a[n, c, h, q] }
      return %s
    }""")
    given = {"x": channels_last_strides((2, 4, 8, 8))}
    assert plan_layouts(graph, given, {}, H200, "auto")["a"] == channels_last_strides((2, 4, 4, 8))


def test_a_gathered_bias_lies_as_all_read_it() -> None:
    """A table of one number a bucket and head, gathered as [rows, columns, heads], lies head by head for scores of all batches. It stays as
    it is where one map reads it otherwise, or no element several times."""
    def gathered(second: str, batch: int = 4) -> Graph:
        return parse_graph(f"""graph @g(%t: f32[32, 8], %i: i64[64, 48], %s: f32[{batch}, 8, 64, 48])
            -> (f32[{batch}, 8, 64, 48], f32[{batch}, 8, 64, 48]) {{
          %b: f32[64, 48, 8] = gather [r, c, h] {{ lookup(%t, %i[r, c], index(h)) }}
          %x: f32[{batch}, 8, 64, 48] = map [n, h, r, c] {{ add(%s[n, h, r, c], %b[r, c, h]) }}
          %y: f32[{batch}, 8, 64, 48] = map [n, h, r, c] {{ mul(%s[n, h, r, c], {second}) }}
          return %x, %y
        }}""")

    assert plan_layouts(gathered("%b[r, c, h]"), {}, {}, H200, "auto")["b"] == (48, 1, 64 * 48)
    for graph in (gathered("%b[r, 0, h]"), gathered("%b[r, c, (h // 2)]"), gathered("%b[r, c, h]", batch=1)):
        assert plan_layouts(graph, {}, {}, H200, "auto") == {}


def test_the_host_and_the_option_leave_all_row_major() -> None:
    assert plan_layouts(chain(), {}, {}, host_device(), "auto") == {}
    assert plan_layouts(chain(), {}, {}, H200, "never") == {}
    assert "a" in plan_layouts(chain(), {}, {}, host_device(), "always")


def deep(channels: int, size: int) -> Graph:
    """Two 3x3 convolutions by constants between row-major images."""
    image, weight = f"f32[1, {channels}, {size}, {size}]", f"f32[{channels}, {channels}, 3, 3]"
    return parse_graph(f"""graph @g(%x: {image}, const %w: {weight}, const %v: {weight}) -> ({image}) {{
      %a: {image} = library.convolution (%x, %w) {ATTRIBUTES}
      %b: {image} = map [n, c, h, q] {{ maximum(%a[n, c, h, q], 0.0:f32) }}
      %d: {image} = library.convolution (%b, %v) {ATTRIBUTES}
      return %d
    }}""")


def test_the_host_packs_weights_where_that_spares_more_than_turning_images() -> None:
    """Many weights for small images: channels last. Large images, or weights that are an argument: all row-major."""
    graph = deep(256, 14)
    assert {"w", "a", "b"} <= set(plan_layouts(graph, {}, {}, host_device(), "auto"))
    assert plan_layouts(deep(16, 56), {}, {}, host_device(), "auto") == {}
    given = replace(graph, inputs=tuple(replace(i, constant=i.name == "w") for i in graph.inputs))
    assert plan_layouts(given, {}, {}, host_device(), "auto") == {}


def test_an_update_is_planned_in_the_layout_of_its_input() -> None:
    graph = parse_graph("""graph @g(%x: f32[4, 8], %g: f32[4, 8]) -> () {
      %y: f32[4, 8] = map [i, j] { add(%x[i, j], %g[i, j]) }
      update %x = %y return }""")
    assert plan_layouts(graph, {"x": (1, 4)}, {}, H200, "auto")["y"] == (1, 4)


def test_library_results_lie_as_the_library_says() -> None:
    graph = parse_graph("""graph @g(%x: f32[4, 8]) -> (f32[8]) {
      %v: f32[8, 4] = map [i, j] { %x[j, i] }
      %y: f32[8, 4] = library.aten.foo.default (%v)
      %s: f32[8] = reduce.sum [i] over [k < 4] { %y[i, k] }
      return %s
    }""")
    asked = []

    def says_as_given(node, types, strides):  # type: ignore[no-untyped-def]
        asked.append((node.name, strides))
        return strides[0]

    assert plan_layouts(graph, {}, {}, H200, "auto", says_as_given)["y"] == (1, 8)
    assert asked == [("y", ((1, 8),))]


def test_channels_last_strides() -> None:
    assert channels_last_strides((2, 3, 4, 5)) == (60, 1, 15, 3)
    assert channels_last_strides((2, 3, 4, 5, 6)) == (360, 1, 90, 18, 3)
    assert not is_channels_last(row_major_strides((2, 3, 1, 1)), (2, 3, 1, 1))


def argument_weights(extent: int) -> Graph:
    """A convolution whose weight is an argument, and one whose weight is converted from an argument."""
    big = f"{extent}, {extent}"
    return parse_graph(f"""graph @g(%x: f16[8, 64, {big}], %w: f16[64, 64, 3, 3], %m: f32[64, 64, 3, 3]) -> (f32[8, 64]) {{
      %a: f16[8, 64, {big}] = library.convolution (%x, %w) {ATTRIBUTES}
      %v: f16[64, 64, 3, 3] = map [o, c, h, q] {{ f16(%m[o, c, h, q]) }}
      %b: f16[8, 64, {big}] = library.convolution (%a, %v) {ATTRIBUTES}
      %s: f32[8, 64] = reduce.sum [n, c] over [h < {extent}, q < {extent}] {{ f32(%b[n, c, h, q]) }}
      return %s
    }}""")


def test_an_argument_weight_is_packed_for_tensor_cores() -> None:
    graph = with_packed_weights(argument_weights(56), {}, H200, "auto")
    assert graph.node_by_name["a"].operands == ("x_packed", "w_packed") and graph.node_by_name["b"].operands == ("a", "v")
    assert set(plan_layouts(graph, {}, {}, H200, "auto")) == {"x_packed", "w_packed", "a", "v", "b"}
    small = with_packed_weights(argument_weights(4), {}, H200, "auto")
    assert small.node_by_name["a"].operands == ("x_packed", "w_packed"), "a small row-major call would pack the weight itself"
    assert with_packed_weights(argument_weights(56), {}, host_device(), "auto") == argument_weights(56)


def test_the_plan_packs_with_a_kernel_and_not_with_a_view() -> None:
    graph = with_packed_weights(argument_weights(56), {}, H200, "auto")
    plan = plan_graph(graph, {}, H200, Options(), layouts=plan_layouts(graph, {}, {}, H200, "auto"))
    assert plan.views == () and any("w_packed" in k.pattern.written for k in plan.kernels)


def test_gradients_of_argument_weights_are_packed_and_unpacked_by_kernels() -> None:
    attributes = ATTRIBUTES.replace("}", ", mask = (false, true, false), result = 1}")
    gradient = f"""graph @g(%d: f16[8, 64, 14, 14], %x: f16[8, 64, 14, 14], %w: f16[64, 64, 3, 3]) -> (f16[64, 64, 3, 3]) {{
      %g: f16[64, 64, 3, 3] = library.convolution_backward (%d, %x, %w) {attributes}
      return %g
    }}"""
    rows = {"g": row_major_strides((64, 64, 3, 3))}
    graph = with_packed_weights(parse_graph(gradient), {}, H200, "auto", wanted=rows)
    assert [n.name for n in graph.nodes] == ["x_packed", "w_packed", "g_packed", "g"]
    assert graph.node_by_name["g_packed"].operands == ("d", "x_packed", "w_packed")
    layouts = plan_layouts(graph, {}, {}, H200, "auto")
    assert set(layouts) == {"x_packed", "w_packed", "g_packed"}, "torch gets its gradient row-major"
    last = {"g": channels_last_strides((64, 64, 3, 3))}
    free = with_packed_weights(parse_graph(gradient), {}, H200, "auto", wanted=last)
    assert [n.name for n in free.nodes] == ["x_packed", "w_packed", "g"]


def test_a_lone_convolution_is_turned_by_kernels_on_both_sides() -> None:
    """cuDNN's kernels on tensor cores read channels last only: what lies row-major is turned either way."""
    graph = parse_graph(f"""graph @g(%x: f32[8, 64, 56, 56], %w: f32[64, 64, 3, 3]) -> (f32[8, 64, 56, 56]) {{
      %y: f32[8, 64, 56, 56] = library.convolution (%x, %w) {ATTRIBUTES}
      return %y
    }}""")
    packed = with_packed_weights(graph, {}, H200, "auto")
    assert [n.name for n in packed.nodes] == ["x_packed", "w_packed", "y_packed", "y"] and packed.results == ("y",)
    assert set(plan_layouts(packed, {}, {}, H200, "auto")) == {"x_packed", "w_packed", "y_packed"}
    last = {"x": channels_last_strides((8, 64, 56, 56))}
    wanted = {"y": channels_last_strides((8, 64, 56, 56))}
    assert [n.name for n in with_packed_weights(graph, last, H200, "auto", wanted=wanted).nodes] == ["w_packed", "y"]


def test_a_gradient_spread_over_an_image_follows_the_image() -> None:
    graph = parse_graph("""graph @g(%r: f32[8, 64, 7, 7], %m: f32[8, 64]) -> (f32[64]) {
      %e: f32[8, 64, 7, 7] = map [n, c, h, w] { %m[n, c] }
      %d: f32[8, 64, 7, 7] = map [n, c, h, w] { mul(%r[n, c, h, w], %e[n, c, h, w]) }
      %s: f32[64] = reduce.sum [c] over [n < 8, h < 7, w < 7] { %d[n, c, h, w] }
      return %s
    }""")
    last = channels_last_strides((8, 64, 7, 7))
    assert plan_layouts(graph, {"r": last}, {}, H200, "auto")["d"] == last
