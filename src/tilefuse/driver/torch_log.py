"""The logger of the torch backend."""

from __future__ import annotations

import logging

log = logging.getLogger("tilefuse")
