"""Indices and labels out of range: the host executor raises where eager torch does, and says what, where and what would be legal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilefuse
from tests.end_to_end.torch.strict import strict
from tilefuse.base.errors import IndexRangeError

pytestmark = pytest.mark.usefixtures("fresh")

TABLE = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
SCORES = torch.randn(5, 3, generator=torch.Generator().manual_seed(2))
LINE = torch.arange(4.0)


def at(*indices: int) -> torch.Tensor:
    return torch.tensor(indices)


# A function, its tensors with legal indices, the number of the tensor that becomes illegal, what it becomes, and words of the error.
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], int, torch.Tensor, tuple[str, ...]]] = {
    "embedding": (lambda w, i: F.embedding(i, w) * 2, (TABLE, at(0, 3)), 1, at(0, 400000), ("400000", "[1]", "4 elements")),
    "embedding does not wrap": (lambda w, i: F.embedding(i, w) + 1, (TABLE, at(0, 3)), 1, at(-1, 3), ("index -1", "[0]")),
    "bags": (lambda w, i: F.embedding_bag(i.view(2, 2), w, mode="sum"), (TABLE, at(0, 1, 2, 3)), 1, at(0, 1, 4, 3), ("index 4", "[2]")),
    "index_select": (lambda x, i: x.index_select(1, i) * 2, (TABLE, at(5, 0)), 1, at(5, 6), ("index 6", "dimension 1", "6 elements")),
    "gather": (lambda x, i: x.gather(1, i) + 1, (TABLE, at(1, 0, 5, 2).view(4, 1)), 1, at(1, 0, 5, 7).view(4, 1), ("index 7", "[3, 0]")),
    "take": (lambda x, i: x.take(i), (TABLE, at(23, -24)), 1, at(23, -25), ("index -25", "[1]", "-24 to 23")),
    "subscript": (lambda x, i: x[:, i] + 1, (TABLE, at(5, -6)), 1, at(5, -7), ("index -7", "dimension 1", "-6 to 5")),
    "two subscripts": (lambda x, i, j: x[i, j], (TABLE, at(0, 1), at(2, 3)), 2, at(2, 9), ("index 9", "dimension 1")),
    "label": (lambda x, t: F.cross_entropy(x, t), (SCORES, at(0, 2, -100, 1, 1)), 1, at(0, 7, -100, 1, 1), ("index 7", "[1]", "0 to 2")),
    "label of scores": (lambda x, t: F.nll_loss(x, t, reduction="none"), (SCORES, at(0, 2, -100, 1, 1)), 1, at(0, 2, -100, 3, 1),
                        ("index 3", "[3]")),
    "ignored label": (lambda x, t: F.cross_entropy(x, t, ignore_index=2), (SCORES, at(0, 2, 1, 1, 1)), 1, at(0, 2, -100, 1, 1),
                      ("index -100", "[2]")),
    "labels of pixels": (lambda x, t: F.cross_entropy(x.view(1, 3, 5), t.view(1, 5)), (SCORES, at(0, 2, 1, 1, 1)), 1, at(0, 2, 1, 1, 3),
                         ("index 3",)),
    "scatter": (lambda x, i, s: x.scatter(0, i, s), (LINE, at(1, 3), at(5, 6).float()), 1, at(1, 4), ("index 4", "[1]")),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), (LINE, at(1, 3), at(5, 6).float()), 1, at(1, 99), ("index 99", "4 elements")),
    "scatter_reduce": (lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), (LINE, at(1, 3), at(5, 6).float()), 1, at(-1, 3), ("index -1",)),
    "index_add": (lambda x, i, s: x.index_add(0, i, s), (TABLE, at(1, 3), TABLE[:2]), 1, at(1, 4), ("index 4", "dimension 0")),
    "index_put": (lambda x, i, s: x.index_put((i,), s, accumulate=True), (LINE, at(1, -4), at(5, 6).float()), 1, at(1, -5), ("index -5",)),
    "of narrow integers": (lambda x, i: x[i.int()] * 2, (LINE, at(1, 3)), 1, at(1, 4), ("index 4",)),
    "class": (lambda i: F.one_hot(i, 4) * 2, (at(0, 3),), 0, at(0, 4), ("index 4", "[1]", "0 to 3")),
    "negative class": (lambda i: F.one_hot(i.view(1, 2), 4).sum(0), (at(0, 3),), 0, at(-1, 3), ("index -1", "[0]")),
    "index_fill": (lambda x, i: x.index_fill(0, i, 7.0), (TABLE, at(1, -4)), 1, at(1, -5), ("index -5", "-4 to 3")),
    "index_copy": (lambda x, i, s: x.index_copy(0, i, s), (TABLE, at(1, 3), TABLE[:2]), 1, at(1, -1), ("index -1", "dimension 0")),
    "index_reduce": (lambda x, i, s: x.index_reduce(0, i, s, "mean"), (TABLE, at(1, 3), TABLE[:2]), 1, at(1, 4), ("index 4",)),
    "put": (lambda x, i, s: x.put(i, s), (TABLE, at(1, -24), at(5, 6).float()), 1, at(1, -25), ("index -25",)),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i) + 1, (TABLE, at(1, 23)), 1, at(1, 24), ("index 24",)),
    "masked_scatter": (lambda x, m, s: x.masked_scatter(m, s) + 1, (LINE, at(1, 0, 1, 0).bool(), at(5, 6).float()), 1,
                       at(1, 1, 1, 0).bool(), ("index 2", "2 elements")),
    "max_unpool": (lambda x, i: F.max_unpool2d(x.view(1, 1, 2), i.view(1, 1, 2), (1, 2)), (LINE[:2], at(0, 3)), 1, at(0, -1),
                   ("index -1",)),
    "margin": (lambda x, t: F.multi_margin_loss(x, t), (SCORES, at(0, 2, 1, 1, 1)), 1, at(0, 2, 1, 1, 3), ("index 3",)),
    "computed": (lambda x, i: x[i * 2 + 1], (LINE, at(0, 1)), 1, at(0, 3), ("index 7", "[1]")),
}


@pytest.mark.parametrize("check", [False, True], ids=["plain", "checked"])
@pytest.mark.parametrize("name", CASES)
def test_the_host_raises_where_eager_does(name: str, check: bool) -> None:
    if check and name not in ("embedding", "label", "scatter"):
        pytest.skip("one case a kind of kernel")
    fn, legal, number, wrong, words = CASES[name]
    compiled = torch.compile(fn, backend=strict, options={"check": check})
    torch.testing.assert_close(compiled(*legal), fn(*legal))
    bad = (*legal[:number], wrong, *legal[number + 1 :])
    with pytest.raises((IndexError, RuntimeError)):
        fn(*bad)
    with pytest.raises(IndexRangeError) as caught:
        compiled(*bad)
    assert isinstance(caught.value, IndexError) and isinstance(caught.value, RuntimeError)
    for word in words:
        assert word in str(caught.value)
    # The program is fit for the next call.
    torch.testing.assert_close(compiled(*legal), fn(*legal))


def test_training_raises_before_it_changes_a_weight() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Flatten(), torch.nn.Linear(8, 3))
    before = [p.detach().clone() for p in model.parameters()]

    @torch.compile(backend=strict)
    def loss(ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(ids), labels)

    loss(at(0, 6, 3, 1).view(2, 2), at(0, 2)).backward()
    for ids, labels in ((at(0, 7, 3, 1), at(0, 2)), (at(0, 6, 3, 1), at(0, 3))):
        with pytest.raises(IndexError):
            loss(ids.view(2, 2), labels)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_of_many_the_first_place_is_named() -> None:
    compiled = torch.compile(lambda x, i: x[i] * 2, backend=strict)
    indices = torch.zeros(200_000, dtype=torch.int64)
    compiled(LINE, indices)
    indices[[150_000, 70_001, 199_999]] = 11
    with pytest.raises(IndexRangeError, match=r"index 11 at \w+\[70001\]"):
        compiled(LINE, indices)


def test_an_option_turns_checks_off() -> None:
    compiled = torch.compile(lambda w, i, s: (F.embedding(i, w) * 2, w.index_add(0, i, s)), backend=strict, options={"index_checks": False})
    looked_up, added = compiled(TABLE, at(0, 4), TABLE[:2])
    torch.testing.assert_close(looked_up, TABLE[[0, 3]] * 2)
    torch.testing.assert_close(added, TABLE.index_add(0, at(0), TABLE[:1]))


def test_a_saved_program_raises(tmp_path: Any) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(TABLE.clone())

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return F.embedding(ids, self.weight).tanh()

    program = tilefuse.compile(Model(), (at(0, 3),), device="host")
    program.save(tmp_path / "model.tilefuse")
    loaded = tilefuse.load(tmp_path / "model.tilefuse")
    loaded(at(0, 1))
    with pytest.raises(IndexRangeError, match=r"index 4 at ids\[1\]"):
        loaded(at(0, 4))


def test_indices_in_range_by_construction_are_not_checked() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(4)
        return x[rows, y.argmax(1)] + x[rows.flip(0), rows % 6]

    from tilefuse.driver.torch_backend import compiled_parts

    compiled = torch.compile(fn, backend=strict)
    torch.testing.assert_close(compiled(TABLE, TABLE + 1), fn(TABLE, TABLE + 1))
    (part,) = compiled_parts()
    assert "tf_in_range" not in part.program.source()


def test_an_assertion_on_data_is_kept() -> None:
    """As a library call where it is about no range, also where nothing reads what it asserts."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x.sum() > 0), "the sum must be positive")
        return x.exp() * 2

    compiled = torch.compile(fn, backend=strict)
    for _ in range(2):
        torch.testing.assert_close(compiled(LINE), fn(LINE))
    with pytest.raises(RuntimeError, match="the sum must be positive"):
        compiled(-LINE)


def test_a_class_is_checked_where_it_is_read() -> None:
    """`one_hot` is taken apart into comparisons with assertions: one kernel, and no reduction for the assertions."""
    compiled = tilefuse.compile(lambda i: F.one_hot(i, 5) * 3, (at(1, 4),), device="host")
    assert len(compiled.kernels) == 1 and not compiled.explain(json=True)["fallbacks"]
