"""What runs kernels to learn from them."""
