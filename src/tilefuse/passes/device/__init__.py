"""Rewritings for a device: they read its record, some of them prices and layouts, from the context of their pipeline."""
