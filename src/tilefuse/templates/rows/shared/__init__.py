"""Rows beside vectors that all of them share and a block prepares once."""
