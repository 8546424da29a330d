"""Floor 3: the kernel IR, its text parts and what visits it. Decides nothing."""
