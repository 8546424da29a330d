"""Options: read once, checked, and those that affect code decide the key."""
from __future__ import annotations

import re

import pytest

from tests.house.source_tree import PACKAGE
from tilefuse.base.errors import OptionError
from tilefuse.base.options import Options, option_table


def test_environment_gives_typed_values() -> None:
    found = Options.from_mapping({"TILEFUSE_DEBUG": "3", "TILEFUSE_FUSE": "off", "TILEFUSE_CACHE_DIR": "/x y", "PATH": "/bin"})
    assert (found.debug, found.fuse, found.cache_dir) == (3, False, "/x y")


@pytest.mark.parametrize(("env", "says"), [
    ({"TILEFUSE_DEBIG": "1"}, "did you mean TILEFUSE_DEBUG"),
    ({"TILEFUSE_DEBUG": "loud"}, "not a whole number"),
    ({"TILEFUSE_DEBUG": "9"}, "not one of its values"),
    ({"TILEFUSE_FUSE": "maybe"}, "neither true nor false"),
    ({"TILEFUSE_CHANNELS_LAST": "sometimes"}, "auto, always, never"),
])
def test_wrong_environment_is_refused_with_the_legal_values(env: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Options.from_mapping(env)


def test_keywords_win_and_take_text_or_values() -> None:
    base = Options(debug=1)
    assert base.with_overrides(debug="2", fuse=False) == Options(debug=2, fuse=False)
    assert base.with_overrides() is base
    with pytest.raises(OptionError, match="did you mean fast_math"):
        base.with_overrides(fastmath=True)
    with pytest.raises(OptionError, match="is int, not True"):
        base.with_overrides(debug=True)
    with pytest.raises(OptionError, match="is outside 0 to"):
        base.with_overrides(jobs=-1)


def test_the_code_key_holds_exactly_what_affects_code() -> None:
    assert Options(debug=4, cache_dir="/a").code_key() == Options().code_key()
    assert Options(fast_math=True).code_key() != Options().code_key()
    assert {name for name, _ in Options().code_key()} == {r.name for r in option_table() if r.affects_code}


def test_every_option_is_documented() -> None:
    for record in option_table():
        assert len(record.doc) > 10, record.name
        assert record.variable == f"TILEFUSE_{record.name.upper()}"
        assert not record.choices or record.default in record.choices


def test_changed_names_only_what_differs() -> None:
    assert Options(debug=2).changed() == {"debug": 2}


def test_every_option_is_read() -> None:
    """Somewhere outside the record of options: one that nobody reads promises what does not happen."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in PACKAGE.rglob("*.py") if p.name != "options.py")
    assert [o.name for o in option_table() if not re.search(rf"(?:[oO]ptions|chosen)\.{o.name}\b", text)] == []
