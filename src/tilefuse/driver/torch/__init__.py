"""The parts of the torch backend."""
