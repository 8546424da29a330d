"""Floor 4: iteration domains, coordinates, accesses, regions, storage of one pattern."""
