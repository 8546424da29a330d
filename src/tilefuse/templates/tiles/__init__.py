"""Maps whose elements follow different formulas by position: a thread computes a whole tile of them, with every formula decided."""
