"""The cases of attention's tiles: those of earlier records first, then sizes that no figure was fitted to."""
from __future__ import annotations

EARLIER = (
    "bf16/plain/16x16x512x64", "bf16/plain/4x16x4096x64", "bf16/causal/4x16x4096x128", "bf16/causal/2x32g8x8192x128",
    "bf16/causal/1x16x16384x128", "bf16/plain/64x12x128x64", "bf16/plain/64x12x197x64",
    "bf16/causal/4x16x4096x64", "f16/plain/4x16x4096x128", "bf16/window1024/1x16x8192x64", "bf16/window1024/1x16x8192x128",
    "f16/bias/64x12x197x64", "f16/headbias/64x12x196x64", "f16/headbias/64x12x256x64", "f16/padding/64x12x128x64",
)
FRESH = (
    "bf16/plain/1x8x1024x64", "bf16/causal/1x8x16384x64", "f16/plain/64x16x128x128", "f16/causal/16x16x512x128",
    "bf16/plain/16x16x1024x64", "bf16/causal/8x16x2048x64", "bf16/causal/8x16x2048x128", "f16/plain/2x16x8192x64",
    "bf16/plain/2x16x8192x128", "f16/plain/4x16x2048x256", "f16/causal/4x16x2048x256", "bf16/plain/4x16x2048x192",
    "bf16/causal/8x8x1024x192", "f16/plain/32x12x384x64", "f16/plain/16x12x577x64", "f16/plain/8x16x1000x72",
    "bf16/causal/4x12x1536x80", "f16/plain/4x16x1024x96", "bf16/window256/2x16x4096x64", "bf16/window512/2x16x8192x128",
    "bf16/window128/8x16x1024x64", "f16/bias/8x12x512x64", "f16/headbias/64x4x49x32", "f16/headbias/32x12x197x64",
    "f16/plain/4x16x256k4096x64", "bf16/alibi/2x16x2048x64", "f16/causal/2x8x300x64", "bf16/prefix512/4x16x2048x64",
    "f16/mask/16x12x512x64", "bf16/cap30/2x16x2048x64",
)
CASES = (*EARLIER, *FRESH)
