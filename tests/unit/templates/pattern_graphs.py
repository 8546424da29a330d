"""Small patterns as graphs, with inputs and the rounding bound of each result: what schedules and composers are tried on.

Patterns without a bound must come out with equal bits: their inputs are small integers, or they only move and compare. Bounds are
first order in the unit roundoff, for any order of summation (Higham 2002, chapters 3 and 4).
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.ir.text import parse_graph

Arrays = dict[str, np.ndarray]

# Unit roundoff of each float; stored results of kernels whose results are all narrow may use the device's fast exponential.
ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
SMALLEST = {"f64": 2.0**-1074, "f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}
# An exponential, a reciprocal root or an error function is within this many roundoffs (CUDA C++ Programming Guide, table of
# single-precision functions: at most 2 units in the last place, which is 4 roundoffs).
FUNCTION_ROUNDOFFS = 4


@dataclass(frozen=True)
class Pattern:
    """A graph, how its inputs are drawn, and the largest absolute error of every result (None: equal bits)."""

    graph: Graph
    fill: Callable[[np.random.Generator, str, tuple[int, ...]], np.ndarray]
    bounds: Callable[[Arrays], list[np.ndarray]] | None = None

    def inputs(self, rng: np.random.Generator) -> Arrays:
        """Input arrays, in the inputs' dtypes."""
        return {i.name: self.fill(rng, i.name, i.type.shape).astype(NUMPY_DTYPES[i.type.dtype.name]) for i in self.graph.inputs}


def wide(text: str, dtype: str) -> str:
    """The expression in the type that arithmetic on `dtype` happens in."""
    return text if dtype in ("f32", "f64", "i64", "i32") else f"f32({text})"


def narrow(text: str, dtype: str) -> str:
    """The expression rounded to `dtype`."""
    return text if dtype in ("f32", "f64", "i64", "i32") else f"{dtype}({text})"


def computed(dtype: str) -> str:
    """The type that arithmetic on `dtype` happens in."""
    return dtype if dtype in ("f64", "i64", "i32") else "f32"


def integers(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Integers from -4 to 4: sums of thousands are exact in f32."""
    return rng.integers(-4, 5, shape)


def smooth(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Normal variates with a mean."""
    return rng.standard_normal(shape) + 0.5


def special_rows(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Normal variates; where there are rows enough, one holds a NaN, one an infinity, one nothing but -infinity, one many ties."""
    x = rng.standard_normal(shape)
    if x.ndim == 2 and shape[0] >= 5 and shape[1] >= 2:
        x[1, shape[1] // 2] = np.nan
        x[2, shape[1] - 1] = np.inf
        x[3] = -np.inf
        x[4] = np.round(x[4])
    return x


def softmax(rows: int, length: int, dtype: str = "f32") -> Pattern:
    """Softmax along the rows: a maximum, a sum of exponentials, a quotient; two reductions, the second depends on the first."""
    acc = computed(dtype)
    graph = parse_graph(f"""graph @softmax(%x: {dtype}[{rows}, {length}]) -> ({dtype}[{rows}, {length}]) {{
      %m: {acc}[{rows}] = reduce.max [i] over [k < {length}] {{ {wide("%x[i, k]", dtype)} }}
      %e: {acc}[{rows}, {length}] = map [i, j] {{ exp(sub({wide("%x[i, j]", dtype)}, %m[i])) }}
      %s: {acc}[{rows}] = reduce.sum [i] over [k < {length}] {{ %e[i, k] }}
      %y: {dtype}[{rows}, {length}] = map [i, j] {{ {narrow("div(%e[i, j], %s[i])", dtype)} }}
      return %y
    }}""")
    return Pattern(graph, special_rows, lambda arrays: [softmax_bound(arrays["x"], 1, dtype)])


def softmax_down(length: int, columns: int, dtype: str = "f32") -> Pattern:
    """Softmax along the first axis: reductions down the columns of memory."""
    acc = computed(dtype)
    graph = parse_graph(f"""graph @softmax_down(%x: {dtype}[{length}, {columns}]) -> ({dtype}[{length}, {columns}]) {{
      %m: {acc}[{columns}] = reduce.max [i] over [k < {length}] {{ {wide("%x[k, i]", dtype)} }}
      %e: {acc}[{length}, {columns}] = map [j, i] {{ exp(sub({wide("%x[j, i]", dtype)}, %m[i])) }}
      %s: {acc}[{columns}] = reduce.sum [i] over [k < {length}] {{ %e[k, i] }}
      %y: {dtype}[{length}, {columns}] = map [j, i] {{ {narrow("div(%e[j, i], %s[i])", dtype)} }}
      return %y
    }}""")
    return Pattern(graph, smooth, lambda arrays: [softmax_bound(arrays["x"], 0, dtype)])


def softmax_bound(x: np.ndarray, along: int, dtype: str) -> np.ndarray:
    """Rounding of x - m is amplified by its size in the exponential; the sum of positive terms has relative error n u."""
    x = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        off = x - x.max(along, keepdims=True)
        e = np.exp(off)
        y = e / e.sum(along, keepdims=True)
        unit = ROUNDOFF[computed(dtype)]
        relative = (x.shape[along] + 2 * np.max(np.where(np.isfinite(off), -off, 0), initial=0) + 4 * FUNCTION_ROUNDOFFS) * unit
        return y * (relative + (ROUNDOFF[dtype] if dtype != computed(dtype) else 0)) + SMALLEST[dtype]


def layer_norm(rows: int, length: int, dtype: str = "f32") -> Pattern:
    """Layer norm with weight and bias that also returns each row's mean and reciprocal deviation."""
    acc = computed(dtype)
    graph = parse_graph(f"""graph @layer_norm(%x: {dtype}[{rows}, {length}], %w: {dtype}[{length}], %b: {dtype}[{length}])
                            -> ({dtype}[{rows}, {length}], {acc}[{rows}], {acc}[{rows}]) {{
      %s: {acc}[{rows}] = reduce.sum [i] over [k < {length}] {{ {wide("%x[i, k]", dtype)} }}
      %q: {acc}[{rows}] = reduce.m2 [i] over [k < {length}] {{ {wide("%x[i, k]", dtype)} }}
      %mean: {acc}[{rows}] = map [i] {{ mul(%s[i], {1 / length}:{acc}) }}
      %rstd: {acc}[{rows}] = map [i] {{ rsqrt(add(mul(%q[i], {1 / length}:{acc}), 0.00001:{acc})) }}
      %y: {dtype}[{rows}, {length}] = map [i, j] {{ {narrow(f'''add(mul(mul(sub({wide("%x[i, j]", dtype)}, %mean[i]), %rstd[i]),
        {wide("%w[j]", dtype)}), {wide("%b[j]", dtype)})''', dtype)} }}
      return %y, %mean, %rstd
    }}""")
    return Pattern(graph, smooth, lambda arrays: layer_norm_bounds(arrays, dtype))


def normed_product(rows: int, length: int, dtype: str = "f32") -> Pattern:
    """The RMS norm of a vector times each row of a matrix, and a residual: all rows share the norm."""
    acc = computed(dtype)
    graph = parse_graph(f"""graph @normed_product(%x: {dtype}[1, {length}], %s: {dtype}[{length}], %w: {dtype}[{rows}, {length}],
                                %r: {dtype}[1, {rows}]) -> ({dtype}[1, {rows}]) {{
      %q: {acc}[1] = reduce.sum [i] over [k < {length}] {{ mul({wide("%x[0, k]", dtype)}, {wide("%x[0, k]", dtype)}) }}
      %f: {acc}[1] = map [i] {{ rsqrt(add(mul(%q[0], {1 / length}:{acc}), 0.00001:{acc})) }}
      %n: {acc}[1, {length}] = map [i, j] {{ mul(mul({wide("%x[0, j]", dtype)}, %f[0]), {wide("%s[j]", dtype)}) }}
      %t: {acc}[1, {rows}] = reduce.sum [i, j] over [k < {length}] {{ mul(%n[0, k], {wide("%w[j, k]", dtype)}) }}
      %y: {dtype}[1, {rows}] = map [i, j] {{ {narrow(f'add(%t[0, j], {wide("%r[0, j]", dtype)})', dtype)} }}
      return %y
    }}""")
    return Pattern(graph, smooth, lambda arrays: [normed_product_bound(arrays, dtype)])


def normed_product_bound(arrays: Arrays, dtype: str) -> np.ndarray:
    """A sum of n terms has error n u of their magnitudes; each term has the errors of the norm's factor and of three products."""
    x, s, w, r = (arrays[n].astype(np.float64) for n in "xswr")
    n, unit = x.shape[1], ROUNDOFF[computed(dtype)]
    factor = 1 / np.sqrt((x * x).mean() + 1e-5)
    terms = np.abs(x[0] * factor * s) @ np.abs(w).T
    y = (x[0] * factor * s) @ w.T + r[0]
    error = terms * (2 * n + FUNCTION_ROUNDOFFS + 8) * unit + unit * np.abs(y)
    return (error + (ROUNDOFF[dtype] * (np.abs(y) + error) if dtype != computed(dtype) else 0))[None] + SMALLEST[dtype]


def vector_product(rows: int, length: int, dtype: str = "f32") -> Pattern:
    """A vector times each row of a matrix, and a residual: all rows share the vector as it is."""
    acc = computed(dtype)
    graph = parse_graph(f"""graph @vector_product(%x: {dtype}[1, {length}], %w: {dtype}[{rows}, {length}],
                                %r: {dtype}[1, {rows}]) -> ({dtype}[1, {rows}]) {{
      %t: {acc}[1, {rows}] = reduce.sum [i, j] over [k < {length}] {{ mul({wide("%x[0, k]", dtype)}, {wide("%w[j, k]", dtype)}) }}
      %y: {dtype}[1, {rows}] = map [i, j] {{ {narrow(f'add(%t[0, j], {wide("%r[0, j]", dtype)})', dtype)} }}
      return %y
    }}""")

    def bounds(arrays: Arrays) -> list[np.ndarray]:
        """A sum of n terms has error n u of their magnitudes."""
        x, w, r = (arrays[n].astype(np.float64) for n in "xwr")
        unit = ROUNDOFF[computed(dtype)]
        error = (length + 2) * unit * (np.abs(x[0]) @ np.abs(w).T + np.abs(r[0]))
        y = x[0] @ w.T + r[0]
        return [(error + (ROUNDOFF[dtype] * (np.abs(y) + error) if dtype != computed(dtype) else 0))[None] + SMALLEST[dtype]]
    return Pattern(graph, smooth, bounds)


def residual_norm(rows: int, length: int, dtype: str = "f32") -> Pattern:
    """A sum that is a result, and its layer norm. The sum comes out with equal bits."""
    acc = computed(dtype)
    graph = parse_graph(f"""graph @residual_norm(%x: {dtype}[{rows}, {length}], %r: {dtype}[{rows}, {length}], %w: {dtype}[{length}],
                                %b: {dtype}[{length}]) -> ({dtype}[{rows}, {length}], {dtype}[{rows}, {length}]) {{
      %z: {dtype}[{rows}, {length}] = map [i, j] {{ {narrow(f'add({wide("%x[i, j]", dtype)}, {wide("%r[i, j]", dtype)})', dtype)} }}
      %s: {acc}[{rows}] = reduce.sum [i] over [k < {length}] {{ {wide("%z[i, k]", dtype)} }}
      %q: {acc}[{rows}] = reduce.m2 [i] over [k < {length}] {{ {wide("%z[i, k]", dtype)} }}
      %mean: {acc}[{rows}] = map [i] {{ mul(%s[i], {1 / length}:{acc}) }}
      %rstd: {acc}[{rows}] = map [i] {{ rsqrt(add(mul(%q[i], {1 / length}:{acc}), 0.00001:{acc})) }}
      %y: {dtype}[{rows}, {length}] = map [i, j] {{ {narrow(f'''add(mul(mul(sub({wide("%z[i, j]", dtype)}, %mean[i]), %rstd[i]),
        {wide("%w[j]", dtype)}), {wide("%b[j]", dtype)})''', dtype)} }}
      return %z, %y
    }}""")

    def bounds(arrays: Arrays) -> list[np.ndarray]:
        work = NUMPY_DTYPES[acc]
        z = (arrays["x"].astype(work) + arrays["r"].astype(work)).astype(arrays["x"].dtype)
        return [np.zeros(z.shape), layer_norm_bounds(arrays | {"x": z}, dtype)[0]]
    return Pattern(graph, smooth, bounds)


def layer_norm_bounds(arrays: Arrays, dtype: str) -> list[np.ndarray]:
    """Of y, the mean and the reciprocal deviation. The mean's error enters m2 only squared: n u relative is left of both."""
    x, w, b = (arrays[n].astype(np.float64) for n in "xwb")
    n, unit = x.shape[1], ROUNDOFF[computed(dtype)]
    mean = x.mean(1, keepdims=True)
    mean_error = (n + 2) * unit * np.abs(x).mean(1, keepdims=True)
    variance = ((x - mean) ** 2).mean(1, keepdims=True)
    # Each deviation is off by the roundings of x, the mean and their difference.
    deviation_error = mean_error + unit * (np.abs(x) + np.abs(mean))
    variance_error = (n + 8) * unit * variance + 2 * np.mean(np.abs(x - mean) * deviation_error, 1,
                                                             keepdims=True) + deviation_error.max(1, keepdims=True) ** 2
    rstd = 1 / np.sqrt(variance + 1e-5)
    rstd_error = rstd * (variance_error / (variance + 1e-5) / 2 + (FUNCTION_ROUNDOFFS + 4) * unit)
    normal = (x - mean) * rstd
    y_error = (deviation_error * rstd + np.abs(x - mean) * rstd_error + 4 * unit * np.abs(normal)) * np.abs(w) + 2 * unit * np.abs(b)
    if dtype != computed(dtype):
        y_error = y_error + ROUNDOFF[dtype] * (np.abs(normal * w + b) + y_error)
    return [y_error, mean_error[:, 0], rstd_error[:, 0]]


def batch_norm(n: int, c: int, h: int, w: int, dtype: str = "f32") -> Pattern:
    """Batch norm's training form over NCHW with a rectifier: statistics over three axes, two of them contiguous."""
    acc, count = computed(dtype), n * h * w
    over = f"over [n < {n}, h < {h}, w < {w}]"
    graph = parse_graph(f"""graph @batch_norm(%x: {dtype}[{n}, {c}, {h}, {w}], %g: {acc}[{c}]) -> ({dtype}[{n}, {c}, {h}, {w}], {acc}[{c}]) {{
      %q: {acc}[{c}] = reduce.m2 [c] {over} {{ {wide("%x[n, c, h, w]", dtype)} }}
      %s: {acc}[{c}] = reduce.sum [c] {over} {{ {wide("%x[n, c, h, w]", dtype)} }}
      %rstd: {acc}[{c}] = map [i] {{ rsqrt(add(mul(%q[i], {1 / count}:{acc}), 0.00001:{acc})) }}
      %y: {dtype}[{n}, {c}, {h}, {w}] = map [n, c, h, w] {{ {narrow(f'''maximum(mul(sub({wide("%x[n, c, h, w]", dtype)},
        mul(%s[c], {1 / count}:{acc})), mul(%rstd[c], %g[c])), 0.0:{acc})''', dtype)} }}
      return %y, %rstd
    }}""")

    def bounds(arrays: Arrays) -> list[np.ndarray]:
        x = np.moveaxis(arrays["x"], 1, 0).reshape(c, count)
        g = arrays["g"]
        out = []
        for row, gain in zip(x, g, strict=True):
            out.append(layer_norm_bounds({"x": row[None], "w": np.full(count, gain), "b": np.zeros(count)}, dtype))
        y = np.stack([o[0][0] for o in out]).reshape(c, n, h, w)
        return [np.moveaxis(y, 0, 1), np.concatenate([o[2] for o in out])]

    return Pattern(graph, smooth, bounds)


def group_norm(n: int, groups: int, channels: int, places: int, dtype: str = "f32") -> Pattern:
    """Group norm of scaled channels: gains, weights and biases are one value for all places of a channel."""
    acc, count = computed(dtype), channels * places
    shape, over = f"{n}, {groups}, {channels}, {places}", f"over [k < {channels}, p < {places}]"
    scaled = f"mul({wide('%x[i, j, k, p]', dtype)}, {wide('%gain[j, k]', dtype)})"
    normal = f"mul(sub({scaled}, mul(%s[i, j], {1 / count}:{acc})), %rstd[i, j])"
    result = narrow(f"add(mul({normal}, {wide('%w[j, k]', dtype)}), {wide('%b[j, k]', dtype)})", dtype)
    graph = parse_graph(f"""graph @group_norm(%x: {dtype}[{shape}], %gain: {dtype}[{groups}, {channels}], %w: {dtype}[{groups}, {channels}],
                                      %b: {dtype}[{groups}, {channels}]) -> ({dtype}[{shape}]) {{
      %s: {acc}[{n}, {groups}] = reduce.sum [i, j] {over} {{ {scaled} }}
      %q: {acc}[{n}, {groups}] = reduce.m2 [i, j] {over} {{ {scaled} }}
      %rstd: {acc}[{n}, {groups}] = map [i, j] {{ rsqrt(add(mul(%q[i, j], {1 / count}:{acc}), 0.00001:{acc})) }}
      %y: {dtype}[{shape}] = map [i, j, k, p] {{ {result} }}
      return %y
    }}""")

    def fill(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
        # Products of small integers are exact: only the norm rounds.
        return smooth(rng, name, shape) if name in "wb" else integers(rng, name, shape)

    def bounds(arrays: Arrays) -> list[np.ndarray]:
        def spread(name: str) -> np.ndarray:
            values = arrays[name].astype(np.float64)[None, :, :, None]
            return np.broadcast_to(values, (n, groups, channels, places)).reshape(n * groups, count)

        rows = arrays["x"].astype(np.float64).reshape(n * groups, count) * spread("gain")
        made = layer_norm_bounds({"x": rows, "w": spread("w"), "b": spread("b")}, dtype)[0]
        return [made.reshape(n, groups, channels, places)]

    return Pattern(graph, fill, bounds)


def cross_entropy(rows: int, length: int, dtype: str = "f32") -> Pattern:
    """Log-sum-exp of rows and each row's loss: maximum and sum of exponentials leave row results only, and one element is looked up."""
    acc = computed(dtype)
    graph = parse_graph(f"""graph @cross_entropy(%x: {dtype}[{rows}, {length}], %ids: i64[{rows}]) -> ({acc}[{rows}], {acc}[{rows}]) {{
      %m: {acc}[{rows}] = reduce.max [i] over [k < {length}] {{ {wide("%x[i, k]", dtype)} }}
      %s: {acc}[{rows}] = reduce.sum [i] over [k < {length}] {{ exp(sub({wide("%x[i, k]", dtype)}, %m[i])) }}
      %lse: {acc}[{rows}] = map [i] {{ add(%m[i], log(%s[i])) }}
      %loss: {acc}[{rows}] = gather [i] {{ sub(%lse[i], {wide("lookup(%x, index(i), %ids[i])", dtype)}) }}
      return %lse, %loss
    }}""")

    def fill(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return rng.integers(0, length, shape) if name == "ids" else special_rows(rng, name, shape)

    def bounds(arrays: Arrays) -> list[np.ndarray]:
        # The logarithm turns the sum's relative error into an absolute one.
        x = arrays["x"].astype(np.float64)
        top = x.max(1)
        unit = ROUNDOFF[acc]
        off = np.where(np.isfinite(x - top[:, None]), top[:, None] - x, 0).max(1, initial=0)
        size = np.abs(np.where(np.isfinite(top), top, 0)) + np.log(length)
        lse = (length + 4 * off + 4 * FUNCTION_ROUNDOFFS + 4 * size) * unit
        return [lse, lse + (size + np.abs(np.where(np.isfinite(x), x, 0)).max(1)) * unit]

    return Pattern(graph, fill, bounds)


def norm_backward(rows: int, length: int, groups: int, dtype: str = "f32") -> Pattern:
    """Two row sums, elements that depend on them, and two sums down groups of rows, in one read. Exact: integers."""
    acc, span = computed(dtype), -(-rows // groups)
    x, g = (wide(f"%{v}[i, j]", dtype) for v in "xg")

    def down(body: str) -> str:
        return f"reduce.sum [q, j] over [t < {span}] {{ guard(0 <= {groups}*t + q < {rows} ? {body} : 0.0:{acc}) }}"

    here = f"{groups}*t + q, j"
    return Pattern(parse_graph(f"""graph @norm_backward(%x: {dtype}[{rows}, {length}], %g: {dtype}[{rows}, {length}])
                                   -> ({acc}[{rows}, {length}], {acc}[{groups}, {length}], {acc}[{groups}, {length}]) {{
      %a: {acc}[{rows}] = reduce.sum [i] over [j < {length}] {{ mul({x}, {g}) }}
      %b: {acc}[{rows}] = reduce.sum [i] over [j < {length}] {{ {g} }}
      %dx: {acc}[{rows}, {length}] = map [i, j] {{ sub(add({g}, mul({x}, %a[i])), %b[i]) }}
      %dw: {acc}[{groups}, {length}] = {down(f"mul({wide(f'%x[{here}]', dtype)}, {wide(f'%g[{here}]', dtype)})")}
      %db: {acc}[{groups}, {length}] = {down(wide(f"%g[{here}]", dtype))}
      return %dx, %dw, %db
    }}"""), lambda rng, name, shape: rng.integers(-2, 3, shape))


def row_sum(rows: int, length: int, dtype: str = "f32") -> Pattern:
    """Sums of rows. Exact: integers."""
    return Pattern(parse_graph(f"""graph @row_sum(%x: {dtype}[{rows}, {length}]) -> ({computed(dtype)}[{rows}]) {{
      %s: {computed(dtype)}[{rows}] = reduce.sum [i] over [k < {length}] {{ {wide("%x[i, k]", dtype)} }}
      return %s
    }}"""), integers)


def row_sum_of_one_image(rows: int, height: int, width: int, dtype: str = "f32") -> Pattern:
    """Sums of rows, also over an axis of extent 1 that no operand has: gradients of the biases of one image. Exact: integers."""
    acc = computed(dtype)
    return Pattern(parse_graph(f"""graph @one_image(%x: {dtype}[{rows}, {height}, {width}]) -> ({acc}[{rows}]) {{
      %s: {acc}[{rows}] = reduce.sum [j] over [i < 1, k < {height}, l < {width}] {{ {wide("%x[j, k, l]", dtype)} }}
      return %s
    }}"""), integers)


def column_sum_of_one_image(rows: int, columns: int, dtype: str = "f32") -> Pattern:
    """Sums of columns, with axes of extent 1 that no operand has. Exact: integers."""
    acc = computed(dtype)
    return Pattern(parse_graph(f"""graph @one_image(%x: {dtype}[{rows}, {columns}]) -> ({acc}[1, {columns}]) {{
      %s: {acc}[1, {columns}] = reduce.sum [h, j] over [i < 1, k < {rows}] {{ {wide("%x[k, j]", dtype)} }}
      return %s
    }}"""), integers)


def row_sums(rows: int, length: int, dtype: str = "f32") -> Pattern:
    """Four sums of each row in one read. Exact: integers."""
    acc, x = computed(dtype), wide("%x[i, k]", dtype)
    bodies = {"s": x, "q": f"mul({x}, {x})", "a": f"abs({x})", "n": f"neg({x})"}
    reductions = "\n".join(f"%{name}: {acc}[{rows}] = reduce.sum [i] over [k < {length}] {{ {body} }}" for name, body in bodies.items())
    return Pattern(parse_graph(f"""graph @row_sums(%x: {dtype}[{rows}, {length}])
                                   -> ({acc}[{rows}], {acc}[{rows}], {acc}[{rows}], {acc}[{rows}]) {{
      {reductions}
      return %s, %q, %a, %n
    }}"""), integers)


def row_distances(rows: int, length: int, dtype: str = "f32") -> Pattern:
    """Sum of each row's distances from its largest element: two walks over the row, and no element is written. Exact: integers."""
    acc, x = computed(dtype), wide("%x[i, k]", dtype)
    return Pattern(parse_graph(f"""graph @row_distances(%x: {dtype}[{rows}, {length}]) -> ({acc}[{rows}]) {{
      %m: {acc}[{rows}] = reduce.max [i] over [k < {length}] {{ {x} }}
      %d: {acc}[{rows}] = reduce.sum [i] over [k < {length}] {{ abs(sub({x}, %m[i])) }}
      return %d
    }}"""), integers)


def row_extremes(rows: int, length: int, dtype: str = "f32") -> Pattern:
    """Maximum, minimum and both positions of each row, with NaNs, infinities and ties."""
    acc = computed(dtype)
    reductions = "\n".join(f"""%{name}: {result}[{rows}] = reduce.{name} [i] over [k < {length}] {{ {wide("%x[i, k]", dtype)} }}"""
                           for name, result in (("max", acc), ("min", acc), ("argmax", "i64"), ("argmin", "i64")))
    return Pattern(parse_graph(f"""graph @row_extremes(%x: {dtype}[{rows}, {length}]) -> ({acc}[{rows}], {acc}[{rows}], i64[{rows}], i64[{rows}]) {{
      {reductions}
      return %max, %min, %argmax, %argmin
    }}"""), special_rows if dtype != "i64" else integers)


def column_sum(length: int, columns: int, dtype: str = "f32") -> Pattern:
    """Sums of columns. Exact: integers."""
    return Pattern(parse_graph(f"""graph @column_sum(%x: {dtype}[{length}, {columns}]) -> ({computed(dtype)}[{columns}]) {{
      %s: {computed(dtype)}[{columns}] = reduce.sum [i] over [k < {length}] {{ {wide("%x[k, i]", dtype)} }}
      return %s
    }}"""), integers)


def middle_statistics(images: int, rows: int, columns: int, dtype: str = "f32") -> Pattern:
    """Weighted sums over the middle axis, halved, and where the greatest elements are. Exact: integers."""
    acc = computed(dtype)
    x = wide("%x[i, k, j]", dtype)
    return Pattern(parse_graph(f"""graph @middle_statistics(%x: {dtype}[{images}, {rows}, {columns}], %w: {acc}[{columns}])
                                   -> ({acc}[{images}, {columns}], i64[{images}, {columns}]) {{
      %s: {acc}[{images}, {columns}] = reduce.sum [i, j] over [k < {rows}] {{ mul({x}, %w[j]) }}
      %y: {acc}[{images}, {columns}] = map [i, j] {{ mul(%s[i, j], 0.5:{acc}) }}
      %a: i64[{images}, {columns}] = reduce.argmax [i, j] over [k < {rows}] {{ {x} }}
      return %y, %a
    }}"""), integers)


def column_deviation(length: int, columns: int) -> Pattern:
    """Squared deviations of columns from their mean."""
    graph = parse_graph(f"""graph @column_deviation(%x: f32[{length}, {columns}]) -> (f32[{columns}]) {{
      %q: f32[{columns}] = reduce.m2 [i] over [k < {length}] {{ %x[k, i] }}
      return %q
    }}""")

    def bounds(arrays: Arrays) -> list[np.ndarray]:
        # Welford's update has error n u kappa, kappa^2 = sum x^2 / m2. Source: Chan and Lewis 1979, CACM 22(9).
        x = arrays["x"].astype(np.float64)
        m2 = ((x - x.mean(0)) ** 2).sum(0)
        return [(length + 8) * ROUNDOFF["f32"] * np.sqrt(m2 * (x * x).sum(0))]

    return Pattern(graph, smooth, bounds)


def full_sum(rows: int, columns: int, dtype: str = "f32") -> Pattern:
    """The sum of all elements and their largest position. Exact: integers."""
    over = f"over [k < {rows}, l < {columns}]"
    return Pattern(parse_graph(f"""graph @full_sum(%x: {dtype}[{rows}, {columns}]) -> ({computed(dtype)}[], i64[]) {{
      %s: {computed(dtype)}[] = reduce.sum [] {over} {{ {wide("%x[k, l]", dtype)} }}
      %at: i64[] = reduce.argmax [] {over} {{ {wide("%x[k, l]", dtype)} }}
      return %s, %at
    }}"""), integers)


def written_and_summed(rows: int, columns: int, over: str, dtype: str = "f32") -> Pattern:
    """A map that is a result, and the sums of its products with another operand: of rows, columns or all. Exact: integers."""
    shape, axes, reduced, at = {
        "rows": (f"[{rows}]", "i", f"k < {columns}", "i, k"), "columns": (f"[{columns}]", "j", f"k < {rows}", "k, j"),
        "all": ("[]", "", f"k < {rows}, l < {columns}", "k, l")}[over]
    work = computed(dtype)
    body = f"add({wide('%x[i, j]', dtype)}, mul({wide('%y[i, j]', dtype)}, {wide('%y[i, j]', dtype)}))"
    return Pattern(parse_graph(f"""graph @written_and_summed_{over}(%x: {dtype}[{rows}, {columns}], %y: {dtype}[{rows}, {columns}],
                                       %u: {dtype}[{rows}, {columns}]) -> ({dtype}[{rows}, {columns}], {work}{shape}) {{
      %z: {dtype}[{rows}, {columns}] = map [i, j] {{ {narrow(body, dtype)} }}
      %s: {work}{shape} = reduce.sum [{axes}] over [{reduced}] {{ mul({wide(f'%z[{at}]', dtype)}, {wide(f'%u[{at}]', dtype)}) }}
      return %z, %s
    }}"""), integers)


def scaled_row_sum(rows: int, columns: int) -> Pattern:
    """Sums of rows that are shifted by an operand of the row, which the result needs as well. Exact: integers."""
    return Pattern(parse_graph(f"""graph @scaled_row_sum(%x: f32[{rows}, {columns}], %b: f32[{rows}]) -> (f32[{rows}]) {{
      %z: f32[{rows}, {columns}] = map [i, k] {{ maximum(add(%x[i, k], %b[i]), 0.0:f32) }}
      %s: f32[{rows}] = reduce.sum [i] over [k < {columns}] {{ %z[i, k] }}
      %y: f32[{rows}] = map [i] {{ add(%s[i], mul(%b[i], 7.0:f32)) }}
      return %y
    }}"""), integers)


def weighted_row_sum(rows: int, columns: int, dtype: str = "f32") -> Pattern:
    """A matrix times a vector, which all rows share. Exact: integers."""
    return Pattern(parse_graph(f"""graph @weighted_row_sum(%x: {dtype}[{rows}, {columns}], %w: {dtype}[{columns}]) -> ({dtype}[{rows}]) {{
      %s: {dtype}[{rows}] = reduce.sum [i] over [k < {columns}] {{ mul(%x[i, k], %w[k]) }}
      return %s
    }}"""), integers)


def transpose(rows: int, columns: int, dtype: str = "f32") -> Pattern:
    """A matrix turned. Exact: nothing is computed."""
    return Pattern(parse_graph(f"""graph @transpose(%x: {dtype}[{rows}, {columns}]) -> ({dtype}[{columns}, {rows}]) {{
      %y: {dtype}[{columns}, {rows}] = map [i, j] {{ %x[j, i] }}
      return %y
    }}"""), integers)


def transposed_add(batch: int, rows: int, columns: int) -> Pattern:
    """Matrices turned and added to ones that are not: one operand passes through shared memory, the other does not."""
    return Pattern(parse_graph(f"""graph @transposed_add(%x: f32[{batch}, {rows}, {columns}], %z: f32[{batch}, {columns}, {rows}])
                                   -> (f32[{batch}, {columns}, {rows}]) {{
      %y: f32[{batch}, {columns}, {rows}] = map [b, i, j] {{ add(%x[b, j, i], %z[b, i, j]) }}
      return %y
    }}"""), integers)


def kept_and_turned(batch: int, rows: int, columns: int, dtype: str = "f32") -> Pattern:
    """A result as it lies and a turned one whose rows are one axis, of two operands. Exact: sums of small integers."""
    shape, turned = f"{dtype}[{batch}, {rows}, {columns}]", f"{dtype}[{batch * columns}, {rows}]"
    wide = {"f16": "f32", "bf16": "f32", "i8": "i32"}.get(dtype, dtype)
    total = f"add({wide}(%x[b, i, j]), {wide}(%z[b, i, j]))"
    return Pattern(parse_graph(f"""graph @kept_and_turned(%x: {shape}, %z: {shape}) -> ({shape}, {turned}) {{
      %y: {shape} = map [b, i, j] {{ {dtype}({total}) }}
      %t: {turned} = map [r, i] {{ %y[(r // {columns}), i, (r % {columns})] }}
      return %y, %t
    }}"""), integers)


def turned_rows(batch: int, rows: int, columns: int, dtype: str = "f32") -> Pattern:
    """Matrices turned whose rows are one axis of the result. Exact: nothing is computed."""
    turned = f"{dtype}[{batch * columns}, {rows}]"
    return Pattern(parse_graph(f"""graph @turned_rows(%x: {dtype}[{batch}, {rows}, {columns}]) -> ({turned}) {{
      %t: {turned} = map [r, i] {{ %x[(r // {columns}), i, (r % {columns})] }}
      return %t
    }}"""), integers)


def channels_last(images: int, channels: int, height: int, width: int, dtype: str = "f32") -> Pattern:
    """Images with their channels moved to the end: the pixels of an image are one axis. Exact: nothing is computed."""
    shape = f"{images}, {height}, {width}, {channels}"
    return Pattern(parse_graph(f"""graph @channels_last(%x: {dtype}[{images}, {channels}, {height}, {width}]) -> ({dtype}[{shape}]) {{
      %y: {dtype}[{shape}] = map [n, h, w, c] {{ %x[n, c, h, w] }}
      return %y
    }}"""), integers)


def turned_channels(images: int, places: int, channels: int) -> Pattern:
    """Channels moved before the places, scaled and shifted by what all places of a channel, or of four channels, share. Exact: integers."""
    shape = f"{images}, {channels}, {places}"
    return Pattern(parse_graph(f"""graph @turned_channels(%x: f32[{images}, {places}, {channels}], %w: f32[{channels}],
                                                          %m: f32[{images}, {channels // 4}]) -> (f32[{shape}]) {{
      %y: f32[{shape}] = map [n, c, p] {{ add(mul(%x[n, p, c], %w[c]), mul(%m[n, (c // 4)], %m[n, (c // 4)])) }}
      return %y
    }}"""), integers)


def groups_of_lanes(images: int, places: int, channels: int) -> Pattern:
    """A sum over each four channels, added to all of their places: the four are one vector, whose sum is the same. Exact: integers."""
    shape = f"{images}, {places}, {channels}"
    return Pattern(parse_graph(f"""graph @groups_of_lanes(%x: f32[{shape}], %q: f32[{images}, {channels}]) -> (f32[{shape}]) {{
      %s: f32[{images}, {channels // 4}] = reduce.sum [n, g] over [k < 4] {{ %q[n, 4 * g + k] }}
      %y: f32[{shape}] = map [n, p, c] {{ add(%x[n, p, c], %s[n, (c // 4)]) }}
      return %y
    }}"""), integers)


def turned_sum(rows: int, columns: int, operands: int) -> Pattern:
    """The sum of several matrices, turned: all of them pass through shared memory."""
    names = [f"x{n}" for n in range(operands)]
    inputs = ", ".join(f"%{name}: f32[{rows}, {columns}]" for name in names)
    total = f"%{names[0]}[j, i]"
    for name in names[1:]:
        total = f"add({total}, %{name}[j, i])"
    return Pattern(parse_graph(f"""graph @turned_sum({inputs}) -> (f32[{columns}, {rows}]) {{
      %y: f32[{columns}, {rows}] = map [i, j] {{ {total} }}
      return %y
    }}"""), integers)


def running_sum(rows: int, length: int, dtype: str = "f32") -> Pattern:
    """Prefix sums of rows. Exact: integers."""
    acc = computed(dtype)
    return Pattern(parse_graph(f"""graph @running_sum(%x: {dtype}[{rows}, {length}]) -> ({acc}[{rows}, {length}]) {{
      %y: {acc}[{rows}, {length}] = scan.sum [i, j] along j {{ {wide("%x[i, j]", dtype)} }}
      return %y
    }}"""), integers)


def running_sum_behind_zero(rows: int, length: int) -> Pattern:
    """Prefix sums that begin with a zero: results in rows one longer than what they are made of. Exact: integers."""
    return Pattern(parse_graph(f"""graph @running_sum_behind_zero(%x: f32[{rows}, {length}]) -> (f32[{rows}, {length + 1}]) {{
      %y: f32[{rows}, {length + 1}] = scan.sum [i, j] along j {{ guard(0 <= j < 1 ? 0.0:f32 : %x[i, j + -1]) }}
      return %y
    }}"""), integers)


def written_and_scanned(rows: int, length: int) -> Pattern:
    """A map and the prefix sums of what it reads in one kernel: the map depends on no reduction. Exact: integers."""
    return Pattern(parse_graph(f"""graph @written_and_scanned(%x: i32[{rows}, {length}]) -> (i32[{rows}, {length}], i32[{rows}, {length}]) {{
      %t: i32[{rows}, {length}] = map [i, j] {{ add(%x[i, j], %x[i, j]) }}
      %y: i32[{rows}, {length}] = scan.sum [i, j] along j {{ %x[i, j] }}
      return %t, %y
    }}"""), integers)


def bias_gelu(rows: int, columns: int, dtype: str = "f16") -> Pattern:
    """x + b through the exact GELU; two results, the sum and the activation."""
    acc = computed(dtype)
    graph = parse_graph(f"""graph @bias_gelu(%x: {dtype}[{rows}, {columns}], %b: {dtype}[{columns}])
                            -> ({dtype}[{rows}, {columns}], {acc}[{rows}, {columns}]) {{
      %t: {acc}[{rows}, {columns}] = map [i, j] {{ add({wide("%x[i, j]", dtype)}, {wide("%b[j]", dtype)}) }}
      %y: {dtype}[{rows}, {columns}] = map [i, j] {{ {narrow(f'''mul(mul(0.5:{acc}, %t[i, j]),
        add(1.0:{acc}, erf(mul(%t[i, j], {0.5**0.5}:{acc}))))''', dtype)} }}
      return %y, %t
    }}""")

    def bounds(arrays: Arrays) -> list[np.ndarray]:
        unit = ROUNDOFF[acc]
        t = arrays["x"].astype(np.float64) + arrays["b"].astype(np.float64)
        # erf has slope at most 1.13 and 1 + erf lies in [0, 2]; storing rounds once more.
        y = np.abs(t) * (0.6 * 2 * np.abs(t) + 2 * FUNCTION_ROUNDOFFS + 4) * unit + 2 * unit * np.abs(t)
        return [y + (ROUNDOFF[dtype] * np.abs(t) + SMALLEST[dtype] if dtype != acc else 0), unit * np.abs(t)]

    return Pattern(graph, smooth, bounds)


def scaled_columns(rows: int, columns: int, dtype: str = "f32") -> Pattern:
    """x w^2 + b down columns: what depends on the column alone is a value of its own. Exact: small integers."""
    acc = computed(dtype)
    return Pattern(parse_graph(f"""graph @scaled_columns(%x: {dtype}[{rows}, {columns}], %w: {acc}[{columns}], %b: {acc}[{columns}])
                                   -> ({dtype}[{rows}, {columns}]) {{
      %k: {acc}[{columns}] = map [j] {{ mul(%w[j], %w[j]) }}
      %y: {dtype}[{rows}, {columns}] = map [i, j] {{ {narrow(f"add(mul({wide('%x[i, j]', dtype)}, %k[j]), %b[j])", dtype)} }}
      return %y
    }}"""), integers)


def concatenation(rows: int, left: int, right: int, dtype: str = "f32") -> Pattern:
    """Two matrices side by side, each padded read behind a guard. Exact: nothing is computed."""
    whole = left + right
    return Pattern(parse_graph(f"""graph @concatenation(%x: {dtype}[{rows}, {left}], %z: {dtype}[{rows}, {right}]) -> ({dtype}[{rows}, {whole}]) {{
      %y: {dtype}[{rows}, {whole}] = map [i, j] {{ guard(0 <= j < {left} ? %x[i, j] : %z[i, j + {-left}]) }}
      return %y
    }}"""), integers)


def three_pieces(rows: int, widths: tuple[int, int, int], dtype: str = "f32") -> Pattern:
    """Three matrices side by side plus the first of them padded; one is read on two paths, guards stand in guards. Exact: integers."""
    a, b, c = widths
    whole = a + b + c
    return Pattern(parse_graph(f"""graph @three_pieces(%x: {dtype}[{rows}, {a}], %y: {dtype}[{rows}, {b}], %z: {dtype}[{rows}, {c}])
                                   -> ({dtype}[{rows}, {whole}], {dtype}[{rows}, {whole}]) {{
      %joined: {dtype}[{rows}, {whole}] = map [i, j] {{ guard(0 <= j < {a} ? %x[i, j] :
        guard(0 <= j + {-a} < {b} ? %y[i, j + {-a}] : %z[i, j + {-a - b}])) }}
      %ends: {dtype}[{rows}, {whole}] = map [i, j] {{ guard(0 <= i < {rows - 1}, 0 <= j + {-b - c} < {a} ? %x[i, j + {-b - c}] :
        guard(0 <= j < {a} ? %x[i, j] : 7.0:{dtype})) }}
      return %joined, %ends
    }}"""), integers)


def padded(rows: int, columns: int, before: int, after: int, dtype: str = "f32") -> Pattern:
    """A matrix with a margin on each side, doubled. Exact: integers."""
    whole = before + columns + after
    inside = f"guard(0 <= j + {-before} < {columns} ? %x[i, j + {-before}] : 0.0:{dtype})"
    return Pattern(parse_graph(f"""graph @padded(%x: {dtype}[{rows}, {columns}]) -> ({dtype}[{rows}, {whole}]) {{
      %y: {dtype}[{rows}, {whole}] = map [i, j] {{ add({inside}, {inside}) }}
      return %y
    }}"""), integers)


def max_pool(n: int, c: int, h: int, w: int) -> Pattern:
    """Windows of 3 by 3, two apart, one of padding. Exact: nothing is computed."""
    rows, columns = "2*h + p + -1", "2*w + q + -1"
    return Pattern(parse_graph(f"""graph @max_pool(%x: f32[{n}, {c}, {h}, {w}]) -> (f32[{n}, {c}, {h // 2}, {w // 2}]) {{
      %y: f32[{n}, {c}, {h // 2}, {w // 2}] = reduce.max [n, c, h, w] over [p < 3, q < 3] {{
        guard(0 <= {rows} < {h}, 0 <= {columns} < {w} ? %x[n, c, {rows}, {columns}] : -inf:f32) }}
      return %y
    }}"""), smooth)


def embedding(words: int, length: int, count: int, dtype: str = "f16") -> Pattern:
    """Rows of a table by number; numbers out of range are clamped. Exact: nothing is computed."""
    def fill(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return rng.integers(-2, words + 2, shape) if name == "ids" else smooth(rng, name, shape)

    return Pattern(parse_graph(f"""graph @embedding(%t: {dtype}[{words}, {length}], %ids: i64[{count}]) -> ({dtype}[{count}, {length}]) {{
      %y: {dtype}[{count}, {length}] = gather [i, j] {{ lookup(%t, %ids[i], index(j)) }}
      return %y
    }}"""), fill)


def checked_embedding(words: int, length: int, count: int, dtype: str = "f16") -> Pattern:
    """Rows of a table by number, negative ones from the end, where a number out of range is an error."""
    def fill(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return rng.integers(-words, words, shape) if name == "ids" else smooth(rng, name, shape)

    wrapped = f"select(lt(%ids[i], 0:i64), add(%ids[i], {words}:i64), %ids[i])"
    return Pattern(parse_graph(f"""graph @checked_embedding(%t: {dtype}[{words}, {length}], %ids: i64[{count}]) -> ({dtype}[{count}, {length}]) {{
      %y: {dtype}[{count}, {length}] = gather [i, j] {{ lookup(%t, in_range({wrapped}, {words}:i64), index(j)) }}
      return %y
    }}"""), fill)


def token_embedding(words: int, length: int, batch: int, count: int) -> Pattern:
    """Rows of a table by number plus a row by position, as a language model starts. Exact: integers."""
    def fill(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return rng.integers(-2, words + 2, shape) if name == "ids" else integers(rng, name, shape)

    return Pattern(parse_graph(f"""graph @token_embedding(%t: f16[{words}, {length}], %p: f32[{count}, {length}], %ids: i32[{batch}, {count}])
                                   -> (f32[{batch}, {count}, {length}]) {{
      %y: f32[{batch}, {count}, {length}] = gather [b, i, j] {{ add(f32(lookup(%t, add(%ids[b, i], 1:i32), index(j))), %p[i, j]) }}
      return %y
    }}"""), fill)


def embedding_sum(words: int, length: int, count: int) -> Pattern:
    """Looked-up rows of two tables, their sum and the sum of each row: as an embedding followed by a norm. Exact: integers."""
    def fill(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return rng.integers(-2, words + 2, shape) if name in ("ids", "kinds") else integers(rng, name, shape)

    return Pattern(parse_graph(f"""graph @embedding_sum(%t: f16[{words}, {length}], %u: f16[3, {length}], %ids: i64[{count}], %kinds: i64[{count}])
                                   -> (f32[{count}, {length}]) {{
      %e: f32[{count}, {length}] = gather [i, j] {{ add(f32(lookup(%t, %ids[i], index(j))), f32(lookup(%u, %kinds[i], index(j)))) }}
      %s: f32[{count}] = reduce.sum [i] over [k < {length}] {{ %e[i, k] }}
      %y: f32[{count}, {length}] = map [i, j] {{ sub(%e[i, j], %s[i]) }}
      return %y
    }}"""), fill)


def scatter_add(words: int, length: int, count: int) -> Pattern:
    """Rows added to those of a table by number; numbers out of range are dropped. Exact: integers."""
    def fill(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return rng.integers(-1, words + 1, shape) if name == "ids" else integers(rng, name, shape)

    return Pattern(parse_graph(f"""graph @scatter_add(%t: f32[{words}, {length}], %ids: i64[{count}], %g: f32[{count}, {length}])
                                   -> (f32[{words}, {length}]) {{
      %y: f32[{words}, {length}] = scatter.sum over [i < {count}, j < {length}] into %t at [%ids[i], index(j)] {{ %g[i, j] }}
      return %y
    }}"""), fill)
