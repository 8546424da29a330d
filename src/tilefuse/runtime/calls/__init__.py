"""A call: memory, arguments, kernels, library operators, replays."""
