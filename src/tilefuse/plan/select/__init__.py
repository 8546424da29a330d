"""The integer program over candidates: cycle cuts, independent components, memory."""
