"""Methods of arrays that numpy and torch share, each one line over the function of the standard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from tilefuse.arrays.nodes import user_span
from tilefuse.base.errors import InternalError, TypeMismatchError

Axis = int | Sequence[int] | None
# Functions of arrays that methods call, by name. They are written over arrays, so `evaluation` installs them.
_functions: dict[str, Callable[..., Any]] = {}


def install_functions(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Makes `functions` those that the methods of arrays call."""
    _functions.update(functions)


def function_of_arrays(name: str) -> Callable[..., Any]:
    """The function that a method calls. Raises: InternalError before the functions were installed."""
    if name not in _functions:
        raise InternalError(f"arrays have no function {name}", hint="import tilefuse.array")
    return _functions[name]


class ArrayMethods:
    """Attributes of `Array` besides the standard's. The functions are looked up at the call (`install_functions`).

    out: must be None; numpy's functions (`np.mean(x)`) name it when they leave the work to the method.
    """

    __slots__ = ()

    def sum(self, axis: Axis = None, dtype: Any = None, keepdims: bool = False, *, out: None = None) -> Self:
        """As the function `sum`."""
        return self._unwritten(out)._applied("sum", axis=axis, dtype=dtype, keepdims=keepdims)

    def prod(self, axis: Axis = None, dtype: Any = None, keepdims: bool = False, *, out: None = None) -> Self:
        """As the function `prod`."""
        return self._unwritten(out)._applied("prod", axis=axis, dtype=dtype, keepdims=keepdims)

    def mean(self, axis: Axis = None, dtype: Any = None, keepdims: bool = False, *, out: None = None) -> Self:
        """As the function `mean`."""
        return self._unwritten(out)._applied("mean", axis=axis, dtype=dtype, keepdims=keepdims)

    def var(self, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Self:
        """As the function `var`: over the number of elements unless `correction` says less."""
        return self._applied("var", axis=axis, correction=correction, keepdims=keepdims)

    def std(self, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Self:
        """As the function `std`: over the number of elements unless `correction` says less."""
        return self._applied("std", axis=axis, correction=correction, keepdims=keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False, *, out: None = None) -> Self:
        """As the function `max`."""
        return self._unwritten(out)._applied("max", axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False, *, out: None = None) -> Self:
        """As the function `min`."""
        return self._unwritten(out)._applied("min", axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """As the function `argmax`."""
        return self._applied("argmax", axis=axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """As the function `argmin`."""
        return self._applied("argmin", axis=axis, keepdims=keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False, *, out: None = None) -> Self:
        """As the function `any`."""
        return self._unwritten(out)._applied("any", axis=axis, keepdims=keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False, *, out: None = None) -> Self:
        """As the function `all`."""
        return self._unwritten(out)._applied("all", axis=axis, keepdims=keepdims)

    def cumsum(self, axis: int | None = None, dtype: Any = None) -> Self:
        """As the function `cumulative_sum`."""
        return self._applied("cumulative_sum", axis=axis, dtype=dtype)

    def reshape(self, *shape: Any) -> Self:
        """As the function `reshape`; the extents as arguments or in one tuple."""
        return self._applied("reshape", shape[0] if len(shape) == 1 else shape)

    def flatten(self) -> Self:
        """All elements in row-major order, in one dimension."""
        return self._applied("reshape", (-1,))

    def ravel(self) -> Self:
        """As `flatten`: writing to one array changes no other, so a view and a copy are one."""
        return self.flatten()

    def squeeze(self, axis: Axis = None) -> Self:
        """As the function `squeeze`."""
        return self._applied("squeeze", axis)

    def swapaxes(self, axis1: int, axis2: int) -> Self:
        """With two dimensions exchanged."""
        return self._applied("swapaxes", axis1, axis2)

    def astype(self, dtype: Any) -> Self:
        """As the function `astype`."""
        return self._applied("astype", dtype)

    def clip(self, min: Any = None, max: Any = None) -> Self:
        """As the function `clip`."""
        return self._applied("clip", min, max)

    def round(self) -> Self:
        """As the function `round`: halves to even."""
        return self._applied("round")

    def dot(self, other: Any) -> Self:
        """As `self @ other`."""
        return self._applied("product", other)

    def _unwritten(self, out: object) -> Self:
        if out is not None:
            raise TypeMismatchError("nothing is written to out=", where=user_span(), hint="use the result, or x[...] = result")
        return self

    def _applied(self, name: str, *arguments: Any, **settings: Any) -> Self:
        """The array that the function of this name gives of this one."""
        result: Self = function_of_arrays(name)(self, *arguments, **settings)
        return result
