"""Sums down the columns of the results of pipelined products."""
