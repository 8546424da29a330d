"""The rows template: reductions along memory, a row by a warp, a block, a cluster or several blocks."""
