"""Arrays computed by compiled kernels on the host executor: values, buffers that are kept, programs that are found again."""
from __future__ import annotations

import array
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tilefuse.array as ta
from tests.end_to_end.arrays.array_cases import check_values, check_writes, drawn, many_functions
from tilefuse import nn
from tilefuse.arrays.evaluation import evaluate as array_evaluate
from tilefuse.arrays.nodes import Applied
from tilefuse.base.errors import IndexRangeError, ShapeError, TypeMismatchError, UserError


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays are made on the host, also where there is a GPU (tests/gpu/test_arrays.py runs on it)."""
    monkeypatch.setattr(array_evaluate.Evaluation, "default_device", staticmethod(lambda: "host"))


def test_many_functions_in_one_program() -> None:
    """All results of one call of `evaluate` are one program; each result is numpy's."""
    cases = many_functions(6, 10)
    ta.evaluate(*(made for made, _ in cases.values()))
    check_values(cases)


@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float64", "int8", "uint16", "uint64", "bool", "float8_e4m3fn", "float8_e5m2"))
def test_types_on_the_host(dtype: str) -> None:
    """Every type goes in, through a kernel and out again."""
    data = np.array([[0, 1, 5], [7, 2, 1]])
    x = ta.astype(ta.asarray(data), dtype)
    y = ta.where(x == x, x, x) if dtype == "bool" else x + x
    wanted = data.astype(bool) if dtype == "bool" else data * 2
    assert y.numpy().astype("int64").tolist() == wanted.astype("int64").tolist() and y.dtype == getattr(ta, dtype)


@pytest.mark.alone
def test_a_structure_is_compiled_once() -> None:
    """The second evaluation of a structure finds its program, whatever the data, and costs little."""
    x = ta.asarray(drawn(16, 16))

    def step(w: Any) -> Any:
        return w - (w * w * 0.25 + x) / 8.0

    w = ta.evaluate(step(step(x)))
    before = len(array_evaluate._programs)
    best = 1.0
    for _ in range(30):
        began = time.perf_counter()
        w = ta.evaluate(step(step(w)))
        best = min(best, time.perf_counter() - began)
    assert len(array_evaluate._programs) <= before + 1  # w and x were one leaf the first time
    assert best < 1e-3, f"{best * 1e6:.0f} us for twelve operations, one lookup and one launch"


def test_computed_arrays_keep_their_data() -> None:
    """A computed array is not computed again; what was named to `evaluate` forgets how it was computed, what was printed does not."""
    x = ta.asarray(drawn(4))
    y = x + 1
    z = y * 2
    assert isinstance(y.node, Applied) and y.node.buffer is None
    first = y.numpy()
    assert y.node.buffer is not None and y.node.operands == (x.node,)
    np.testing.assert_array_equal(y.numpy(), first)
    assert ta.evaluate(z) is z and z.node.operands == ()
    both = ta.evaluate(x + 2, x + 3, keep_history=True)
    assert isinstance(both, tuple) and all(a.node.operands for a in both)


def test_gradients_know_what_was_forgotten() -> None:
    """Printed arrays can be differentiated; through what `evaluate` forgot there is an error, not zero; real independence is zero."""
    x, other = ta.asarray(drawn(4)), ta.asarray(drawn(4))
    y = ta.sum(x * x)
    assert float(y) > 0
    np.testing.assert_allclose(ta.grad(y, x).numpy(), 2 * x.numpy(), rtol=1e-6)
    assert ta.grad(y, other).numpy().tolist() == [0] * 4
    half = ta.evaluate(x * 0.5)
    with pytest.raises(UserError, match="does not depend on array 0 .*test_array_execution.py:[0-9]+, and forgot how"):
        ta.grad(ta.sum(half * half), x)
    np.testing.assert_allclose(ta.grad(ta.sum(half * half), half).numpy(), x.numpy(), rtol=1e-6)
    part = x[1:3]
    np.testing.assert_allclose(ta.grad(ta.sum(part * part), x).numpy(), [0, *(2 * x.numpy()[1:3]), 0], rtol=1e-6)


def test_batches_compile_nothing() -> None:
    """A slice of data that is there is a view of it: loops over batches keep one program."""
    x = ta.asarray(drawn(64, 8))
    totals = [float(ta.sum(x[i:i + 16] * 2.0)) for i in range(0, 64, 16)]
    count = len(array_evaluate._programs)
    np.testing.assert_allclose(totals, [2 * x.numpy()[i:i + 16].sum() for i in range(0, 64, 16)], rtol=1e-4, atol=1e-4)
    assert float(ta.sum(x[3:19] * 2.0)) and len(array_evaluate._programs) == count
    assert x[16:].numpy().base is not None or np.shares_memory(x[16:].numpy(), x.numpy())
    np.testing.assert_array_equal(x[::-1].numpy(), x.numpy()[::-1])
    parts = x[2:4], x[4:6]
    for part in parts:
        part.node.buffer = None  # as after a donation: two views are two structures
    np.testing.assert_array_equal(ta.concat(parts).numpy(), x.numpy()[2:6])


def test_strided_data() -> None:
    """Data that does not lie row-major, that is repeated, reversed, or not aligned."""
    base = drawn(7, 9)
    for data in (base.T, base[::2, 1:], base[::-1], np.broadcast_to(base[0], (3, 9)), base[1:, 1:]):
        np.testing.assert_array_equal((ta.asarray(data) + 0.0).numpy(), data)
    tensor = torch.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal((ta.asarray(tensor.t()) * 2).numpy(), tensor.t().numpy() * 2)
    np.testing.assert_array_equal((ta.asarray(tensor[:1].expand(5, 4)) * 2).numpy(), tensor[:1].expand(5, 4).numpy() * 2)


def test_memory_is_shared() -> None:
    """numpy and torch, both ways, without a copy; `copy` is obeyed."""
    data = drawn(8)
    x = ta.asarray(data)
    assert np.shares_memory(x.numpy(), data) and not np.shares_memory(ta.asarray(data, copy=True).numpy(), data)
    tensor = torch.ones(4)
    assert torch.from_dlpack(ta.from_dlpack(tensor)).data_ptr() == tensor.data_ptr()
    made = x + 1
    assert np.shares_memory(np.from_dlpack(made), made.numpy()) and np.asarray(made).dtype == np.float32
    assert x.__dlpack_device__()[0] == 1
    assert ta.asarray(array.array("d", [1, 2])).numpy().tolist() == [1, 2] and ta.asarray(bytearray(b"ab")).dtype == ta.uint8
    with pytest.raises(UserError, match="without a copy"):
        ta.asarray([1, 2], copy=False)
    with pytest.raises(UserError, match="without a copy"):
        ta.asarray(data, dtype="float64", copy=False)
    with pytest.raises(TypeMismatchError, match="has no __dlpack__"):
        ta.from_dlpack([1.0])


def test_tensors_without_plain_memory() -> None:
    """A lazily negated tensor is resolved; sparse and meta tensors and devices that are not here are refused at the line."""
    assert (ta.asarray(torch._neg_view(torch.arange(3.0))) + 0).numpy().tolist() == [0.0, -1.0, -2.0]
    for wrong in (torch.eye(2).to_sparse(), torch.ones(2, device="meta")):
        with pytest.raises(TypeMismatchError, match="no elements side by side"):
            ta.asarray(wrong)
    if not torch.cuda.is_available():
        for call in (lambda: ta.asarray([1.0], device="cuda:0"), lambda: ta.ones((2,)).to_device("cuda")):
            with pytest.raises(UserError, match="no device cuda:0 here"):
                call()


def test_numbers_and_lists() -> None:
    """Default types, nesting, and what is no array."""
    assert ta.asarray(3).dtype == ta.int64 and ta.asarray(3.0).dtype == ta.float32 and ta.asarray([True]).dtype == ta.bool
    assert ta.asarray([[1, 2], [3, 4.5]]).shape == (2, 2) and ta.asarray([]).shape == (0,) and ta.asarray(np.float64(2)).dtype == ta.float64
    assert ta.asarray([ta.asarray(1), 2]).numpy().tolist() == [1, 2] and ta.asarray(7, dtype="uint8").dtype == ta.uint8
    for data, message in (([[1], [2, 3]], "one shape"), (["a"], "no array of numbers"), ("a", "type str is no array of numbers"),
                          (object(), "type object is no array of numbers")):
        with pytest.raises(TypeMismatchError, match=message):
            ta.asarray(data)
    with pytest.raises(TypeMismatchError, match="300 is outside uint8"):
        ta.asarray(300, dtype="uint8")
    with pytest.raises(TypeMismatchError, match="did you mean float32"):
        ta.zeros((2,), dtype="flaot32")


def test_printing() -> None:
    """As numpy prints, with the type."""
    assert repr(ta.asarray([[1.0, 2.5], [3.0, 4.0]]) * 2) == "Array([[2., 5.],\n       [6., 8.]], dtype=float32)"
    assert repr(ta.asarray([1, 2])) == "Array([1, 2], dtype=int64)" and str(ta.asarray(5)) == "5"
    assert repr(ta.astype(ta.asarray([1.5]), "bfloat16")) == "Array([1.5], dtype=bfloat16)"
    assert repr(ta.zeros((0, 3))) == "Array([], shape=(0, 3), dtype=float32)"
    assert f"{ta.asarray(1.25) * 2:.3f}" == "2.500"


def test_scalars() -> None:
    """Python's conversions compute; an array of several elements has no truth."""
    x = ta.asarray([[2.5]])
    assert float(x) == 2.5 and int(x) == 2 and bool(x) and complex(x) == 2.5 and x.item() == 2.5
    assert [10, 20, 30][ta.asarray(1) + 1] == 30 and len(ta.zeros((3, 2))) == 3 and [float(v) for v in ta.arange(3)] == [0, 1, 2]
    assert ta.asarray([1, 2]).tolist() == [1, 2]
    with pytest.raises(ShapeError, match="any\\(\\) and all\\(\\)"):
        bool(ta.asarray([1, 2]) > 1)
    with pytest.raises(TypeMismatchError, match="an index is an integer"):
        [1][ta.asarray(0.0)]
    with pytest.raises(TypeMismatchError, match="no length"):
        len(ta.asarray(1))


def test_methods() -> None:
    """Those that numpy and torch share give what numpy's give."""
    data = drawn(3, 1, 5)
    x = ta.asarray(data)
    made = {
        "sum": (x.sum(axis=0), data.sum(0)), "mean": (x.mean(-1, keepdims=True), data.mean(-1, keepdims=True)),
        "max": (x.max(), data.max()),
        "min": (x.min(axis=(0, 2)), data.min((0, 2))), "prod": (x.prod(2), data.prod(2)), "std": (x.std(), data.std()),
        "var": (x.var(0, correction=1), data.var(0, ddof=1)), "argmax": (x.argmax(axis=2), data.argmax(2)),
        "argmin": (x.argmin(), data.argmin()), "any": ((x > 1).any(0), (data > 1).any(0)), "all": ((x > -9).all(), (data > -9).all()),
        "cumsum": (x.cumsum(2), data.cumsum(2)),
        "reshape": (x.reshape(5, -1), data.reshape(5, -1)), "tuple": (x.reshape((5, 3)), data.reshape(5, 3)),
        "flatten": (x.flatten(), data.flatten()),
        "squeeze": (x.squeeze(), data.squeeze()), "swapaxes": (x.swapaxes(0, -1), data.swapaxes(0, -1)),
        "clip": (x.clip(-1, 1), data.clip(-1, 1)),
        "astype": ((x * 3).astype("int32"), (data * 3).astype("int32")), "round": (x.round(), data.round()),
        "dot": (x[0].dot(x[0].T), data[0].dot(data[0].T)),
    }
    ta.evaluate(*(a for a, _ in made.values()))
    for name, (got, wanted) in made.items():
        assert got.shape == wanted.shape, name
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-5, atol=1e-6, err_msg=name)


def test_numpys_reductions_leave_the_work_to_the_methods() -> None:
    x = ta.asarray([[1.0, 2.0], [3.0, 4.0]])
    for name in ("sum", "prod", "mean", "max", "min", "any", "all"):
        made = getattr(np, name)(x, axis=0)
        assert isinstance(made, ta.Array) and made.numpy().tolist() == getattr(np, name)(x.numpy(), axis=0).tolist(), name
        with pytest.raises(TypeMismatchError, match="nothing is written to out"):
            getattr(np, name)(x, axis=0, out=np.zeros(2))


def test_random_numbers() -> None:
    """Reproducible from a seed, one program for all seeds, sound moments; the generator goes on."""
    first = ta.random.normal((400, 50), seed=5).numpy()
    count = len(array_evaluate._programs)
    np.testing.assert_array_equal(first, ta.random.normal((400, 50), seed=5).numpy())
    assert not np.array_equal(first, ta.random.normal((400, 50), seed=6).numpy()) and len(array_evaluate._programs) == count
    assert abs(first.mean()) < 0.03 and abs(first.std() - 1) < 0.03
    ta.random.seed(1)
    a, b = ta.random.uniform((1000,), low=2, high=4).numpy(), ta.random.uniform((1000,), low=2, high=4).numpy()
    ta.random.seed(1)
    np.testing.assert_array_equal(a, ta.random.uniform((1000,), low=2, high=4).numpy())
    assert not np.array_equal(a, b) and a.min() >= 2 and a.max() < 4
    whole = ta.random.integers(-2, 3, (2000,), seed=3).numpy()
    assert set(whole.tolist()) == {-2, -1, 0, 1, 2} and abs(ta.random.bernoulli(0.25, (4000,), seed=2).numpy().mean() - 0.25) < 0.03
    kept = ta.dropout(ta.ones((4000,)), 0.25, seed=9).numpy()
    assert set(np.unique(kept)) == {0, np.float32(4 / 3)} and abs((kept > 0).mean() - 0.75) < 0.03


def test_long_chains() -> None:
    """A graph that was unrolled a thousand times is no deeper than the compiler goes."""
    x = ta.asarray(drawn(3))
    y = x
    for _ in range(300):
        y = y * 0.5 + x
    np.testing.assert_allclose(y.numpy(), 2 * x.numpy(), rtol=1e-5)


def test_devices() -> None:
    """Names of devices, moving, and what does not exist."""
    x = ta.zeros((2,), device="cpu")
    assert x.device == "host" and x.to_device("host") is x
    with pytest.raises(UserError, match="there is no device 'tpu'"):
        ta.zeros((2,), device="tpu")


def test_types_of_numpy_that_arrays_have_not() -> None:
    """Refused at the user's line; numbers in the other byte order are turned, and a mask is not lost."""
    masked = np.ma.masked_array([1.0, 2.0], [False, True])
    for wrong, words in ((np.array([None]), "no type object"), (np.zeros(2, np.longdouble), "no type"), (np.array(["a"]), "no type <U1"),
                         (np.array(["2020-01-01"], "M8[D]"), "no type datetime64"), (masked, "masked array"),
                         (np.zeros(2, np.clongdouble), "no type complex256")):
        with pytest.raises(TypeMismatchError, match=words) as caught:
            ta.asarray(wrong)
        assert str(caught.value.where).startswith(f"{__file__}:"), caught.value
    assert ta.asarray(np.arange(3, dtype=">f4")).numpy().tolist() == [0.0, 1.0, 2.0]
    assert ta.compile(lambda x: x + 1)(np.arange(3, dtype=">i8")[::-1]).numpy().tolist() == [3, 2, 1]


def test_only_arrays_are_evaluated() -> None:
    for wrong in ([ta.ones((2,))], np.ones(2)):
        with pytest.raises(TypeMismatchError, match="evaluate takes arrays"):
            ta.evaluate(wrong)  # type: ignore[arg-type]


def test_options_of_one_evaluation() -> None:
    """Options of a compile reach it, and are part of the key."""
    x = ta.asarray(drawn(5, 7))

    def network() -> Any:
        return ta.softmax(ta.exp(x) * 0.5 + 1.0)

    fused, apart = ta.evaluate(network()), ta.evaluate(network(), fuse=False)
    np.testing.assert_allclose(fused.numpy(), apart.numpy(), rtol=1e-6)
    assert len(ta.program(network()).kernels) == 1 < len(ta.program(network(), fuse=False).kernels)
    with pytest.raises(UserError, match="nothing left to compute"):
        ta.program(fused, apart)


def test_writes_and_masks() -> None:
    """`x[key] = value` by the framework where data is known, by kernels elsewhere; what masks read."""
    check_writes("host")


# Operations of torch 2.11 on a CUDA device for unsigned integers of 16 to 64 bits: moving bytes, and viewing them.
MOVING = {"_to_copy", "alias", "as_strided", "clone", "copy_", "detach", "empty", "empty_strided", "expand", "lift_fresh", "select",
          "slice", "unsqueeze", "view", "_local_scalar_dense", "t", "transpose", "permute"}


class AsOnADevice(TorchDispatchMode):
    """Refuses operators of the framework that a CUDA device does not have for wide unsigned integers and 8-bit floats."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [a for a in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        kinds = {t.dtype for t in given}
        narrow = kinds & {torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2}
        name = func.overloadpacket.__name__
        if narrow and (name not in MOVING or name == "copy_" and len(kinds) > 1):
            raise NotImplementedError(f'"{name}_cuda" not implemented for {narrow}')
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"))
def test_types_that_the_framework_hardly_knows_are_written_and_read(dtype: str) -> None:
    """Writes, masks, index arrays, distinct elements and repetitions ask the framework for nothing that it lacks on a device."""
    x = ta.evaluate(ta.astype(ta.asarray([3, 1, 3, 2]), dtype))
    wide, narrow = ta.asarray([5, 6]), ta.evaluate(ta.astype(ta.asarray([7, 8]), dtype))
    mask, whole = ta.asarray([True, False, True, True]), not x.dtype.is_float
    with AsOnADevice():
        x[1] = 4
        x[2:] = narrow
        x[::2] = wide if whole else narrow
        x[ta.asarray([3])] = 1
        x[mask] = x[0]
        found = [x, x[mask], ta.unique_values(x), ta.repeat(x, ta.asarray([2, 0, 1, 0])), x[[1, -1]], x[1:3]]
        ta.evaluate(*found)
    first = 5 if whole else 7
    assert [f.tolist() for f in found] == [[first, 4, first, first], [first] * 3, [4, first], [first] * 3, [4, first], [4, first]]


def test_indices_out_of_range_raise() -> None:
    """Positions, labels and places written to are checked when they are computed; the class is the one that users of NumPy catch."""
    x, wrong = ta.asarray([1.0, 2.0, 3.0]), ta.asarray([0, 7])
    assert x[ta.asarray([2, -3])].numpy().tolist() == [3.0, 1.0]
    cases = {"x[i]": lambda: x[wrong], "take": lambda: ta.take(x, wrong), "negative": lambda: x[ta.asarray([0, -4])],
             "along": lambda: ta.take_along_axis(x, wrong), "embedding": lambda: nn.embedding(ta.reshape(x, (3, 1)), wrong),
             "label": lambda: nn.cross_entropy(ta.reshape(x, (1, 3)), ta.asarray([3]))}
    for name, made in cases.items():
        with pytest.raises(IndexError, match=r"index (7|-4|3) at .* is out of range"):
            made().numpy()
            pytest.fail(f"{name} did not raise")
    y = ta.asarray([1.0, 2.0, 3.0])
    with pytest.raises(IndexRangeError):
        y[wrong] = 5.0
        y.numpy()
