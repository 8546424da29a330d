"""Values of arrays by the reference interpreter, beside those of the standard's strict implementation over numpy.

The interpreter defines every operator and compiles nothing, so hundreds of small cases run in seconds; tests/end_to_end/arrays runs the
same functions as compiled kernels.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import array_api_strict as strict
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import torch

import tilefuse.array as ta
from tilefuse.arrays.array import Array, installed
from tilefuse.arrays.graph import graph_of
from tilefuse.arrays.types import NAME_OF
from tilefuse.ir.graph import Node
from tilefuse.ir.interpret import interpret
from tilefuse.runtime.calls.library import call_library

STANDARD_DTYPES = tuple(n for n in ta.__array_namespace_info__().dtypes())
FLOATS, INTEGERS = ("float32", "float64"), tuple(n for n in STANDARD_DTYPES if "int" in n)
NUMBERS = (*INTEGERS, *FLOATS)
COMPLEX = ("complex64", "complex128")


def library(node: Node, operands: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any] | None]:
    """Library calls by the framework, as the runtime makes them."""
    results = call_library(node.detail, [torch.from_numpy(np.array(o)) for o in operands], dict(node.attributes))
    return [None if r is None else r.numpy() for r in results]


def value(x: Array) -> np.ndarray[Any, Any]:
    """The value of an array, interpreted."""
    graph, leaves = graph_of([x])
    data = {i.name: _in_pairs(installed().host_array(leaf)) for i, leaf in zip(graph.inputs, leaves, strict=True)}
    made = np.asarray(interpret(graph, data, library)[0])
    return np.ascontiguousarray(made).view(f"c{2 * made.itemsize}")[..., 0] if x.dtype.is_complex else made


def _in_pairs(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Complex numbers as programs see them."""
    return np.stack([data.real, data.imag], axis=-1) if data.dtype.kind == "c" else data


def pair(data: np.ndarray[Any, Any]) -> tuple[Array, Any]:
    """The same data as an array of ours and one of the strict implementation."""
    return ta.asarray(data), strict.asarray(data)


def key_of_ours(key: Sequence[Any]) -> tuple[Any, ...]:
    """A subscript with its numpy arrays as arrays of ours."""
    return tuple(ta.asarray(k) if isinstance(k, np.ndarray) else k for k in key)


def drawn_mask(shape: tuple[int, ...], data: Any) -> tuple[int, int, np.ndarray[Any, Any]]:
    """(first, last, mask) of a mask of the dimensions first to last - 1, drawn by hypothesis."""
    first = data.draw(st.integers(0, len(shape) - 1))
    last = data.draw(st.integers(first + 1, len(shape)))
    return first, last, data.draw(hnp.arrays(np.bool_, shape[first:last]))


def agree(ours: Any, theirs: Any, *, ulps: float = 0, what: object = "") -> None:
    """Shape, type and every element equal; floats within so many units in the last place (NaN equals NaN).

    Raises: AssertionError.
    """
    wanted = np.asarray(theirs)
    assert ours.shape == wanted.shape, (what, ours.shape, wanted.shape)
    assert NAME_OF[ours.dtype] == str(wanted.dtype), (what, ours.dtype, wanted.dtype)
    found = value(ours)
    if wanted.dtype.kind == "f" and ulps:
        with np.errstate(all="ignore"):
            room = ulps * np.spacing(np.abs(wanted)) + np.finfo(wanted.dtype).tiny
            same = (found == wanted) | (np.isnan(found) & np.isnan(wanted)) | (np.abs(found - wanted) <= room)
        assert same.all(), (what, found, wanted)
    else:
        np.testing.assert_array_equal(found, wanted, err_msg=str(what))
