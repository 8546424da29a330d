"""Places of the user's program as people read them: files as they are imported, or from the working folder."""
from __future__ import annotations

import os
import sys


def short_place(place: str) -> str:
    """A `file:line` without the folder that it is imported from: "transformers/models/bert/modeling_bert.py:175"."""
    if not os.path.isabs(place):
        return place
    folders = sorted({os.path.abspath(folder) for folder in (os.getcwd(), *filter(None, sys.path))}, key=len, reverse=True)
    folder_here = next((folder for folder in folders if place.startswith(folder + os.sep)), None)
    return place if folder_here is None else place[len(folder_here) + 1:]


def where_text(path: str, place: str) -> str:
    """Module and line, as far as they are known."""
    return " ".join(filter(None, (path, short_place(place))))
