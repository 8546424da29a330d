"""What earlier compiles leave for later ones, and compiles in the background."""
