"""A stage with products: by threads (fma), or by warps on the matrix unit (mma), which may share the inner axis of a tile."""
from __future__ import annotations

from tilefuse.templates.staged.stitched.plan import Stage
from tilefuse.templates.staged.stitched.products.shared_inner import emit_shared_inner
from tilefuse.templates.staged.stitched.products.threads import emit_by_threads
from tilefuse.templates.staged.stitched.products.warps import emit_by_warps
from tilefuse.templates.staged.stitched.values import StitchValues


def emit_product(w: StitchValues, stage: Stage) -> None:
    """One product stage: the loop over register tiles, the sums, and the stage's maps on top of them."""
    t = stage.tiling
    assert t is not None, "products have a tiling"
    if t.unit == "fma":
        emit_by_threads(w, stage, t)
    elif t.split > 1:
        emit_shared_inner(w, stage, t)
    else:
        emit_by_warps(w, stage, t)
