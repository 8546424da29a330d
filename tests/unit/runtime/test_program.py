"""Programs on the host: results, arguments that do not fit, views, updates, threads, library calls, profile."""
from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.unit.runtime.handmade import HOST, host_kernel, value
from tilefuse.base.errors import DeviceError, InternalError, NameLookupError, OutOfMemoryError, ShapeError, TypeMismatchError, UserError
from tilefuse.base.options import Options
from tilefuse.runtime.calls.arguments import check_argument
from tilefuse.runtime.calls.frame import is_out_of_memory
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import CopyStep, KernelCode, KernelStep, LibraryStep, ProgramSpec
from tilefuse.runtime.stores.cache import KernelCache
from tilefuse.target.launch import Launch, Parameter

PLUS = host_kernel("plus", "a[i] + b[i]", num_inputs=2)
TWICE = host_kernel("twice", "tf_twice(a[i])")
TWICE_SPEC = ProgramSpec("double", "host", ("x",), ("y",), (value("x", "input"), value("y", "result")), (TWICE,),
                         (KernelStep(0, ("x", "y")),))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> KernelCache:
    """One cache for the module, so that each kernel is compiled once."""
    return KernelCache(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def double(cache: KernelCache) -> Program:
    return Program(TWICE_SPEC, {}, cache=cache)


def ramp(*shape: int) -> torch.Tensor:
    """Small integers: every sum of them is exact."""
    return torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)


def test_chain_through_the_arena_and_constants(cache: KernelCache) -> None:
    """y = 2 * (2 * x + w), the intermediates in the arena, the constant bound once."""
    spec = ProgramSpec("p", "host", ("x",), ("y",), (value("x", "input"), value("w", "constant"), value("t", "intermediate"),
                       value("u", "intermediate"), value("y", "result")), (TWICE, PLUS),
                       (KernelStep(0, ("x", "t")), KernelStep(1, ("t", "w", "u")), KernelStep(0, ("u", "y"))))
    x, w = ramp(4, 32), ramp(4, 32) + 7
    program = Program(spec, {"w": w}, cache=cache)
    for _ in range(3):
        assert torch.equal(program(x)[0], 2 * (2 * x + w))
    assert program.memory.arena_bytes == 1024 and program.constants["w"].data_ptr() == w.data_ptr()
    assert program.counts.argument_copies == 0 and program.counts.calls == 3


def test_results_are_new_each_time(double: Program) -> None:
    first, second = double(ramp(4, 32))[0], double(ramp(4, 32))[0]
    assert first.data_ptr() != second.data_ptr()


def test_named_and_numpy_arguments(double: Program) -> None:
    x = ramp(4, 32)
    wanted = (2 * x).numpy()
    assert np.array_equal(double(x=x.numpy())[0], wanted)
    frozen = x.numpy().copy()
    frozen.flags.writeable = False
    found = double(frozen)[0]
    assert type(found) is np.ndarray and np.array_equal(found, wanted)


@pytest.mark.parametrize(("given", "error", "said"), [
    (torch.zeros(4, 31), ShapeError, r"argument 0 \(x\) has shape \(4, 31\), expected \(4, 32\)"),
    (torch.zeros(128), ShapeError, r"\(128,\)"),
    (torch.zeros(4, 32, dtype=torch.float16), TypeMismatchError, "has dtype f16, expected f32"),
    (torch.zeros(4, 32, device="meta"), UserError, "is on meta, the program runs on cpu"),
    (3.5, TypeMismatchError, "argument x is a float"),
    (torch.zeros(4, 32).to_sparse(), TypeMismatchError, "expected a dense tensor"),
])
def test_argument_that_does_not_fit_is_named(double: Program, given: object, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        double(given)
    assert torch.equal(double(ramp(4, 32))[0], 2 * ramp(4, 32))


def test_wrong_number_and_names(double: Program) -> None:
    with pytest.raises(UserError, match=r"takes 1 tensors \(x\), got 2"):
        double(ramp(4, 32), ramp(4, 32))
    with pytest.raises(NameLookupError, match="no input 'z'"):
        double(z=ramp(4, 32))
    with pytest.raises(UserError, match="given twice"):
        double(ramp(4, 32), x=ramp(4, 32))
    with pytest.raises(NameLookupError, match="(?s)twic.*did you mean twice"):
        double.source("twic")


@pytest.mark.parametrize("given", [
    ramp(32, 4).T, ramp(4, 64)[:, ::2], ramp(1, 32).expand(4, 32), ramp(129)[1:].view(4, 32),
    torch.complex(ramp(4, 32), ramp(4, 32)).conj().imag,
], ids=["transposed", "strided", "expanded", "misaligned", "negated"])
def test_other_layouts_are_copied_and_counted(double: Program, given: torch.Tensor) -> None:
    assert torch.equal(double(given)[0], 2 * given)
    assert double.counts.argument_copies == 1


@pytest.mark.parametrize("shape", [(), (64,)])
def test_lazy_negation_is_carried_out(cache: KernelCache, shape: tuple[int, ...]) -> None:
    """The imaginary part of a conjugate is negated lazily; neither a scalar nor a matching stride may hide it."""
    given = torch.complex(torch.ones(shape), torch.full(shape, 3.0)).conj().imag
    values = (value("x", "input", shape, (2,) * len(shape)), value("v", "view", shape, (2,) * len(shape), base="x"))
    spec = ProgramSpec("p", "host", ("x",), ("v",), values, (), ())
    assert given.is_neg() and torch.equal(Program(spec, {}, cache=cache)(given)[0], torch.full(shape, -3.0))


def test_strides_of_single_elements_do_not_matter(cache: KernelCache) -> None:
    """An axis of extent 1 may have any stride: no copy."""
    spec = dataclasses.replace(TWICE_SPEC, values=(value("x", "input", (1, 128)), value("y", "result", (1, 128))))
    program = Program(spec, {}, cache=cache)
    x = ramp(128).as_strided((1, 128), (5, 1))
    assert torch.equal(program(x)[0], 2 * x) and program.counts.argument_copies == 0


def test_parameters_that_need_gradients(double: Program) -> None:
    x = torch.nn.Parameter(ramp(4, 32))
    y, = double(x)
    assert torch.equal(y, 2 * x) and not y.requires_grad and torch.is_grad_enabled()


def test_empty_tensors_run_no_kernel(cache: KernelCache) -> None:
    """No elements: no blocks, no launch, but a result of the right shape."""
    kernel = dataclasses.replace(TWICE, launch=Launch(0, 1))
    values = (value("x", "input", (0, 32)), value("t", "intermediate", (0, 32)), value("y", "result", (0, 32)))
    spec = ProgramSpec("p", "host", ("x",), ("y",), values, (kernel,), (KernelStep(0, ("x", "t")), KernelStep(0, ("t", "y"))))
    assert Program(spec, {}, cache=cache)(torch.zeros(0, 32))[0].shape == (0, 32)


def test_views_of_inputs_results_and_constants(cache: KernelCache) -> None:
    """Results that are views share memory with their base; a kernel may read a view through an offset pointer."""
    kernel = host_kernel("half", "tf_twice(a[i])", count=64)
    values = (value("x", "input"), value("w", "constant"), value("y", "result", (64,)), value("xv", "view", (32, 4), (1, 32), base="x"),
              value("yv", "view", (32,), (1,), base="y", offset=32), value("wv", "view", (64,), (1,), base="w", offset=64))
    spec = ProgramSpec("p", "host", ("x",), ("y", "xv", "yv", "wv", "x"), values, (kernel,), (KernelStep(0, ("wv", "y")),))
    x, w = ramp(4, 32), ramp(4, 32) + 3
    y, xv, yv, wv, same = Program(spec, {"w": w}, cache=cache)(x)
    assert torch.equal(y, 2 * w.flatten()[64:]) and torch.equal(wv, w.flatten()[64:])
    assert torch.equal(xv, x.T) and xv.data_ptr() == x.data_ptr() and same is x
    assert torch.equal(yv, y[32:]) and yv.data_ptr() == y.data_ptr() + 128


def test_view_of_an_argument_with_an_offset(cache: KernelCache) -> None:
    """The view's offset counts from the argument, not from the storage it is a slice of."""
    values = (value("x", "input"), value("xv", "view", (32,), (1,), base="x", offset=32))
    spec = ProgramSpec("p", "host", ("x",), ("xv",), values, (), ())
    x = ramp(8, 32)[4:]
    assert torch.equal(Program(spec, {}, cache=cache)(x)[0], x[1])


UPDATE_SPEC = ProgramSpec("update", "host", ("x", "g"), (), (value("x", "input"), value("g", "input"), value("t", "intermediate")), (PLUS,),
                          (KernelStep(0, ("x", "g", "t")), CopyStep("t", "x")), updates=("x",))


def test_update_reaches_the_callers_memory(cache: KernelCache) -> None:
    """x += g: in place where the argument fits, copied back where it had to be copied."""
    program = Program(UPDATE_SPEC, {}, cache=cache)
    for x in (ramp(4, 32), ramp(32, 4).T, ramp(129)[1:].view(4, 32)):
        expected, address = x + 1, x.data_ptr()
        assert program(x, torch.ones(4, 32)) == []
        assert torch.equal(x, expected) and x.data_ptr() == address
    with pytest.raises(ShapeError, match="updated in place, but several"):
        program(ramp(1, 32).expand(4, 32), torch.ones(4, 32))


def test_inputs_that_change_places(cache: KernelCache) -> None:
    """x, y, z = y, z, x: each copy reads what was there before the call."""
    spec = ProgramSpec("rotate", "host", ("x", "y", "z"), (), tuple(value(n, "input") for n in "xyz"), (),
                       (CopyStep("y", "x"), CopyStep("z", "y"), CopyStep("x", "z")), updates=("x", "y", "z"))
    x, y, z = ramp(4, 32), ramp(4, 32) + 1, ramp(4, 32) + 2
    program = Program(spec, {}, cache=cache)
    for turn in (1, 2):
        program(x, y, z)
        assert [int(t[0, 0]) for t in (x, y, z)] == [turn, (turn + 1) % 3, (turn + 2) % 3]


def test_update_of_a_parameter(cache: KernelCache) -> None:
    x = torch.nn.Parameter(ramp(4, 32))
    expected = x.detach() + 1
    Program(UPDATE_SPEC, {}, cache=cache)(x, torch.ones(4, 32))
    assert torch.equal(x, expected)


def test_kernel_that_writes_its_input_directly(cache: KernelCache) -> None:
    source = HOST % {"name": "bump", "more": "", "last": 0, "count": 128, "body": "y[i] + 1"}
    kernel = KernelCode("bump", "bump", source, "host", "x86_64", Launch(1, 1), (Parameter("x", "f32", 128, "inout"),))
    spec = ProgramSpec("p", "host", ("x",), ("x",), (value("x", "input"),), (kernel,), (KernelStep(0, ("x",)),), updates=("x",))
    x = ramp(4, 32)
    y, = Program(spec, {}, cache=cache)(x)
    assert y is x and torch.equal(x, ramp(4, 32) + 1)


def test_library_results_travel_on(cache: KernelCache) -> None:
    """x @ x.T through torch, its result into a kernel; a result of other strides is copied and counted."""
    values = (value("x", "input", (8, 16)), value("xt", "view", (16, 8), (1, 16), base="x"), value("m", "intermediate", (8, 8)),
              value("y", "result", (8, 8)), value("z", "result", (8, 8), (1, 8)))
    kernel = host_kernel("twice64", "tf_twice(a[i])", count=64)
    spec = ProgramSpec("p", "host", ("x",), ("y", "z"), values, (kernel,),
                       (LibraryStep("matmul", ("x", "xt"), ("m",)), KernelStep(0, ("m", "y")), LibraryStep("matmul", ("x", "xt"), ("z",))))
    program = Program(spec, {}, cache=cache)
    x = ramp(8, 16) % 5
    y, z = program(x)
    assert torch.equal(y, 2 * (x @ x.T)) and torch.equal(z, x @ x.T) and z.stride() == (1, 8)
    assert program.counts.library_copies == 1 and program.library_operators == ("matmul",)


def test_library_result_of_another_shape_is_our_bug(cache: KernelCache) -> None:
    values = (value("x", "input", (8, 8)), value("y", "result", (4, 4)))
    spec = ProgramSpec("p", "host", ("x",), ("y",), values, (), (LibraryStep("matmul", ("x", "x"), ("y",)),))
    with pytest.raises(InternalError, match="matmul gave"):
        Program(spec, {}, cache=cache)(ramp(8, 8))


def test_storage_types_that_numpy_lacks(cache: KernelCache) -> None:
    """A bf16 constant arrives as 16-bit integers of the same bits."""
    bits = torch.arange(8, dtype=torch.bfloat16).view(torch.int16).numpy()
    spec = ProgramSpec("p", "host", (), ("w",), (value("w", "constant", (8,), dtype="bf16"),), (), ())
    assert torch.equal(Program(spec, {"w": bits}, cache=cache)()[0], torch.arange(8, dtype=torch.bfloat16))
    with pytest.raises(TypeMismatchError, match="constant w has dtype"):
        Program(spec, {"w": np.zeros(8, np.float32)}, cache=cache)
    with pytest.raises(ShapeError, match="constant w has shape"):
        Program(spec, {"w": bits[:4]}, cache=cache)
    with pytest.raises(InternalError, match="no data for constant w"):
        Program(spec, {}, cache=cache)


def test_boxed_call_lets_arguments_go(cache: KernelCache) -> None:
    """The list is emptied, and a large argument is freed after its last use: a library call behind it finds it gone."""
    count = 1 << 18
    values = (value("x", "input", (count,)), value("t", "intermediate", (count,)), value("u", "intermediate", (count,)),
              value("y", "result", (count,)))
    spec = ProgramSpec("p", "host", ("x",), ("y",), values, (host_kernel("twice_many", "tf_twice(a[i])", count),),
                       (KernelStep(0, ("x", "t")), KernelStep(0, ("t", "u")), KernelStep(0, ("u", "y"))))
    program = Program(spec, {}, cache=cache)
    x = ramp(count)
    alive = weakref.ref(x)
    expected, boxed = 8 * x, [x]
    del x
    seen: list[bool] = []
    frame = program.new_frame(0)

    def around(step: int, operation: Callable[[], int | None]) -> int | None:
        seen.append(alive() is not None)
        return operation()

    y, = program.run_frame(frame, boxed, around, consume=True)
    assert torch.equal(y, expected) and boxed == [] and seen[0] and not seen[-1]
    assert torch.equal(program.call_boxed([expected])[0], 8 * expected)


def test_trusted_arguments_are_looked_at_again_where_they_move(cache: KernelCache) -> None:
    """A kernel and a library call read w and x; w stays, moves, is unaligned, and stays again, while x moves at every call."""
    values = (value("x", "input", (8, 8)), value("w", "input", (8, 8)), value("s", "intermediate", (8, 8)), value("y", "result", (8, 8)))
    spec = ProgramSpec("p", "host", ("x", "w"), ("y",), values, (host_kernel("plus64", "a[i] + b[i]", 64, 2),),
                       (KernelStep(0, ("x", "w", "s")), LibraryStep("matmul", ("s", "w"), ("y",))))
    program, base = Program(spec, {}, cache=cache), torch.arange(65.0)
    program.trust([1])
    seen = []
    real = program._adapt
    program._adapt = lambda given, want: seen.append(want.name) or real(given, want)  # type: ignore[method-assign, func-returns-value]
    first, second, unaligned = torch.eye(8), 2 * torch.eye(8), base[1:].view(8, 8)
    for w in (first, first, second, second, unaligned, unaligned, first, first):
        x = torch.randn(8, 8)
        assert torch.equal(program.call_boxed([x, w])[0], (x + w) @ w)
        assert torch.equal(program(x, w)[0], (x + w) @ w)
        frame, = program._idle[0]
        assert (frame.settled == [0, w.data_ptr()]) is (w is not unaligned)
    assert seen == ["w"] * 4
    first.mul_(3)
    assert torch.equal(program.call_boxed([x, first])[0], (x + first) @ first)


def test_a_full_tensor_where_an_expanded_one_was_compiled_is_named(cache: KernelCache) -> None:
    """Its rows would all have been read as the first."""
    x = dataclasses.replace(value("x", "input"), strides=(0, 1))
    program = Program(dataclasses.replace(TWICE_SPEC, values=(x, TWICE_SPEC.values[1])), {}, cache=cache)
    with pytest.raises(ShapeError, match=r"argument 0 \(x\) has strides \(32, 1\), and was compiled as one that repeats .*\(0, 1\)"):
        program(ramp(4, 32))


def test_kernel_report_becomes_an_error(cache: KernelCache) -> None:
    source = TWICE.source.replace("return 0;", 'snprintf(report, report_size, "element 7 of y written twice"); return 1;')
    source = source.replace("twice(void", "bad(void")
    kernel = dataclasses.replace(TWICE, name="bad", entry="bad", source=source, nodes=("y",))
    program = Program(dataclasses.replace(TWICE_SPEC, kernels=(kernel,)), {}, cache=cache)
    with pytest.raises(InternalError, match="kernel bad reports: element 7 of y written twice"):
        program(ramp(4, 32))


COUNTED = """extern "C" int counted(void* const* arguments, char*, long) {
  unsigned* c = (unsigned*)arguments[1];
  float* w = (float*)arguments[2]; float* y = (float*)arguments[3];
  int clean = *c == 0; *c = 1;
  for (int i = 0; i < 128; i++) w[i] = ((const float*)arguments[0])[i];
  for (int i = 0; i < 128; i++) y[i] = clean ? w[i] : -1.0f;
  *c = 0;
  return 0;
}
"""


def test_threads_do_not_share_counters_or_workspace(cache: KernelCache) -> None:
    """Four threads call one program at the same time, each with its own argument."""
    kernel = KernelCode("counted", "counted", COUNTED, "host", "x86_64", Launch(1, 1), (
        Parameter("x", "f32", 128, "in"), Parameter("c", "u32", 1, "counter"), Parameter("w", "f32", 128, "workspace"),
        Parameter("y", "f32", 128, "out")))
    values = (value("x", "input"), value("t", "intermediate"), value("y", "result"))
    steps = (KernelStep(0, ("x", "", "", "t")), KernelStep(0, ("t", "", "", "y")))
    spec = ProgramSpec("p", "host", ("x",), ("y",), values, (kernel,), steps)
    program = Program(spec, {}, cache=cache)
    wrong: list[int] = []

    def work(number: int) -> None:
        x = torch.full((4, 32), float(number))
        wrong.extend(number for _ in range(300) if not torch.equal(program(x)[0], x))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_profile_names_every_step(cache: KernelCache) -> None:
    program = Program(UPDATE_SPEC, {}, cache=cache)
    x = ramp(4, 32)
    kernel, copy = program.profile(x, torch.ones(4, 32), repeats=3)
    assert (kernel.name, kernel.kind, kernel.num_bytes) == ("plus", "kernel", 1536) and kernel.us > 0 and kernel.gb_per_s > 0
    assert copy.kind == "copy" and torch.equal(x, ramp(4, 32))


def test_first_call_tells_times_where_asked(cache: KernelCache, capsys: pytest.CaptureFixture[str]) -> None:
    program = Program(TWICE_SPEC, {}, options=Options(debug=2), cache=cache)
    for _ in range(2):
        program(ramp(4, 32))
    lines = [line for line in capsys.readouterr().err.splitlines() if "[tilefuse kernels]" in line]
    assert len(lines) == 1 and "twice" in lines[0] and "GB/s" in lines[0]


def test_devices_that_are_not_there(cache: KernelCache) -> None:
    with pytest.raises(UserError, match="not on meta"):
        Program(TWICE_SPEC, {}, "meta", cache=cache)
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match="torch sees none"):
            Program(TWICE_SPEC, {}, "cuda", cache=cache)
    with pytest.raises(UserError, match="runs on the CPU"):
        Program(TWICE_SPEC, {}, cache=cache).capture(ramp(4, 32))


@pytest.mark.parametrize("role", ["result", "intermediate"])
def test_out_of_memory_carries_the_plan(cache: KernelCache, role: str) -> None:
    """Torch has no class for the host's; what else it raises is not taken for that."""
    count = 1 << 50
    values = (value("x", "input"), value("y", role, (count,)), value("z", "result"))
    kernel = dataclasses.replace(TWICE, parameters=(TWICE.parameters[0], dataclasses.replace(TWICE.parameters[1], num_elements=count)))
    read = dataclasses.replace(TWICE, name="read", parameters=(dataclasses.replace(TWICE.parameters[0], num_elements=count),
                                                               TWICE.parameters[1]))
    spec = ProgramSpec("large", "host", ("x",), ("y", "z") if role == "result" else ("z",), values, (kernel, read),
                       (KernelStep(0, ("x", "y")), KernelStep(1, ("y", "z"))))
    with pytest.raises(OutOfMemoryError, match=r"program large does not fit in the memory of cpu: .*4294967296.00 MiB"):
        Program(spec, {}, cache=cache)(ramp(4, 32))
    assert not is_out_of_memory(RuntimeError("expected a matrix"))


def test_memory_plan_speaks_in_mebibytes(double: Program) -> None:
    assert "arena 0.00 MiB" in str(double.memory) and "Program(double: 1 kernel launches" in repr(double)


def test_numbers_that_only_torch_reads_stay_where_they_are(cache: KernelCache) -> None:
    """The state of a generator, as attention gives it to its backward operator: moving it would wait for the device at each call."""
    values = (value("x", "input"), value("seed", "input", (), dtype="i64"), value("y", "result"), value("z", "result"))
    steps = (KernelStep(0, ("x", "y")), LibraryStep("aten.mul.Tensor", ("y", "seed"), ("z",), (("args", (("%", 0), ("%", 1))),)))
    program = Program(ProgramSpec("p", "host", ("x", "seed"), ("y", "z"), values, (TWICE,), steps), {}, cache=cache)
    seed, elsewhere = torch.tensor(3), torch.device("meta")
    assert [a.may_stay for a in program.arguments] == [False, True]
    assert check_argument(seed, program.arguments[1], elsewhere) is seed
    moved = check_argument(seed, dataclasses.replace(program.arguments[1], may_stay=False), elsewhere)
    assert moved.device == elsewhere


@pytest.mark.parametrize("reader", [KernelStep(0, ("seed", "y")), CopyStep("seed", "y"), LibraryStep("matmul", ("seed",), ("y",))])
def test_numbers_that_others_read_are_moved(cache: KernelCache, reader: KernelStep | CopyStep | LibraryStep) -> None:
    values = (value("seed", "input", ()), value("y", "result", ()), value("z", "result", ()))
    call = LibraryStep("aten.exp.default", ("seed",), ("z",), (("args", (("%", 0),)),))
    kernel = host_kernel("twice", "tf_twice(a[i])", 1)
    program = Program(ProgramSpec("p", "host", ("seed",), ("y", "z"), values, (kernel,), (reader, call)), {}, cache=cache)
    assert not program.arguments[0].may_stay
