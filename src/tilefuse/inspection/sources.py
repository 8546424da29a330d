"""Sources of a compiled object's kernels."""
from __future__ import annotations

from typing import Any

from tilefuse.base.errors import NameLookupError, nearest
from tilefuse.inspection.subject import subject_of


def source_of(compiled: Any, kernel: str | None = None) -> str:
    """Source text of one kernel, or of all kernels, each once. kernel: its name, with its program's before a slash where several have one.

    Raises: NameLookupError for an unknown kernel; as `subject_of`.
    """
    subject = subject_of(compiled)
    if kernel is None:
        return "\n".join(dict.fromkeys(k.source for p in subject.parts for k in p.kernels))
    part, _, name = kernel.rpartition("/")
    texts: list[str] = [k.source for p in subject.parts for k in p.kernels if k.name == name and part in ("", p.name)]
    if not texts:
        known = [k.name for p in subject.parts for k in p.kernels]
        raise NameLookupError(f"{subject.name} has no kernel {kernel!r}", hint=nearest(name, known) or f"kernels: {', '.join(known[:20])}")
    return texts[0]
