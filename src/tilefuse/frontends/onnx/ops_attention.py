"""ONNX attention: the plain forms become the library's attention, every other form its function body from the standard."""

from __future__ import annotations

from tilefuse.frontends.onnx.call import FUNCTION_BODY, Call, Value, onnx_op
from tilefuse.ir.dtype import I64

# With any other attribute (windows, precisions, later additions) the function body defines the result.
PLAIN_ATTRIBUTES = frozenset({"is_causal", "scale", "q_num_heads", "kv_num_heads", "softcap", "qk_matmul_output_mode"})


@onnx_op("Attention")
def attention(n: Call) -> list[str] | Value:
    """softmax(scale * Q @ K^T + mask) @ V where the node asks for nothing else.

    Masks whose rows may be empty (bool masks, or a causal mask with another) and soft caps are written out: the standard requires zeros in
    empty rows, and libraries return NaN. Left to the function body: caches, results other than Y, soft caps beside masks.
    """
    masked, causal, cap = n.has(3), bool(n.attr("is_causal", 0)), float(n.attr("softcap", 0.0))
    bare = not any(n.has(i) for i in (4, 5, 6)) and n.num_outputs == 1
    if not bare or set(n.attributes) - PLAIN_ATTRIBUTES or cap and (masked or causal):
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
    written_out = cap or mask is not None and (causal or not n.dtype(3).is_float)
    out = _definition(n, q, k, v, mask, causal, cap) if written_out else n.b.attention(q, k, v, mask, n.attr("scale"), causal)
    if len(n.shape(0)) == 4:
        return [out]
    batch, _, length, width = n.b.shape_of(out)
    return [n.b.reshape(n.b.permute(out, (0, 2, 1, 3)), (batch, length, heads * width))]


def _definition(n: Call, q: str, k: str, v: str, mask: str | None, causal: bool, cap: float) -> str:
    """The definition in products and maps, with zeros in rows that the masks hide whole."""
    b, dtype = n.b, n.b.dtype_of(q)
    factor = n.attr("scale")
    scale = b.shape_of(q)[-1] ** -0.5 if factor is None else float(factor)
    scores = b.elementwise("mul", b.matmul(q, k, transpose_b=True), b.full((1, 1, 1, 1), scale, dtype))
    if cap:
        limit = b.full((1, 1, 1, 1), cap, dtype)
        scores = b.elementwise("mul", b.elementwise("tanh", b.elementwise("div", scores, limit)), limit)
    lowest = b.full((1, 1, 1, 1), float("-inf"), dtype)
    if mask is not None:
        added = b.dtype_of(mask).is_float
        scores = b.elementwise("add", scores, b.cast(mask, dtype)) if added else b.where(mask, scores, lowest)
    if causal:
        shape = (1, 1, *b.shape_of(scores)[2:])
        scores = b.where(b.elementwise("gt", b.iota(shape, 3, I64), b.iota(shape, 2, I64)), lowest, scores)
    return b.matmul(b.safe_softmax(scores, 3), v)


def split_heads(n: Call, i: int, heads: int | None) -> tuple[str, int]:
    """Operand `i` by heads, and their number. Shapes: [B, heads, L, width] or [B, L, heads * width] -> [B, heads, L, width]"""
    have = n.shape(i)
    if len(have) == 4:
        return n[i], have[1]
    if heads is None:
        raise n.wrong(f"operand {i} has {len(have)} dimensions, so the number of heads must be given")
    batch, length, width = have
    return n.b.permute(n.b.reshape(n[i], (batch, length, heads, width // heads)), (0, 2, 1, 3)), heads
