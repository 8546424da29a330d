"""Sums as exact as f32: added by threads beside the accumulators of tensor cores, and f32 operands as high and low parts."""
