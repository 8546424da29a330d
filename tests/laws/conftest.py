"""One hypothesis profile for all laws: no time limit an example (machines are shared), and the same examples every run in CI."""
from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("laws", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
settings.register_profile("ci", parent=settings.get_profile("laws"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "laws")
