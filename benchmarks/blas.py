"""Sequences of BLAS calls: the eleven of the paper's table 1, and three iterations of solvers, as scripts and as torch and JAX functions.

torch's forms use the calls that reach cuBLAS (addmv, addr, dot). Small sizes stay in the cache between calls only if they would in a
program: as for all cases, the inputs alternate between sets that do not fit in it. Source: Filipovic et al., "Optimizing CUDA Code by
Kernel Fusion: Application on BLAS", table 1.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import DTYPES, Case, Inputs, Tensors
from benchmarks.cublas import symv

ALPHA, BETA = 0.75, -0.5
VECTORS = tuple(2**k for k in (16, 18, 20, 22, 24, 26))
SIDES = (512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True)
class Linear:
    """One sequence. `script` is in single precision; `arguments`: m (matrix), h (symmetric matrix), v (vector), s (scalar) in its order.

    min_speedup: ratio to the best peer asked of tilefuse; of solvers' iterations to eager torch, which is cuBLAS, in a graph
    again: matrices that must be read a second time, because what they are multiplied with depends on all of their first reading; less
        than 0 where part of one need not be read at all
    eager: what eager torch runs, where it is not `function`
    """

    name: str
    script: str
    arguments: str
    function: Callable[..., Any]
    jax: Callable[..., Any]
    min_speedup: float = 0.99
    min_of_limit: float = 0.93
    again: float = 0
    eager: Callable[..., Any] | None = None

    @property
    def on_matrices(self) -> bool:
        """Whether sizes are those of matrices."""
        return bool({"m", "h"} & set(self.arguments))


# -- torch -------------------------------------------------------------------------------------------------------------------

def axpydot(w: Tensor, v: Tensor, u: Tensor) -> Tensors:
    """z = w - a v, r = z.u"""
    z = torch.sub(w, v, alpha=ALPHA)
    return z, torch.dot(z, u)


def atax(a: Tensor, x: Tensor) -> Tensor:
    """y = A' A x"""
    return a.t() @ (a @ x)


def bicgk(a: Tensor, p: Tensor, r: Tensor) -> Tensors:
    """q = A p, s = A' r"""
    return a @ p, a.t() @ r


def gemv(a: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """z = a A x + b y"""
    return torch.addmv(y, a, x, alpha=ALPHA, beta=BETA)


def gemvt(a: Tensor, y: Tensor, z: Tensor) -> Tensors:
    """x = b A' y + z, w = a A x"""
    x = torch.addmv(z, a.t(), y, alpha=BETA)
    return x, ALPHA * (a @ x)


def scal(x: Tensor) -> Tensor:
    """x = a x"""
    return ALPHA * x


def gemver(a: Tensor, u1: Tensor, v1: Tensor, u2: Tensor, v2: Tensor, y: Tensor, z: Tensor) -> Tensors:
    """B = A + u1 v1' + u2 v2', x = b B' y + z, w = a B x"""
    b = torch.addr(torch.addr(a, u1, v1), u2, v2)
    x = torch.addmv(z, b.t(), y, alpha=BETA)
    return b, x, ALPHA * (b @ x)


def gesummv(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """y = a A x + b B x"""
    return torch.addmv(ALPHA * (a @ x), b, x, alpha=BETA)


def madd(a: Tensor, b: Tensor) -> Tensor:
    """C = A + B"""
    return a + b


def vadd(w: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """x = w + y + z"""
    return w + y + z


def waxpby(x: Tensor, y: Tensor) -> Tensor:
    """w = a x + b y"""
    return ALPHA * x + BETA * y


def conjugate_gradient(a: Tensor, x: Tensor, r: Tensor, p: Tensor, rr: Tensor) -> Tensors:
    """One iteration for symmetric A: x, r, p and r.r of the next."""
    return _conjugate_gradient(a @ p, x, r, p, rr)


def conjugate_gradient_symv(a: Tensor, x: Tensor, r: Tensor, p: Tensor, rr: Tensor) -> Tensors:
    """The same by cuBLAS's function for symmetric matrices."""
    return _conjugate_gradient(symv(a, p), x, r, p, rr)


def _conjugate_gradient(q: Tensor, x: Tensor, r: Tensor, p: Tensor, rr: Tensor) -> Tensors:
    step = rr / torch.dot(p, q)
    x = x + step * p
    r = r - step * q
    new = torch.dot(r, r)
    return x, r, r + (new / rr) * p, new


def bicgstab(a: Tensor, x: Tensor, r: Tensor, shadow: Tensor, p: Tensor, rho: Tensor) -> Tensors:
    """One iteration: x, r, p and rho of the next."""
    v = a @ p
    alpha = rho / torch.dot(shadow, v)
    s = r - alpha * v
    t = a @ s
    omega = torch.dot(t, s) / torch.dot(t, t)
    x = x + alpha * p + omega * s
    r = s - omega * t
    new = torch.dot(shadow, r)
    return x, r, r + (new / rho) * (alpha / omega) * (p - omega * v), new


def power_step(a: Tensor, x: Tensor) -> Tensors:
    """y = A x / |A x|, and the Rayleigh quotient x.A x"""
    return _power_step(a @ x, x)


def power_step_symv(a: Tensor, x: Tensor) -> Tensors:
    """The same by cuBLAS's function for symmetric matrices."""
    return _power_step(symv(a, x), x)


def _power_step(y: Tensor, x: Tensor) -> Tensors:
    return y / torch.sqrt(torch.dot(y, y)), torch.dot(x, y)


# -- JAX ---------------------------------------------------------------------------------------------------------------------

def _dot(a: Any, b: Any) -> Any:
    import jax.numpy as jnp
    from jax.lax import Precision

    return jnp.dot(a, b, precision=Precision.HIGHEST)


def _gemver_jax(a: Any, u1: Any, v1: Any, u2: Any, v2: Any, y: Any, z: Any) -> Any:
    b = a + u1[:, None] * v1 + u2[:, None] * v2
    x = BETA * _dot(b.T, y) + z
    return b, x, ALPHA * _dot(b, x)


def _gemvt_jax(a: Any, y: Any, z: Any) -> Any:
    x = BETA * _dot(a.T, y) + z
    return x, ALPHA * _dot(a, x)


def _axpydot_jax(w: Any, v: Any, u: Any) -> Any:
    z = w - ALPHA * v
    return z, _dot(z, u)


def _cg_jax(a: Any, x: Any, r: Any, p: Any, rr: Any) -> Any:
    q = _dot(a, p)
    step = rr / _dot(p, q)
    r = r - step * q
    new = _dot(r, r)
    return x + step * p, r, r + (new / rr) * p, new


def _bicgstab_jax(a: Any, x: Any, r: Any, shadow: Any, p: Any, rho: Any) -> Any:
    v = _dot(a, p)
    alpha = rho / _dot(shadow, v)
    s = r - alpha * v
    t = _dot(a, s)
    omega = _dot(t, s) / _dot(t, t)
    r = s - omega * t
    new = _dot(shadow, r)
    return x + alpha * p + omega * s, r, r + (new / rho) * (alpha / omega) * (p - omega * v), new


def _power_jax(a: Any, x: Any) -> Any:
    import jax.numpy as jnp

    y = _dot(a, x)
    return y / jnp.sqrt(_dot(y, y)), _dot(x, y)


# -- scripts -----------------------------------------------------------------------------------------------------------------

SEQUENCES = (
    Linear("axpydot", f"subvector32 w, v, u, z; scalar r; input w, v, u; z = saxpy({-ALPHA}, v, w); r = sdot(z, u); return z, r;",
              "vvv", axpydot, _axpydot_jax, 1.05),
    Linear("atax", "TILE32x32 A; subvector32 x, t, y; input A, x; t = sgemv(A, x); y = sgemtv(A, t); return y;",
              "mv", atax, lambda a, x: _dot(a.T, _dot(a, x)), 1.8),
    Linear("bicgk", "TILE32x32 A; subvector32 p, q, r, s; input A, p, r; q = sgemv(A, p); s = sgemtv(A, r); return q, s;",
              "mvv", bicgk, lambda a, p, r: (_dot(a, p), _dot(a.T, r)), 1.8),
    Linear("gemv", f"TILE32x32 A; subvector32 x, y, t, z; input A, x, y; t = sgemv(A, x); z = swaxpby({ALPHA}, t, {BETA}, y); return z;",
              "mvv", gemv, lambda a, x, y: ALPHA * _dot(a, x) + BETA * y),
    Linear("gemvt", f"TILE32x32 A; subvector32 y, z, t, x, v, w; input A, y, z; t = sgemtv(A, y); x = saxpy({BETA}, t, z); "
              f"v = sgemv(A, x); w = sscal({ALPHA}, v); return x, w;", "mvv", gemvt, _gemvt_jax, again=1),
    Linear("scal", f"subvector32 x, y; input x; y = sscal({ALPHA}, x); return y;", "v", scal, lambda x: ALPHA * x),
    Linear("gemver", "TILE32x32 A, C, B; subvector32 u1, v1, u2, v2, y, z, t, x, v, w; input A, u1, v1, u2, v2, y, z; "
              f"C = sger(A, u1, v1); B = sger(C, u2, v2); t = sgemtv(B, y); x = saxpy({BETA}, t, z); v = sgemv(B, x); "
              f"w = sscal({ALPHA}, v); return B, x, w;", "mvvvvvv", gemver, _gemver_jax, 1.03, again=1),
    Linear("gesummv", "TILE32x32 A, B; subvector32 x, t, v, y; input A, B, x; t = sgemv(A, x); v = sgemv(B, x); "
              f"y = swaxpby({ALPHA}, t, {BETA}, v); return y;", "mmv", gesummv, lambda a, b, x: ALPHA * _dot(a, x) + BETA * _dot(b, x)),
    Linear("madd", "TILE32x32 A, B, C; input A, B; C = smadd(A, B); return C;", "mm", madd, lambda a, b: a + b),
    Linear("vadd", "subvector32 w, y, z, t, x; input w, y, z; t = svadd(w, y); x = svadd(t, z); return x;", "vvv", vadd,
              lambda w, y, z: w + y + z),
    Linear("waxpby", f"subvector32 x, y, w; input x, y; w = swaxpby({ALPHA}, x, {BETA}, y); return w;", "vv", waxpby,
              lambda x, y: ALPHA * x + BETA * y),
)

_SYMMETRIC = ("TILE32x32 A; subvector32 x, r, p, q, x1, r1, p1; scalar rr, pq, a, b, c, new; input A, x, r, p, rr; "
              "q = ssymv(A, p); pq = sdot(p, q); a = sdivide(rr, pq); x1 = saxpy(a, p, x); b = snegate(a); r1 = saxpy(b, q, r); "
              "new = sdot(r1, r1); c = sdivide(new, rr); p1 = saxpy(c, p, r1); return x1, r1, p1, new;")

_SYMMETRIC_POWER = ("TILE32x32 A; subvector32 x, y, z; scalar n, i, l; input A, x; y = ssymv(A, x); n = snrm2(y); i = sdivide(1.0, n); "
                    "z = sscal(i, y); l = sdot(x, y); return z, l;")

# Iterations that read one triangle are measured against both ways of cuBLAS, whichever is faster at a size.
SOLVERS = (
    Linear("conjugate-gradient", "TILE32x32 A; subvector32 x, r, p, q, x1, r1, p1; scalar rr, pq, a, b, c, new; input A, x, r, p, rr; "
           "q = sgemv(A, p); pq = sdot(p, q); a = sdivide(rr, pq); x1 = saxpy(a, p, x); b = snegate(a); r1 = saxpy(b, q, r); "
           "new = sdot(r1, r1); c = sdivide(new, rr); p1 = saxpy(c, p, r1); return x1, r1, p1, new;",
           "mvvvs", conjugate_gradient, _cg_jax, 1.2, 0.0),
    Linear("cg-symmetric", _SYMMETRIC, "hvvvs", conjugate_gradient, _cg_jax, 1.2, 0.0, again=-0.5),
    Linear("cg-symmetric-symv", _SYMMETRIC, "hvvvs", conjugate_gradient, _cg_jax, 1.2, 0.0, again=-0.5, eager=conjugate_gradient_symv),
    Linear("bicgstab", "TILE32x32 A; subvector32 x, r, h, p, v, s, t, x1, x2, r1, d, p1; scalar rho, hv, a, na, ts, tt, o, no, new, b, ao, "
           "c; input A, x, r, h, p, rho; v = sgemv(A, p); hv = sdot(h, v); a = sdivide(rho, hv); na = snegate(a); s = saxpy(na, v, r); "
           "t = sgemv(A, s); ts = sdot(t, s); tt = sdot(t, t); o = sdivide(ts, tt); no = snegate(o); x1 = saxpy(a, p, x); "
           "x2 = saxpy(o, s, x1); r1 = saxpy(no, t, s); new = sdot(h, r1); b = sdivide(new, rho); ao = sdivide(a, o); "
           "c = smultiply(b, ao); d = saxpy(no, v, p); p1 = saxpy(c, d, r1); return x2, r1, p1, new;",
           "mvvvvs", bicgstab, _bicgstab_jax, 1.2, 0.0, again=1),
    Linear("power-step", "TILE32x32 A; subvector32 x, y, z; scalar n, i, l; input A, x; y = sgemv(A, x); n = snrm2(y); "
           "i = sdivide(1.0, n); z = sscal(i, y); l = sdot(x, y); return z, l;", "mv", power_step, _power_jax, 1.2, 0.0),
    Linear("power-symmetric", _SYMMETRIC_POWER, "hv", power_step, _power_jax, 1.2, 0.0, again=-0.5),
    Linear("power-symmetric-symv", _SYMMETRIC_POWER, "hv", power_step, _power_jax, 1.2, 0.0, again=-0.5, eager=power_step_symv),
)


def cases(tiny: bool = False) -> list[Case]:
    """Every sequence at every size, in f32 and f64; the large sizes first. `tiny` shrinks the sizes to try the harness."""
    found = []
    for dtype in ("f32", "f64"):
        for sequence in (*SEQUENCES, *SOLVERS):
            on_matrices = sequence.on_matrices
            sizes: Sequence[int] = (33, 1) if tiny else SIDES if on_matrices else VECTORS
            for rank, size in enumerate(reversed(sizes)):
                found.append(_case(sequence, dtype, size, rank + 6 * (dtype == "f64"), on_matrices))
    return sorted(found, key=lambda case: case.rank)


def _case(sequence: Linear, dtype: str, size: int, rank: int, on_matrices: bool) -> Case:
    script = sequence.script if dtype == "f32" else doubled(sequence.script)
    shape = f"{size}x{size}" if on_matrices else str(size)
    again = int(sequence.again * size * size) * DTYPES[dtype].itemsize
    return Case(f"{sequence.name}/{dtype}/{shape}", "blas", dtype, sequence.function, _inputs(sequence.arguments, size, dtype),
                jax=sequence.jax, rank=rank, extra_bytes=again, min_of_limit=sequence.min_of_limit if rank == 0 else 0.0, script=script,
                min_speedup=sequence.min_speedup if rank == 0 or sequence in SOLVERS else 0.99, eager=sequence.eager)


def doubled(script: str) -> str:
    """The script with the functions' double-precision forms."""
    return re.sub(r"= s(\w+\()", r"= d\1", script)


def _inputs(arguments: str, size: int, dtype: str) -> Inputs:
    """Matrices scaled so that products keep the size of their operands; symmetric positive parts are not needed for timing."""

    def make(device: torch.device, generator: torch.Generator) -> list[Tensor]:
        shapes = {"m": (size, size), "h": (size, size), "v": (size,), "s": ()}
        made = []
        for kind in arguments:
            value = torch.randn(shapes[kind], device=device, generator=generator, dtype=DTYPES[dtype])
            value = (value + value.t()) / 2 if kind == "h" else value
            made.append(value * size**-0.5 if kind in "mh" else value.abs() + 0.5 if kind == "s" else value)
        return made

    return make


def listed(tiny: bool = False) -> list[dict[str, Any]]:
    """The cases as plain facts."""
    return [{"name": c.name, "family": c.family, "dtype": c.dtype, "rank": c.rank, "min_of_limit": c.min_of_limit,
             "min_speedup": c.min_speedup, "against": "eager" if c.name.partition("/")[0] in {s.name for s in SOLVERS} else "best"}
            for c in cases(tiny)]
