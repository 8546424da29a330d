"""Arrays evaluated: programs, gradients, sessions, registered operators."""
