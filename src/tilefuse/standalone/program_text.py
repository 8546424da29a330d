"""The plan as straight-line C++: addresses, launches, library calls and copies in order, behind the C interface."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilefuse.base.errors import InternalError, UnsupportedError
from tilefuse.runtime.calls.arena import Extent
from tilefuse.runtime.calls.call_plan import ITEMSIZE, storage_bytes
from tilefuse.runtime.calls.frame import overwritten_sources
from tilefuse.runtime.spec import CopyStep, KernelCode, KernelStep, LibraryStep, ProgramSpec, Value
from tilefuse.standalone.c_names import c_string, distinct
from tilefuse.standalone.calls import Call, Fields, call_of, told_places
from tilefuse.standalone.places import Place, Places, Wanted, place_values, row_major
from tilefuse.standalone.weights import weight_offsets
from tilefuse.target.tensor_map import MapParameter

DTYPES = ("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool")
# Names of our own in the function that runs the steps.
_OWN = ("h", "inputs", "results", "weights", "workspace", "stream", "scratch", "copy", "check", "fail", "launch_kernel", "run_kernel",
        "tensor_map")
# Types of the library calls that a GPU's libraries have.
GPU_DTYPES = {"product": ("f64", "f32", "f16", "bf16"), "convolution": ("f64", "f32", "f16", "bf16"), "attention": ("f32", "f16", "bf16")}
CLASSES = {"product": "Product", "convolution": "Convolution", "attention": "Attention"}


@dataclass(slots=True)
class _Draft:
    """The text while the steps are visited. `saved`: names of the copies that later steps read, by their number."""

    spec: ProgramSpec
    on_gpu: bool
    values: dict[str, Value]
    calls: dict[int, Call]
    saved: dict[int, str] = field(default_factory=dict)
    temporaries: list[Extent] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    members: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProgramText:
    """The program's own file, and facts that the files around it need. `kinds`: of the library calls in it."""

    text: str
    places: Places
    kinds: frozenset[str]


def program_text(spec: ProgramSpec, wanted: Sequence[Wanted], on_gpu: bool, name: str, title: str, checksum: int,
                 functions: str) -> ProgramText:
    """The text of `program.cpp`, or of `program.cu`. `functions`: text of the C interface, with its marks filled.

    Raises: UnsupportedOpError for a library call that has no form outside Python.
    """
    values = {v.name: v for v in spec.values}
    source_places = told_places(spec)
    calls = {n: call_of(step, values, source_places) for n, step in enumerate(spec.steps) if isinstance(step, LibraryStep)}
    draft = _Draft(spec, on_gpu, values, calls)
    _check_operands(draft)
    _save_overwritten(draft)
    _kernel_workspaces(draft)
    offsets, weight_bytes = weight_offsets(spec)
    places = place_values(spec, wanted, offsets, weight_bytes, draft.temporaries)
    _name_values(draft, places)
    kinds = frozenset(c.kind for c in calls.values())
    parts = [title, *_head(draft, kinds, name), *_kernel_declarations(draft), f"using namespace {name}_parts;", "",
             *_tables(draft, places, name), *_handle(draft, name), *_prepare(draft, places, name, checksum), *_steps(draft, places, name),
             functions]
    return ProgramText("\n".join(parts) + "\n", places, kinds)


def _check_operands(draft: _Draft) -> None:
    """Raises: UnsupportedError for operands that a GPU's libraries cannot read where they lie."""
    if not draft.on_gpu:
        return
    for call in draft.calls.values():
        dtype, known = str(call.shape["dtype"]), GPU_DTYPES[call.kind]
        if dtype not in known:
            raise UnsupportedError(f"%{call.result} is a {call.kind} of {dtype}, and a GPU's library has it for {', '.join(known)}",
                                   hint="export for the host, or convert the operands in the model")
        if not call.shape.get("inner", 1):
            raise UnsupportedError(f"%{call.result} is a product over no elements, which a GPU's library does not compute",
                                   hint="export for the host, or leave the product out of the model")
        for position in _unreadable(call):
            operand = call.operands[position]
            assert operand is not None
            value = draft.values[operand.value]
            raise UnsupportedError(
                f"operand %{value.name} of %{call.result} lies with strides {list(value.strides)}, which a GPU's libraries cannot read",
                hint="export for the host, or make the operand contiguous in the model")


def _unreadable(call: Call) -> list[int]:
    s = call.shape

    def neither(first: str, second: str, rows: str, columns: str) -> bool:
        return s[first] != 1 and s[second] != 1 and s[rows] != 1 and s[columns] != 1

    match call.kind:
        case "product":
            return [n for n, names in enumerate((("a_row", "a_inner", "rows", "inner"), ("b_inner", "b_column", "inner", "columns")))
                    if neither(*names)]
        case "attention":
            return [n for n, names in enumerate((("q_row", "q_column", "rows", "depth"), ("k_row", "k_column", "keys", "depth"),
                                                 ("v_row", "v_column", "keys", "width"))) if neither(*names)]
    return []


def _save_overwritten(draft: _Draft) -> None:
    """Copies whose source an earlier copy overwrites (two inputs that change places) read a saved copy."""
    for number, step in enumerate(draft.spec.steps):
        if isinstance(step, CopyStep):
            for later in overwritten_sources(draft.spec, draft.values, number):
                if later not in draft.saved:
                    copied = draft.spec.steps[later]
                    assert isinstance(copied, CopyStep)
                    name = f"saved {later}"
                    draft.saved[later] = name
                    draft.temporaries.append(Extent(name, storage_bytes(draft.values[copied.source]), number, later))


def _kernel_workspaces(draft: _Draft) -> None:
    for number, step in enumerate(draft.spec.steps):
        if isinstance(step, KernelStep):
            for position, (name, parameter) in enumerate(zip(step.arguments, draft.spec.kernels[step.kernel].parameters, strict=True)):
                if parameter.role == "workspace" and not name:
                    num_bytes = parameter.num_elements * ITEMSIZE[parameter.dtype]
                    draft.temporaries.append(Extent(workspace_name(number, position), num_bytes, number, number))


def _name_values(draft: _Draft, places: Places) -> None:
    taken = set(_OWN)
    for value in draft.spec.values:
        if value.name in places.by_name:
            draft.names[value.name] = distinct(value.name, taken)
            taken.add(draft.names[value.name])
    for number, call in draft.calls.items():
        draft.members[number] = distinct(call.result, set(draft.members.values()) | {"weights", "libraries", "mutex"})
    for temporary in places.temporaries:
        draft.names[temporary] = distinct(temporary, taken)
        taken.add(draft.names[temporary])


# ---------------------------------------------------------------- text

def _head(draft: _Draft, kinds: frozenset[str], name: str) -> list[str]:
    includes = ["<algorithm>", "<cstring>", "<memory>", "<mutex>", "<new>", "<string>"]
    own = [f'"{name}.h"', '"cuda_library.h"' if draft.on_gpu else '"host_library.h"', '"parts.h"']
    return [*(f"#include {i}" for i in includes), "", *(f"#include {i}" for i in own), ""]


def _kernel_declarations(draft: _Draft) -> list[str]:
    if draft.on_gpu:
        return [*(f"const void* address_of_{k.entry}();" for k in draft.spec.kernels), ""]
    return [*(f'extern "C" int {k.entry}(void* const* arguments, char* report, long report_size);' for k in draft.spec.kernels), ""]


def _numbers(values: Sequence[int]) -> str:
    return "{" + ", ".join(str(int(v)) for v in values) + "}"


def _tables(draft: _Draft, places: Places, name: str) -> list[str]:
    """Inputs and results as the C interface tells them."""
    spec, upper = draft.spec, name.upper()
    updates = set(spec.updates)
    rows = [("inputs", [(title, draft.values[v].dtype, draft.values[v].shape, draft.values[v].strides, storage_bytes(draft.values[v]),
                         v in updates) for v, title in zip(spec.inputs, spec.told_inputs, strict=True)]),
            ("results", [(r.name, r.dtype, r.shape, r.strides, _bytes_of(r.dtype, r.shape, r.strides), False) for r in places.results])]
    lines = ["namespace {", ""]
    for kind, table in rows:
        for number, (_, _, shape, strides, _, _) in enumerate(table):
            if shape:
                lines += [f"const int64_t {kind}_extents_{number}[] = {_numbers(shape)};",
                          f"const int64_t {kind}_strides_{number}[] = {_numbers(strides)};"]
        lines += [f"const {name}_tensor all_{kind}[] = {{"]
        for number, (title, dtype, shape, _, num_bytes, updated) in enumerate(table):
            arrays = f"{kind}_extents_{number}, {kind}_strides_{number}" if shape else "nullptr, nullptr"
            lines.append(f"    {{{c_string(title)}, {upper}_{dtype.upper()}, {len(shape)}, {arrays}, {num_bytes}, {int(updated)}}},")
        lines += [*([] if table else ["    {nullptr, 0, 0, nullptr, nullptr, 0, 0},"]), "};",
                  f"constexpr int num_{kind} = {len(table)};", ""]
    return [*lines, "}  // namespace", ""]


def _bytes_of(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return 0 if 0 in shape else (1 + sum((n - 1) * s for n, s in zip(shape, strides))) * ITEMSIZE[dtype]


def _handle(draft: _Draft, name: str) -> list[str]:
    lines = [f"struct {name}_handle {{"]
    if draft.on_gpu:
        lines += ["  int device = 0;", "  DeviceMemory weights;", "  Libraries libraries;"]
    else:
        lines += ["  Memory weights;"]
    lines += [f"  {CLASSES[call.kind]} {draft.members[n]};" for n, call in draft.calls.items()]
    lines += ["  size_t scratch_bytes = 0;"]
    if draft.on_gpu:
        lines += ["  // For runs on memory of the host.", "  std::mutex host_mutex;", "  DeviceMemory host_memory;"]
    else:
        lines += ["  // For runs without a workspace of the caller's.", "  std::mutex host_mutex;", "  Memory host_memory;"]
    return [*lines, "};", ""]


def _prepare(draft: _Draft, places: Places, name: str, checksum: int) -> list[str]:
    """The function that makes a handle ready: weights, kernels, library calls."""
    lines = ["namespace {", "",
             f"constexpr uint64_t weight_bytes = {places.weight_bytes};", f"constexpr uint32_t weight_checksum = {checksum}u;",
             f"constexpr size_t value_bytes = {places.workspace_bytes};  // counters and intermediate values", ""]
    if places.counter_bytes:
        lines.insert(-2, f"constexpr size_t counter_bytes = {places.counter_bytes};  // at the start of the workspace")
    if draft.on_gpu:
        lines += [*_launches(draft), *_map_tables(draft)]
    lines += [f"void prepare({name}_handle& h, const char* weights_path) {{"]
    if draft.on_gpu:
        lines += ["  check(cudaGetDevice(&h.device), \"cudaGetDevice\");",
                  "  {", "    const Memory read = read_weights(weights_path, weight_bytes, weight_checksum);",
                  "    h.weights = DeviceMemory(weight_bytes);",
                  "    if (weight_bytes) {",
                  "      check(cudaMemcpy(h.weights.get(), read.get(), weight_bytes, cudaMemcpyHostToDevice), \"cudaMemcpy\");", "    }",
                  "  }"]
        lines += [f"  prepare_kernel({c_string(k.name)}, address_of_{k.entry}(), launch_of_{k.entry});" for k in draft.spec.kernels]
    else:
        lines += ["  h.weights = read_weights(weights_path, weight_bytes, weight_checksum);"]
    for number, call in draft.calls.items():
        if _is_empty(draft, call):
            continue
        member = f"h.{draft.members[number]}"
        lines.append("")
        lines.append(f"  // {_told(draft, call)}")
        first = "h.libraries, " if draft.on_gpu else ""
        last = "" if draft.on_gpu else f", {_constant(draft, call, places)}"
        lines += [f"  {member}.prepare({first}{CLASSES[call.kind]}Shape{{", *_fields(call.shape, draft, call, places), f"  }}{last});"]
        if draft.on_gpu:
            lines.append(f"  h.scratch_bytes = std::max(h.scratch_bytes, {member}.scratch_bytes());")
    return [*lines, "}", ""]


def _is_empty(draft: _Draft, call: Call) -> bool:
    return 0 in draft.values[call.result].shape


def _told(draft: _Draft, call: Call) -> str:
    return f"%{call.result} = {call.kind}({', '.join(f'%{o.value}' for o in call.operands if o is not None)})"


def _constant(draft: _Draft, call: Call, places: Places) -> str:
    """The address of an operand that never changes, for packing it once."""
    if call.constant < 0:
        return "nullptr"
    operand = call.operands[call.constant]
    assert operand is not None
    return f"h.weights.get() + {places.by_name[operand.value].offset}"


def _fields(shape: Fields, draft: _Draft, call: Call, places: Places) -> list[str]:
    """A shape's fields, several a line."""
    texts = [f".{name} = {_field(name, value)}" for name, value in shape.items()]
    if call.kind in ("product", "attention"):
        texts.append(f".alignment = {_alignment(draft, call, places)}")
    if call.kind == "product":
        texts.append(".wide_result = false")
    lines, line = [], "     "
    for text in texts:
        if len(line) + len(text) > 130:
            lines.append(line)
            line = "     "
        line += f" {text},"
    return [*lines, line]


def _field(name: str, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case str():
            return f"Dtype::{'boolean' if value == 'bool' else value}"
        case list():
            return "{" + ", ".join("{" + ", ".join(f".{k} = {v}" for k, v in row.items()) + "}" for row in value) + "}"
        case tuple():
            return _numbers(value)
    raise InternalError(f"a field {name} of an unknown kind: {value!r}")


def _alignment(draft: _Draft, call: Call, places: Places) -> int:
    """Bytes to which all operands of every single product are aligned. Units: bytes."""
    alignment = 16
    for operand in (*call.operands[:4], None):
        name = call.result if operand is None else operand.value
        alignment = math.gcd(alignment, places.by_name[name].offset)
    batches = call.shape["batches"]
    assert isinstance(batches, list)
    dtype = call.shape["dtype"]
    assert isinstance(dtype, str)
    for row in batches:
        for key, stride in row.items():
            if key != "extent" and stride:
                alignment = math.gcd(alignment, stride * ITEMSIZE[dtype])
    return alignment


def _launches(draft: _Draft) -> list[str]:
    """Grid, cluster and shared memory of every kernel."""
    lines = ["// Blocks, threads a block, blocks a cluster, bytes of shared memory a block, whether it may start early, is scattered."]
    for k in draft.spec.kernels:
        n = k.launch
        lines.append(f"constexpr Launch launch_of_{k.entry} = {{{n.num_blocks}, {n.num_threads}, {n.cluster}, {n.shared_bytes}, "
                     f"{str(n.early).lower()}, {str(n.scattered).lower()}}};")
    return [*lines, ""]


def _map_tables(draft: _Draft) -> list[str]:
    """The tensors that kernels read and write through maps."""
    lines: list[str] = []
    for k in draft.spec.kernels:
        if k.maps:
            lines += [f"const TensorShape maps_of_{k.entry}[] = {{", *(f"    {tensor_shape(m)},  // {m.name}" for m in k.maps), "};", ""]
    return lines


def tensor_shape(m: MapParameter) -> str:
    """Initialiser of a `TensorShape` (sources/tensor_maps.inc)."""
    strides = _numbers([s * m.itemsize for s in m.strides[::-1]])
    return (f"{{{m.itemsize}, {len(m.extents)}, {m.swizzle}, {m.first * m.itemsize}, {_numbers(m.extents[::-1])}, {strides}, "
            f"{_numbers(m.box[::-1])}}}")


def _address(place: Place) -> str:
    base = {"input": f"static_cast<char*>(inputs[{place.number}])", "result": f"static_cast<char*>(results[{place.number}])",
            "weights": "weights", "workspace": "workspace"}[place.kind]
    return f"{base} + {place.offset}" if place.offset else base


def _steps(draft: _Draft, places: Places, name: str) -> list[str]:
    """The function that runs the steps."""
    spec = draft.spec
    used = _used(draft, places)
    stream = ", cudaStream_t stream" if draft.on_gpu else ""
    lines = ["// The plan, step by step.",
             f"void run_steps({name}_handle& h, void* const* inputs, void* const* results, char* workspace{stream}) {{",
             "  char* const weights = h.weights.get();"]
    if draft.on_gpu:
        lines += ["  char* const scratch = workspace + value_bytes;", "  (void)scratch;"]
    lines += ["  (void)h;", "  (void)inputs;", "  (void)results;", "  (void)weights;", "  (void)workspace;", ""]
    lines += [f"  char* const {draft.names[v]} = {_address(places.by_name[v])};" for v in used]
    lines += [f"  char* const {draft.names[t]} = workspace + {offset};" for t, offset in places.temporaries.items()]
    if places.counter_bytes:
        lines += ["", "  // Counters, which kernels leave at zero again."]
        lines += ["  check(cudaMemsetAsync(workspace, 0, counter_bytes, stream), \"cudaMemsetAsync\");" if draft.on_gpu else
                  "  std::memset(workspace, 0, counter_bytes);"]
    for number, step in enumerate(spec.steps):
        lines.append("")
        match step:
            case KernelStep():
                lines += _kernel_step(draft, number, step)
            case LibraryStep():
                lines += _call_step(draft, number)
            case CopyStep():
                lines += _copy_step(draft, number, step)
    for number, result in enumerate(places.results):
        if result.source:
            lines += ["", f"  // Result {number}.",
                      _copy_text(draft, draft.names[result.source], result.shape, result.source_strides, f"results[{number}]",
                                 result.strides, result.dtype)]
    return [*lines, "}", "", "}  // namespace", ""]


def _used(draft: _Draft, places: Places) -> list[str]:
    names: dict[str, None] = {}
    for number, step in enumerate(draft.spec.steps):
        match step:
            case KernelStep(_, arguments):
                names |= dict.fromkeys(n for n in arguments if n)
            case LibraryStep():
                call = draft.calls[number]
                if not _is_empty(draft, call):
                    names |= dict.fromkeys([o.value for o in call.operands if o is not None])
                    names[call.result] = None
            case CopyStep(source, target):
                names |= dict.fromkeys((source, target))
    names |= dict.fromkeys(r.source for r in places.results if r.source)
    return [n for n in names if n in places.by_name]


def _kernel_step(draft: _Draft, number: int, step: KernelStep) -> list[str]:
    kernel = draft.spec.kernels[step.kernel]
    if not kernel.launch.num_blocks:
        return [f"  // {kernel.name} has nothing to do."]
    pointers = ", ".join(_kernel_arguments(draft, kernel, number, step))
    lines = [f"  // {', '.join(f'%{n}' for n in kernel.nodes[:6])}{' ...' if len(kernel.nodes) > 6 else ''}", "  {",
             f"    void* pointers[] = {{{pointers}}};"]
    if draft.on_gpu:
        each = "pointers" if kernel.one_structure else ", ".join(f"&pointers[{n}]" for n in range(len(step.arguments)))
        if kernel.maps:
            maps = ", ".join(f"tensor_map({c_string(kernel.name)}, maps_of_{kernel.entry}[{n}], pointers[{m.parameter}])"
                             for n, m in enumerate(kernel.maps))
            lines.append(f"    CUtensorMap maps[] = {{{maps}}};")
            each += "".join(f", &maps[{n}]" for n in range(len(kernel.maps)))
        lines += [f"    void* arguments[] = {{{each}}};",
                  f"    launch_kernel({c_string(kernel.name)}, address_of_{kernel.entry}(), launch_of_{kernel.entry}, arguments, stream);"]
    else:
        titles = dict(zip(draft.spec.inputs, draft.spec.told_inputs))
        names = ", ".join(c_string(titles.get(n, n)) for n in step.arguments)
        lines += [f"    static const char* const names[] = {{{names}}};",
                  f"    run_kernel({c_string(kernel.name)}, {kernel.entry}, pointers, names, {len(step.arguments)});"]
    return [*lines, "  }"]


def _kernel_arguments(draft: _Draft, kernel: KernelCode, number: int, step: KernelStep) -> list[str]:
    arguments: list[str] = []
    counter = 0
    for position, (name, parameter) in enumerate(zip(step.arguments, kernel.parameters, strict=True)):
        num_bytes = parameter.num_elements * ITEMSIZE[parameter.dtype]
        if parameter.role == "counter":
            arguments.append(f"workspace + {counter}" if counter else "workspace")
            counter += -(-num_bytes // 256) * 256
        elif not name:
            arguments.append(draft.names[workspace_name(number, position)])
        else:
            arguments.append(draft.names[name])
    return arguments


def workspace_name(number: int, position: int) -> str:
    """The name of a kernel's scratch memory: argument `position` of step `number`."""
    return f"workspace {number} {position}"


def _call_step(draft: _Draft, number: int) -> list[str]:
    call = draft.calls[number]
    if _is_empty(draft, call):
        return [f"  // %{call.result} has no elements."]
    operands = ", ".join("nullptr" if o is None else draft.names[o.value] for o in call.operands)
    first, last = ("h.libraries, ", ", scratch, stream") if draft.on_gpu else ("", "")
    return [f"  // {_told(draft, call)}", f"  h.{draft.members[number]}.run({first}{operands}, {draft.names[call.result]}{last});"]


def _copy_step(draft: _Draft, number: int, step: CopyStep) -> list[str]:
    source, target = draft.values[step.source], draft.values[step.target]
    if source.dtype != target.dtype or source.shape != target.shape:
        raise InternalError(f"a copy from {step.source} to {step.target}, which differ in type")
    lines = []
    for later, name in draft.saved.items():
        copied = draft.spec.steps[later]
        assert isinstance(copied, CopyStep)
        if later in overwritten_sources(draft.spec, draft.values, number):
            value = draft.values[copied.source]
            lines.append(_copy_text(draft, draft.names[copied.source], value.shape, value.strides, draft.names[name],
                                    row_major(value.shape), value.dtype))
    if number in draft.saved:
        begin, strides = draft.names[draft.saved[number]], row_major(source.shape)
    else:
        begin, strides = draft.names[step.source], source.strides
    return [f"  // %{step.target} is updated.", *lines,
            _copy_text(draft, begin, source.shape, strides, draft.names[step.target], target.strides, source.dtype)]


def _copy_text(draft: _Draft, source: str, shape: Sequence[int], strides: Sequence[int], target: str, to: Sequence[int], dtype: str) -> str:
    rows = [(n, s, t) for n, s, t in zip(shape, strides, to) if n != 1]
    merged: list[tuple[int, int, int]] = []
    for n, s, t in rows:
        if merged and merged[-1][1] == s * n and merged[-1][2] == t * n:
            merged[-1] = (merged[-1][0] * n, s, t)
        else:
            merged.append((n, s, t))
    extents, sources, targets = ([row[i] for row in merged] for i in range(3))
    stream = ", stream" if draft.on_gpu else ""
    return (f"  copy({{.itemsize = {ITEMSIZE[dtype]}, .extents = {_numbers(extents)}, .from = {_numbers(sources)}, "
            f".to = {_numbers(targets)}}}, {source}, {target}{stream});")
