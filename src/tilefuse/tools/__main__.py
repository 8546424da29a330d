"""Where the command line starts: `tilefuse`, and `python -m tilefuse.tools` without the installed script.

Imports nothing before it watches for interrupts: loading the commands takes most of a second, in which a user may change their mind.
"""
from __future__ import annotations

import sys

INTERRUPTED = 130  # as in `cli.py`, which is not there yet


def main() -> int:
    """Run one command; the exit status. As `cli.main`, from the first import on."""
    try:
        from tilefuse.tools import cli
    except KeyboardInterrupt:
        print("interrupted; nothing was begun", file=sys.stderr)
        return INTERRUPTED
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
