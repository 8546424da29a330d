"""Walks with several products on either side and no reductions between them, on warpgroup instructions: the gradients of attention."""
