"""Scripts as text: syntax, functions of the library and their meanings."""
