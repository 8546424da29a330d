"""The task template: kernels that read each other's results as bodies of one kernel, ordered by counters in global memory."""
