"""The checking mode of the host executor."""
from __future__ import annotations

from tilefuse.codegen.fission import HostPrinter


class CheckedPrinter(HostPrinter):
    """Every access is checked."""
