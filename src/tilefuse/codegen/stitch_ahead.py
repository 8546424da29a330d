"""Operands of stages to come: they are asked for while the first stages of a stitched kernel run."""
from __future__ import annotations

from typing import TYPE_CHECKING

from tilefuse.codegen.kernel import Prefetch
from tilefuse.ir.affine import axis
from tilefuse.ir.scalar import Bound

if TYPE_CHECKING:
    from tilefuse.codegen.compose_stitch import StitchWriter

# What one request to the cache brings.
LINE_BYTES = 128
# Of the second-level cache that such operands may take together.
CACHE_SHARE = 0.25


def ask_ahead(w: StitchWriter, num_blocks: int) -> None:
    """Operands that every block reads from global memory, stage after stage, come into the cache while the first stages run.

    Each block asks for its share of the lines. A chain of small products otherwise waits for memory once a product.
    """
    direct = dict.fromkeys(p.value for p in w.plan.pieces if p.kind == "copy" and not p.stored and p.value in w.buffers
                           and not any(s.offset.terms for s in p.region))
    buffers = [w.buffers[v] for v in direct]
    num_bytes = sum(b.num_elements * b.dtype.itemsize for b in buffers)
    if w.device.kind != "cuda" or len(buffers) < 2 or num_bytes > w.device.l2_bytes * CACHE_SHARE:
        return
    for buffer in buffers:
        step = LINE_BYTES // buffer.dtype.itemsize
        lines, everyone = -(-buffer.num_elements // step), num_blocks * w.threads
        turns = -(-lines // everyone)
        with w.loop("ask", turns) as turn:
            line = w.let("line", turn * everyone + axis("block") * w.threads + axis("thread"), turns * everyone)
            with w.when([Bound(line, 0, lines)]):
                w.emit(Prefetch(buffer.name, line * step))
