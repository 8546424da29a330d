"""Floor 0: errors, options, source spans, trace, search candidates. Imports nothing but the standard library."""
