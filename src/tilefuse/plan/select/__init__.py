"""The integer program over candidates: cycle cuts, parts solved apart, memory."""
