"""Floor 5: which nodes share a kernel, at which level each edge lives, and in which memory layout."""
