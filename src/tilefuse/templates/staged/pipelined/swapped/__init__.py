"""Swapped operands of pipelined products: few rows, and weights of few bits that consumers expand."""
