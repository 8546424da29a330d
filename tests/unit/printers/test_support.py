"""The support headers: chunks that generated code pulls in by name."""
from __future__ import annotations

import pytest

from tilefuse.printers import support


@pytest.mark.parametrize("target", sorted(support.HEADERS))
def test_no_two_chunks_define_the_same_name(target: str) -> None:
    """A second chunk of a name would hide the first one: what called that would be pasted without it."""
    names = [name for chunk in support.chunks(target) for name in chunk.names]
    assert sorted(set(names)) == sorted(names)
