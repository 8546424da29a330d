"""The template of products by panels: operands through a ring of slots by asynchronous copies, matrix instructions of warps."""
