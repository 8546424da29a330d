"""Methods of arrays that numpy and torch share, each one line over the function of the standard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from tilefuse.arrays.nodes import user_span
from tilefuse.base.errors import TypeMismatchError

if TYPE_CHECKING:
    from tilefuse.arrays.array import Array

Axis = int | Sequence[int] | None


class ArrayMethods:
    """Attributes of `Array` besides the standard's. The functions are looked up at the call: they are written over arrays.

    out: must be None; numpy's functions (`np.mean(x)`) name it when they leave the work to the method.
    """

    __slots__ = ()

    def sum(self, axis: Axis = None, dtype: Any = None, keepdims: bool = False, *, out: None = None) -> Array:
        """As the function `sum`."""
        return functions()["sum"](_unwritten(self, out), axis=axis, dtype=dtype, keepdims=keepdims)

    def prod(self, axis: Axis = None, dtype: Any = None, keepdims: bool = False, *, out: None = None) -> Array:
        """As the function `prod`."""
        return functions()["prod"](_unwritten(self, out), axis=axis, dtype=dtype, keepdims=keepdims)

    def mean(self, axis: Axis = None, dtype: Any = None, keepdims: bool = False, *, out: None = None) -> Array:
        """As the function `mean`."""
        return functions()["mean"](_unwritten(self, out), axis=axis, dtype=dtype, keepdims=keepdims)

    def var(self, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
        """As the function `var`: over the number of elements unless `correction` says less."""
        return functions()["var"](self, axis=axis, correction=correction, keepdims=keepdims)

    def std(self, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
        """As the function `std`: over the number of elements unless `correction` says less."""
        return functions()["std"](self, axis=axis, correction=correction, keepdims=keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False, *, out: None = None) -> Array:
        """As the function `max`."""
        return functions()["max"](_unwritten(self, out), axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False, *, out: None = None) -> Array:
        """As the function `min`."""
        return functions()["min"](_unwritten(self, out), axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Array:
        """As the function `argmax`."""
        return functions()["argmax"](self, axis=axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Array:
        """As the function `argmin`."""
        return functions()["argmin"](self, axis=axis, keepdims=keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False, *, out: None = None) -> Array:
        """As the function `any`."""
        return functions()["any"](_unwritten(self, out), axis=axis, keepdims=keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False, *, out: None = None) -> Array:
        """As the function `all`."""
        return functions()["all"](_unwritten(self, out), axis=axis, keepdims=keepdims)

    def cumsum(self, axis: int | None = None, dtype: Any = None) -> Array:
        """As the function `cumulative_sum`."""
        return functions()["cumulative_sum"](self, axis=axis, dtype=dtype)

    def reshape(self, *shape: Any) -> Array:
        """As the function `reshape`; the extents as arguments or in one tuple."""
        return functions()["reshape"](self, shape[0] if len(shape) == 1 else shape)

    def flatten(self) -> Array:
        """All elements in row-major order, in one dimension."""
        return functions()["reshape"](self, (-1,))

    def ravel(self) -> Array:
        """As `flatten`: writing to one array changes no other, so a view and a copy are one."""
        return self.flatten()

    def squeeze(self, axis: Axis = None) -> Array:
        """As the function `squeeze`."""
        return functions()["squeeze"](self, axis)

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        """With two dimensions exchanged."""
        return functions()["swapaxes"](self, axis1, axis2)

    def astype(self, dtype: Any) -> Array:
        """As the function `astype`."""
        return functions()["astype"](self, dtype)

    def clip(self, min: Any = None, max: Any = None) -> Array:
        """As the function `clip`."""
        return functions()["clip"](self, min, max)

    def round(self) -> Array:
        """As the function `round`: halves to even."""
        return functions()["round"](self)

    def dot(self, other: Any) -> Array:
        """As `self @ other`."""
        return functions()["product"](self, other)


def _unwritten(x: ArrayMethods, out: object) -> ArrayMethods:
    if out is not None:
        raise TypeMismatchError("nothing is written to out=", where=user_span(), hint="use the result, or x[...] = result")
    return x


@cache
def functions() -> dict[str, Callable[..., Array]]:
    """The functions over arrays by name, for what stands below them."""
    from tilefuse.arrays import array
    from tilefuse.arrays.functions import elementwise as array_elementwise
    from tilefuse.arrays.functions import manipulation as array_manipulation
    from tilefuse.arrays.functions import selection as array_selection
    from tilefuse.arrays.functions import statistics as array_statistics
    from tilefuse.arrays.functions import writing as array_writing

    modules = (array_writing, array_selection, array, array_statistics, array_manipulation, array_elementwise)
    return {name: f for module in modules for name, f in vars(module).items() if callable(f) and not name.startswith("_")}
