"""The eleven sequences of the paper as scripts over the library. Source: Filipovic et al., table 1."""
from __future__ import annotations

from tests.unit.scripts.routine_runs import script_graph
from tilefuse.scripts.language.elementary import CallGraph

# Script, and the shape of each input in m (rows) and n (columns).
SEQUENCES: dict[str, tuple[str, dict[str, str]]] = {
    "axpydot": ("vector w, v, u; input w, v, u; z = saxpy(-0.75, v, w); r = sdot(z, u); return z, r;", {"w": "n", "v": "n", "u": "n"}),
    "atax": ("matrix A; vector x; input A, x; t = sgemv(A, x); y = sgemtv(A, t); return y;", {"A": "mn", "x": "n"}),
    "bicgk": ("matrix A; vector p, r; input A, p, r; q = sgemv(A, p); s = sgemtv(A, r); return q, s;", {"A": "mn", "p": "n", "r": "m"}),
    "sgemv": ("matrix A; vector x, y; input A, x, y; t = sgemv(A, x); z = swaxpby(0.5, t, -0.25, y); return z;",
              {"A": "mn", "x": "n", "y": "m"}),
    "sgemvt": ("matrix A; vector y, z; input A, y, z; t = sgemtv(A, y); x = saxpy(0.5, t, z); u = sgemv(A, x); w = sscal(0.25, u);"
               " return x, w;", {"A": "mn", "y": "m", "z": "n"}),
    "sscal": ("vector x; input x; z = sscal(0.5, x); return z;", {"x": "n"}),
    "gemver": ("matrix A; vector u1, v1, u2, v2, y, z; input A, u1, v1, u2, v2, y, z; C = sger(1.0, u1, v1, A); B = sger(1.0, u2, v2, C);"
               " t = sgemtv(B, y); x = saxpy(0.5, t, z); s = sgemv(B, x); w = sscal(0.25, s); return B, x, w;",
               {"A": "mn", "u1": "m", "v1": "n", "u2": "m", "v2": "n", "y": "m", "z": "n"}),
    "gesummv": ("matrix A, B; vector x; input A, B, x; s = sgemv(A, x); t = sgemv(B, x); y = swaxpby(0.5, s, 0.25, t); return y;",
                {"A": "mn", "B": "mn", "x": "n"}),
    "madd": ("matrix A, B; input A, B; C = smadd(A, B); return C;", {"A": "mn", "B": "mn"}),
    "vadd": ("vector w, y, z; input w, y, z; t = svadd(w, y); x = svadd(t, z); return x;", {"w": "n", "y": "n", "z": "n"}),
    "waxpby": ("vector x, y; input x, y; t = sscal(0.5, x); w = saxpy(-0.25, y, t); return w;", {"x": "n", "y": "n"}),
}


def sequence(name: str, m: int, n: int, double: bool = False) -> CallGraph:
    """A sequence for matrices of m rows and n columns; `double`: by the functions of double precision."""
    text, shapes = SEQUENCES[name]
    if double:
        for function in ("saxpy", "sdot", "sgemv", "sgemtv", "swaxpby", "sscal", "sger", "smadd", "svadd"):
            text = text.replace(f"{function}(", f"d{function[1:]}(")
    return script_graph(text, {v: tuple({"m": m, "n": n}[e] for e in s) for v, s in shapes.items()})
