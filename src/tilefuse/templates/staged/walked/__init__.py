"""Walks between two products on warpgroup instructions: keys and values come through rings of slots, scores stay in registers."""
