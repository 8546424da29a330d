"""tilefuse: a GPU kernel-fusion compiler."""
