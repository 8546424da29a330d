"""ONNX attention: the plain forms become the library's attention, every other form its function body from the standard."""

from __future__ import annotations

from tilefuse.frontends.onnx.call import FUNCTION_BODY, Call, Value, onnx_op

# With any other attribute (windows, precisions, later additions) the function body defines the result.
PLAIN_ATTRIBUTES = frozenset({"is_causal", "scale", "q_num_heads", "kv_num_heads", "softcap", "qk_matmul_output_mode"})


@onnx_op("Attention")
def attention(n: Call) -> list[str] | Value:
    """softmax(scale * Q @ K^T + mask) @ V where the node asks for nothing else.

    Left to the function body: caches, soft caps, results other than Y, and masks whose rows may be empty (bool masks, or a causal mask with
    another), for which the standard requires zeros and libraries return NaN.
    """
    masked, causal = n.has(3), bool(n.attr("is_causal", 0))
    bare = not any(n.has(i) for i in (4, 5, 6)) and n.num_outputs == 1 and not n.attr("softcap", 0.0)
    if not bare or set(n.attributes) - PLAIN_ATTRIBUTES or (masked and (causal or not n.dtype(3).is_float)):
        return FUNCTION_BODY
    q, heads = split_heads(n, 0, n.attr("q_num_heads"))
    k, kv_heads = split_heads(n, 1, n.attr("kv_num_heads"))
    v, _ = split_heads(n, 2, n.attr("kv_num_heads"))
    if causal and n.b.shape_of(q)[2] != n.b.shape_of(k)[2]:
        return FUNCTION_BODY
    if kv_heads != heads:
        k, v = (n.b.repeat_interleave(x, heads // kv_heads, 1) for x in (k, v))
    mask = n[3] if masked else None
    if mask is not None and n.b.shape_of(mask)[-1] != n.b.shape_of(k)[2]:
        return FUNCTION_BODY
    out = n.b.attention(q, k, v, mask, n.attr("scale"), causal)
    if len(n.shape(0)) == 4:
        return [out]
    batch, _, length, width = n.b.shape_of(out)
    return [n.b.reshape(n.b.permute(out, (0, 2, 1, 3)), (batch, length, heads * width))]


def split_heads(n: Call, i: int, heads: int | None) -> tuple[str, int]:
    """Operand `i` by heads, and their number. Shapes: [B, heads, L, width] or [B, L, heads * width] -> [B, heads, L, width]"""
    have = n.shape(i)
    if len(have) == 4:
        return n[i], have[1]
    if heads is None:
        raise n.wrong(f"operand {i} has {len(have)} dimensions, so the number of heads must be given")
    batch, length, width = have
    return n.b.permute(n.b.reshape(n[i], (batch, length, heads, width // heads)), (0, 2, 1, 3)), heads
