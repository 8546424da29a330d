"""Shape flags: the forms of the ONNX tools, and errors that say the right form."""
from __future__ import annotations

import pytest

from tilefuse.base.errors import OptionError
from tilefuse.tools.shapes import ShapeFlag, parse_shapes


def test_several_flags_and_one_with_commas_mean_the_same() -> None:
    wanted = {"x": ShapeFlag("x", (1, 3, 224, 224)), "ids": ShapeFlag("ids", (1, 128), "i64")}
    assert parse_shapes(["x:1x3x224x224", "ids:1x128@i64"]) == wanted
    assert parse_shapes(["x:1x3x224x224,ids:1x128@i64"]) == wanted


def test_names_may_hold_colons_and_scalars_have_no_extents() -> None:
    assert parse_shapes(["input:0:4x5", "t:scalar"]) == {"input:0": ShapeFlag("input:0", (4, 5)), "t": ShapeFlag("t", ())}


@pytest.mark.parametrize(("flag", "said"), [
    ("x", "not of the form"), ("x:axb", "not of the form"), ("x:1x2@f33", "unknown dtype"), ("x:1,x:2", "twice"),
    (":1x2", "not of the form"),
])
def test_wrong_flags_say_what_is_wrong(flag: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse_shapes([flag])
