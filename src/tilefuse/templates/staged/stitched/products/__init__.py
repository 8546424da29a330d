"""Products inside a stitched kernel. The sums of a stage's products stay in registers, and its maps are evaluated on top of them."""
