"""Scripts as text: syntax, functions of the library and what they mean."""
