"""NVRTC and host compilers, some in processes of their own."""
