"""Attention: cases by name, tiles of walks beside their prices, records of tiles that a device timed."""
