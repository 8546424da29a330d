"""Groups around steps: modules, repeated layers, runs; none holds more boxes than can be read."""
from __future__ import annotations

from tilefuse.pages.groups import MAX_CHILDREN, Group, Step, grouped


def chain(forms: list[str], paths: list[str] | None = None) -> list[Step]:
    """Steps of which each reads the one before."""
    return [Step(f"k{n}", form, paths[n] if paths else "", frozenset([f"v{n - 1}"] if n else []), frozenset([f"v{n}"]))
            for n, form in enumerate(forms)]


def shape(members: list[Group | Step]) -> list[object]:
    """Keys of steps, and lists for groups."""
    return [shape(m.members) if isinstance(m, Group) else m.key for m in members]


def steps_in(members: list[Group | Step]) -> list[str]:
    """Keys of all steps, in order."""
    return [key for m in members for key in (steps_in(m.members) if isinstance(m, Group) else [m.key])]


def widest(members: list[Group | Step]) -> int:
    """Most boxes in one group."""
    return max([len(members), *(widest(m.members) for m in members if isinstance(m, Group))])


def test_modules_become_groups_inside_groups() -> None:
    steps = chain(["a", "b", "a", "b"], ["layers.0.norm", "layers.0.linear", "layers.1.norm", "layers.1.linear"])
    made = grouped(steps)
    assert shape(made) == [["k0", "k1"], ["k2", "k3"]]
    assert [g.label for g in made if isinstance(g, Group)] == ["layers.0", "layers.1"]


def test_a_module_that_is_entered_again_has_two_groups() -> None:
    made = grouped(chain(["a", "b", "a", "b", "a", "b"], ["x.p", "x.q", "y.p", "y.q", "x.p", "x.q"]))
    assert [g.label for g in made if isinstance(g, Group)] == ["x (1 of 2)", "y", "x (2 of 2)"]


def test_repeated_steps_become_layers_of_one_form() -> None:
    made = grouped(chain(["in", *["conv", "norm", "conv", "add"] * 3, "out"]))
    assert shape(made) == ["k0", ["k1", "k2", "k3", "k4"], ["k5", "k6", "k7", "k8"], ["k9", "k10", "k11", "k12"], "k13"]
    assert len({g.form for g in made if isinstance(g, Group)}) == 1


def test_a_layer_begins_where_a_single_value_enters() -> None:
    """Of the rotations of a residual block, all repeated as often, the block itself is the layer."""
    steps: list[Step] = []
    for n in range(4):
        steps += [Step(f"a{n}", "conv", "", frozenset([f"y{n}"]), frozenset([f"p{n}"])),
                  Step(f"b{n}", "norm", "", frozenset([f"p{n}"]), frozenset([f"q{n}"])),
                  Step(f"c{n}", "add", "", frozenset([f"q{n}", f"y{n}"]), frozenset([f"y{n + 1}"]))]
    assert shape(grouped(steps)) == [[f"a{n}", f"b{n}", f"c{n}"] for n in range(4)]


def test_no_group_holds_more_than_can_be_read_and_none_loses_a_step() -> None:
    for forms in ([f"f{n}" for n in range(5000)], ["a", "b", "c"] * 900, ["a"] * 3000):
        made = grouped(chain(forms))
        assert steps_in(made) == [f"k{n}" for n in range(len(forms))]
        assert widest(made) <= MAX_CHILDREN
