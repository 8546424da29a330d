"""The columns template: reductions across memory."""
