"""Random scripts over the shipped library: legal by construction, with arguments small enough that every f64 result is exact."""
from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from tilefuse.scripts.language.elementary import ElementaryFunction, Parameter
from tilefuse.scripts.language.routine_library import AnyFunction, read_library

# Functions whose results are integers where their arguments are: sums, products, selections.
EXACT = ("daxpy", "dwaxpby", "dscal", "dcopy", "dswap", "dvadd", "dvmul", "drot", "ddot", "dasum", "dgemv", "dgemtv", "dgemv_full",
         "dgemtv_full", "dger", "dger_unit", "dmadd", "dmscal", "dnegate", "dmultiply", "dtrmv", "dtrmtv", "dtrmv_upper", "dtrmtv_upper",
         "dtrmv_below", "dtrmtv_below", "dtrmv_above", "dtrmtv_above", "dsymv", "dsymv_upper", "dsymv_full", "dsymv_upper_full", "idamax")
# Values may grow to this before a product of two of them is no longer exact in f64.
LARGEST = 2.0**24


@dataclass(frozen=True)
class RandomScript:
    """A script and its arguments, some of them views with gaps or of columns that lie together; `seed` makes it again."""

    seed: int
    text: str
    arguments: dict[str, np.ndarray]


@dataclass
class _Value:
    name: str
    sizes: tuple[str, ...]
    bound: float
    is_real: bool = True


def random_script(seed: int, calls: int = 6) -> RandomScript:
    """A script of up to `calls` calls over vectors of two lengths and matrices of both shapes, and square ones."""
    draw = random.Random(seed)
    shipped = read_library(shipped=True)
    library: dict[str, AnyFunction] = {**shipped.functions, **shipped.composed}
    extents = {"m": draw.choice([0, 1, 3, 17, 64, 70]), "n": draw.choice([1, 5, 32, 67, 130])}
    values = [_Value("A", ("m", "n"), 2), _Value("B", ("n", "m"), 2), _Value("S", ("m", "m"), 2), _Value("T", ("n", "n"), 2),
              *(_Value(f"v{k}", ("m",), 3) for k in range(2)), *(_Value(f"w{k}", ("n",), 3) for k in range(2)), _Value("a", (), 2)]
    given = list(values)
    lines: list[str] = []
    results: list[str] = []
    for _ in range(40):
        if len(lines) == calls:
            break
        made = _call(draw, library[draw.choice(EXACT)], values, extents, len(results))
        if made is not None:
            line, new = made
            lines.append(line)
            values += [v for v in new if v.is_real]
            results += [v.name for v in new]
    returned = draw.sample(results, draw.randint(1, len(results)))
    used = {word for line in lines for word in line.replace("(", " ").replace(")", " ").replace(",", " ").split()}
    inputs = [v for v in given if v.name in used]
    kinds = ("scalar", "vector", "matrix")
    declared = " ".join(f"{kinds[len(v.sizes)]} {v.name};" for v in inputs)
    text = "\n".join([declared, f"input {', '.join(v.name for v in inputs)};", *lines, f"return {', '.join(returned)};"])
    rng = np.random.default_rng(seed)
    arguments = {v.name: _laid(draw, rng.integers(-int(v.bound), int(v.bound) + 1, [extents[s] for s in v.sizes]).astype(np.float64))
                 for v in inputs}
    return RandomScript(seed, text, arguments)


def _laid(draw: random.Random, value: np.ndarray) -> np.ndarray:
    """The value dense, with a leading dimension, with gaps, backwards, or with its columns together."""
    if not value.ndim:
        return value
    gaps = [draw.choice([1, 1, 1, 2, -1]) for _ in value.shape]
    wide = np.full([abs(g) * n + draw.choice([0, 3]) for g, n in zip(gaps, value.shape, strict=True)], np.nan,
                   order=draw.choice(["C", "C", "F"]))  # type: ignore[call-overload]
    seen: np.ndarray = wide[tuple(slice(0, abs(g) * n, abs(g)) for g, n in zip(gaps, value.shape, strict=True))]
    seen = seen[tuple(slice(None, None, -1 if g < 0 else 1) for g in gaps)]
    seen[...] = value
    return seen


def _call(draw: random.Random, function: AnyFunction, values: list[_Value], extents: dict[str, int],
          count: int) -> tuple[str, list[_Value]] | None:
    """One call on values that fit, or None where there are none or results could grow too large."""
    bound_sizes: dict[str, str] = {}
    arguments: list[str] = []
    product = 1.0
    for parameter in function.inputs:
        if not parameter.extents and draw.random() < 0.5:
            number = draw.choice([-2, -1, 0, 1, 2])
            arguments.append(str(number))
            product *= max(abs(number), 1)
            continue
        fitting = [v for v in values if _fits(parameter, v, bound_sizes)]
        if not fitting:
            return None
        value = draw.choice(fitting)
        bound_sizes |= dict(zip(parameter.extents, value.sizes))
        arguments.append(value.name)
        product *= max(value.bound, 1.0)
    if isinstance(function, ElementaryFunction) and function.triangle and len({extents[s] for s in bound_sizes.values()}) > 1:
        return None
    over = function.over if isinstance(function, ElementaryFunction) else tuple(bound_sizes)
    terms = float(np.prod([extents[bound_sizes[s]] for s in over])) if over else 2.0
    largest = max(product * (terms + 2), 1.0)
    if largest > LARGEST:
        return None
    new = [_Value(f"r{count + k}", tuple(bound_sizes[s] for s in p.extents), largest, p.dtype is None)
           for k, p in enumerate(function.outputs)]
    return f"{', '.join(v.name for v in new)} = {function.called or function.name}({', '.join(arguments)});", new


def _fits(parameter: Parameter, value: _Value, bound_sizes: dict[str, str]) -> bool:
    if len(parameter.extents) != len(value.sizes):
        return False
    found = dict(bound_sizes)
    return all(found.setdefault(s, own) == own for s, own in zip(parameter.extents, value.sizes))
