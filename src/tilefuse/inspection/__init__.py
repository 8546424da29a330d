"""Inspection of compiled objects: their programs, the reasons for them, their sources and page, a measured run."""
