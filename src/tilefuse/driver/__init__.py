"""Floor 6: the only place where the parts meet: compile, and the torch backend."""
