"""Operators of torch that tilefuse brings: the driver puts them into joint graphs, the lowerings beside this folder know them."""
