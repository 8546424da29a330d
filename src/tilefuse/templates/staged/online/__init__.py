"""Walks along an axis between two products, whose turns a block computes one after another."""
