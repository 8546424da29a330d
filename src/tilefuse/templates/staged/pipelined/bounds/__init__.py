"""Lower bounds on the times of pipelined products, from which the search leaves tiles out."""
