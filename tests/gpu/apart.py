"""Tests whose kernels may fault, each in a process of its own: a fault ends the use of the device by the whole process."""
from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")
# Set inside the process of one test.
VARIABLE = "GPU_TEST_APART"


def apart(test: Callable[P, None]) -> Callable[P, None]:
    """The test in a process of its own, whose report is the message where it fails."""
    @functools.wraps(test)
    def outer(*arguments: P.args, **named: P.kwargs) -> None:
        if VARIABLE in os.environ:
            test(*arguments, **named)
            return
        name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name], capture_output=True, text=True,
                              check=False, env=os.environ | {VARIABLE: "1"})
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]

    return outer
