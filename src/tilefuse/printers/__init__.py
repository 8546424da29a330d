"""Floor 4: the kernel IR as CUDA C++ and as host C++, and the host's checking mode."""
