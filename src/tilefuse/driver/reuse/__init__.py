"""Results of earlier compiles that later ones start from, and compiles in the background."""
