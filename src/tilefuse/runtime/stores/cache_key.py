"""The key of a compiled kernel in the cache: its source, and all other inputs of its machine code."""
from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

# Format of the entries. Entries of another format are misses.
FORMAT = "1"


@dataclass(frozen=True, slots=True)
class CacheKey:
    """All inputs of a compiled kernel. `label` names it for people and is not part of the key.

    identity: the part of the source that decides the code (see `kernel_identity`); "" for all of it.
    fields: (name, value) pairs besides the source, in order of importance: target, arch, compiler, version, flags.
    """

    label: str
    source: str
    fields: tuple[tuple[str, str], ...]
    identity: str = ""

    @property
    def source_sha(self) -> str:
        """Digest of the part of the source that decides the code."""
        return hashlib.sha256((self.identity or self.source).encode()).hexdigest()

    @property
    def digest(self) -> str:
        """Name of the entry: equal exactly for equal source and fields."""
        text = json.dumps([FORMAT, self.source_sha, *self.fields])
        return hashlib.sha256(text.encode()).hexdigest()
