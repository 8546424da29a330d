"""Programs as C++ text."""
