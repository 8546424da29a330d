"""The staged engine: kernels that are trees of stages over tiles, with loops in which stages run again."""
