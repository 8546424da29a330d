"""The bare products in jax.numpy. JAX is imported when a function is called, not before."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any


def product(dtype: str, left_transposed: bool, right_transposed: bool) -> Callable[[Any, Any], Any]:
    """As `bare.product`, over the last two axes."""

    def multiply(a: Any, b: Any) -> Any:
        import jax.numpy as jnp

        left = jnp.swapaxes(a, -1, -2) if left_transposed else a
        right = jnp.swapaxes(b, -1, -2) if right_transposed else b
        return jnp.matmul(left, right, precision=_precision(dtype))

    return multiply


def einsum(dtype: str, equation: str) -> Callable[[Any, Any], Any]:
    """As torch.einsum."""

    def multiply(a: Any, b: Any) -> Any:
        import jax.numpy as jnp

        return jnp.einsum(equation, a, b, precision=_precision(dtype))

    return multiply


def _precision(dtype: str) -> Any:
    """HIGHEST keeps f32; on a GPU of compute capability 8 or newer DEFAULT is tf32 for f32 operands, and no choice for shorter types."""
    from jax.lax import Precision

    return Precision.HIGHEST if dtype == "f32" else Precision.DEFAULT
