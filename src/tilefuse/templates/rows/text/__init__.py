"""Row kernels as text: their notation, and the paper's own forms in its words."""
