"""Floor 3: graph to graph. Every pass says what it requires, establishes and preserves."""
