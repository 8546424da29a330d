"""The same patterns in jax.numpy, for the peer jax.jit. JAX is imported when a function is called, not before."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

EPS = 1e-5


def chain(x: Any, y: Any) -> Any:
    """As patterns.chain."""
    import jax
    import jax.numpy as jnp

    return jnp.tanh(x * 0.5 + y) * jax.nn.sigmoid(y) - x


def gelu_bias(x: Any, b: Any) -> Any:
    """As patterns.gelu_bias."""
    import jax

    return jax.nn.gelu(x + b, approximate=False)


def gelu_tanh_bias(x: Any, b: Any) -> Any:
    """As patterns.gelu_tanh_bias."""
    import jax

    return jax.nn.gelu(x + b, approximate=True)


def swiglu_bias(gate: Any, up: Any, bg: Any, bu: Any) -> Any:
    """As patterns.swiglu_bias."""
    import jax

    return jax.nn.silu(gate + bg) * (up + bu)


def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    """As patterns.adam."""
    import jax.numpy as jnp

    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    update = (m / 0.271) / (jnp.sqrt(v / 0.002997) + 1e-8)
    return p * (1 - 1e-5) - 1e-3 * update, m, v


def permuted(*order: int) -> Callable[[Any], Any]:
    """As patterns.permuted."""

    def permute(x: Any) -> Any:
        import jax.numpy as jnp

        return jnp.transpose(x, order)

    return permute


def softmax(x: Any) -> Any:
    """As patterns.softmax, in single precision inside."""
    import jax
    import jax.numpy as jnp

    return jax.nn.softmax(x.astype(jnp.float32), -1).astype(x.dtype)


def log_softmax(x: Any) -> Any:
    """As patterns.log_softmax."""
    import jax
    import jax.numpy as jnp

    return jax.nn.log_softmax(x.astype(jnp.float32), -1).astype(x.dtype)


def softmax_backward(g: Any, y: Any) -> Any:
    """As patterns.softmax_backward."""
    import jax.numpy as jnp

    wide_g, wide_y = g.astype(jnp.float32), y.astype(jnp.float32)
    return (wide_y * (wide_g - (wide_g * wide_y).sum(-1, keepdims=True))).astype(g.dtype)


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    """As patterns.layer_norm."""
    import jax.numpy as jnp
    from jax import lax

    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = jnp.square(wide - mean).mean(-1, keepdims=True)
    return ((wide - mean) * lax.rsqrt(variance + EPS) * w + b).astype(x.dtype)


def residual_layer_norm(x: Any, residual: Any, w: Any, b: Any) -> Any:
    """As patterns.residual_layer_norm."""
    total = x + residual
    return total, layer_norm(total, w, b)


def rms_norm(x: Any, w: Any) -> Any:
    """As patterns.rms_norm."""
    import jax.numpy as jnp
    from jax import lax

    wide = x.astype(jnp.float32)
    return ((wide * lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + EPS)) * w).astype(x.dtype)


def rms_norm_backward(g: Any, x: Any, rstd: Any, w: Any) -> Any:
    """As patterns.rms_norm_backward."""
    import jax.numpy as jnp

    normal = x.astype(jnp.float32) * rstd
    scaled = g.astype(jnp.float32) * w.astype(jnp.float32)
    grad_x = rstd * (scaled - normal * (scaled * normal).mean(-1, keepdims=True))
    return grad_x.astype(x.dtype), (g.astype(jnp.float32) * normal).sum(0).astype(w.dtype)


def cross_entropy(logits: Any, target: Any) -> Any:
    """As patterns.cross_entropy."""
    import jax
    import jax.numpy as jnp

    wide = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(wide, target[:, None], axis=1)[:, 0]
    return (jax.nn.logsumexp(wide, axis=-1) - picked).mean().astype(logits.dtype)


def argmax(x: Any) -> Any:
    """As patterns.argmax (JAX gives 32-bit positions)."""
    import jax.numpy as jnp

    return jnp.argmax(x, -1)


def cumsum(x: Any) -> Any:
    """As patterns.cumsum."""
    import jax.numpy as jnp

    return jnp.cumsum(x.astype(jnp.float32), -1).astype(x.dtype)


def column_sum(x: Any) -> Any:
    """As patterns.column_sum."""
    import jax.numpy as jnp

    return x.astype(jnp.float32).sum(0).astype(x.dtype)


def batch_norm_relu(x: Any, w: Any, b: Any) -> Any:
    """As patterns.batch_norm_relu."""
    import jax.numpy as jnp
    from jax import lax

    wide = x.astype(jnp.float32)
    mean = wide.mean((0, 2, 3), keepdims=True)
    variance = jnp.square(wide - mean).mean((0, 2, 3), keepdims=True)
    scaled = (wide - mean) * lax.rsqrt(variance + EPS) * w[None, :, None, None] + b[None, :, None, None]
    return jnp.maximum(scaled, 0).astype(x.dtype)
