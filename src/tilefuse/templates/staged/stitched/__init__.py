"""Stages over one tile of the largest result, with values between them in shared memory or registers."""
