"""Names of values: plain characters, and names that are free."""
from __future__ import annotations

from tilefuse.ir.names import free_name, plain_name


def test_characters_outside_the_text_form_are_replaced() -> None:
    assert [plain_name(n) for n in ("x.weight", "a-b c", "größe", "", "2x")] == ["x_weight", "a_b_c", "gr__e", "v", "2x"]


def test_a_taken_name_gets_the_first_free_number() -> None:
    taken = {"a", "a_1"}
    assert [free_name(n, taken) for n in ("a", "a", "b", "b")] == ["a_2", "a_3", "b", "b_1"]
    assert taken == {"a", "a_1", "a_2", "a_3", "b", "b_1"}
