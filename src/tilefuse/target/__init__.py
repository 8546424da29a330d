"""Floor 1: what a device can do (numbers with their origin) and how a kernel is launched."""
