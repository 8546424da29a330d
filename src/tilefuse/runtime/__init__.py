"""Floor 2: running things. Kernel cache, compilers, arena, CUDA graphs, programs that save and load without the compiler."""
