"""JavaScript libraries for the page, read from installed packages when a page is written; this repository contains none.

| library | package | licence | used for |
| --- | --- | --- | --- |
| dagre | netron | MIT | layered layout of nested boxes |
| d3 | mpld3 | BSD-3-Clause | panning, zooming, scales and axes |
"""
from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from tilefuse.base.errors import UnsupportedError

EXTRA = "pip install 'tilefuse[view]'"


@dataclass(frozen=True, slots=True)
class Library:
    """One script inside a package.

    defines  text that it must hold, so that a package whose files changed is found when writing
    leaves   a part that is left out of the page: a pattern of text that occurs once
    """

    name: str
    package: str
    pattern: str
    defines: str
    leaves: str = ""


# Netron's release reduces crossings once more after dagre's own ordering. That step takes every second rank for one of boxes, which only
# holds in graphs without boxes in boxes: in ours it fails at a box without users (TypeError: reading 'vNode').
DAGRE = Library("dagre", "netron", "dagre.js", "dagre.layout = (nodes, edges, layout, state)",
                leaves=r"// Reduce crossings\n.*?(?=\n\s*assignOrder\(g, best\);)")
D3 = Library("d3", "mpld3", "js/d3.v5.min.js", "d3.zoom")
LIBRARIES = (D3, DAGRE)


def script_of(library: Library) -> str:
    """The library's text as a classic script. Raises: UnsupportedError where its package is missing or has another form."""
    spec = importlib.util.find_spec(library.package)
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedError(f"a page needs {library.name} from the package {library.package}, which is not installed", hint=EXTRA)
    folder = Path(next(iter(spec.submodule_search_locations)))
    files = sorted(folder.glob(library.pattern), key=_version)
    text = files[-1].read_text(encoding="utf-8") if files else ""
    if not _defines(text, library):
        raise UnsupportedError(f"the package {library.package} in {folder} has no {library.pattern} with {library.defines!r}",
                               hint=f"install a release that constraints.txt names: {EXTRA}")
    if library.leaves:
        text, count = re.subn(library.leaves, "", text, flags=re.DOTALL)
        if count != 1:
            raise UnsupportedError(f"the package {library.package} in {folder} has another {library.pattern} than pages are made for",
                                   hint=f"install a release that constraints.txt names: {EXTRA}")
    # A classic script takes no export statements, and ends at the first "</script".
    return re.sub(r"^export .*$", "", text, flags=re.MULTILINE).replace("</script", "<\\/script")


def missing() -> list[str]:
    """Packages that are not installed, of those that a page needs."""
    return [lib.package for lib in LIBRARIES if importlib.util.find_spec(lib.package) is None]


def _version(path: Path) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", path.name))


def _defines(text: str, library: Library) -> bool:
    # d3 is minified: its names are properties that it assigns.
    return library.defines in text or library is D3 and re.search(r"\b\w+\.zoom=", text) is not None
