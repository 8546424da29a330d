"""`python -m tilefuse.tools`: the command line without the installed script."""
from __future__ import annotations

import sys

from tilefuse.tools.cli import main

sys.exit(main())
