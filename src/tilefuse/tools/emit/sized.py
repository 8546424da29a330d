"""A script's program whose sizes are arguments, as text that anyone can build: CUDA C++ with nvcc, or C++ for the processor.

    out_refusal(m, n)           why a call with these sizes would be refused, or a null pointer
    out_workspace_bytes(m, n)   what a call needs; out_zero_bytes: so many of the first are zero before the first call
    out(m, n, A, ..., workspace, workspace_bytes, stream)

The function that launches looks which case of kernels the sizes keep the limits of, computes grids and places in the workspace from them,
and launches. Counters lie at the workspace's start, all else at its end: a workspace for the largest sizes serves all others in any order.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import Affine, Atom, render
from tilefuse.ir.counts import C_FUNCTIONS, Operand, count_text
from tilefuse.kernel.ir import Kernel
from tilefuse.printers.cuda import print_cuda_together
from tilefuse.printers.host import print_host_together
from tilefuse.scripts.schedule.sizes import words_of
from tilefuse.scripts.sized_programs import Launched, Scratch, SizedProgram
from tilefuse.standalone.c_names import banner, identifier
from tilefuse.target.device import DeviceSpec
from tilefuse.tools.emit.program import C_TYPES, DRIVER_HEAD, LAUNCH, EmittedProgram, map_functions

# Places in the workspace begin at multiples of this many bytes.
ALIGNMENT = 256


@dataclass(frozen=True)
class Words:
    """Names in the text: of sizes, and of arguments by the variable that they hold; `function` is the entry's."""

    function: str
    sizes: Mapping[str, str]
    arguments: Mapping[str, str]


def emit_sized(program: SizedProgram, name: str, stem: str, device: DeviceSpec, script_names: Mapping[str, str],
               origin: str = "") -> EmittedProgram:
    """The program as a C function `name` of its sizes, inputs and results.

    stem: the files' name without suffix. script_names: the script's name of each variable. origin: a text that the sources begin with.
    """
    return _Text(program, name, stem, device, script_names, origin).files()


class _Text:
    """State of one program's text."""

    def __init__(self, program: SizedProgram, name: str, stem: str, device: DeviceSpec, script_names: Mapping[str, str],
                 origin: str) -> None:
        self.program, self.stem, self.device, self.origin = program, stem, device, origin
        self.on_host = device.kind == "host"
        self.values = tuple(dict.fromkeys((*program.graph.inputs, *program.graph.outputs)))
        taken = {name}
        arguments = {v: _free(script_names[v], taken) for v in self.values}
        self.words = Words(name, {s: _free(s, taken) for s in program.sizes}, arguments)
        self.number = {v: n for n, v in enumerate((*self.values, *(s.name for s in program.scratch)))}
        self.given = ", ".join(f"long long {s}" for s in self.words.sizes.values())
        self.passed = ", ".join(self.words.sizes.values())
        self.status, self.refused = ("int", "1") if self.on_host else ("cudaError_t", "cudaErrorInvalidValue")
        self.has_maps = not self.on_host and any(k.maps for step in program.steps for k in step.kernels)
        self.kernels = [k for n in range(len(program.cases)) for k in (step.kernels[n] for step in program.steps)]

    def files(self) -> EmittedProgram:
        """The program, its header and its driver."""
        return EmittedProgram(self.source(), self.header(), "" if self.on_host else self.driver())

    # -- the header

    def signature(self) -> str:
        """The function that computes the script."""
        graph, names = self.program.graph, self.words.arguments
        parts = [self.given] if self.given else []
        parts += [f"{'const ' if v in graph.inputs else ''}{C_TYPES[graph.variables[v].dtype.name]}* {names[v]}" for v in self.values]
        parts += ["void* workspace", "size_t workspace_bytes", *(() if self.on_host else ("cudaStream_t stream",))]
        return f"{self.status} {self.words.function}({', '.join(parts)})"

    def helpers(self) -> tuple[str, str, str]:
        """Prototypes of the functions that tell about a call before it is made."""
        name, parameters = self.words.function, self.given or "void"
        return (f"const char* {name}_refusal({parameters})", f"size_t {name}_workspace_bytes({parameters})",
                f"size_t {name}_zero_bytes({parameters})")

    def header(self) -> str:
        """Declarations for C and C++."""
        graph = self.program.graph
        rows = []
        for v in self.values:
            of = graph.variables[v]
            step = -1 if of.is_transposed else 1
            shape = ", ".join(self.words.sizes[s] for s in of.sizes[::step])
            strides = ", ".join(self.words.sizes.get(str(s), str(s)) for s in of.named_strides[::step]) if of.sizes else ""
            rows.append(f" *   {self.words.arguments[v]:<12} {'in ' if v in graph.inputs else 'out'} {C_TYPES[of.dtype.name]}, "
                        f"shape [{shape}], strides [{strides}]")
        refusal, workspace, zero = self.helpers()
        includes = ["#include <stddef.h>"] if self.on_host else ["#include <stddef.h>", "#include <cuda_runtime_api.h>"]
        return "\n".join([
            banner(self.origin), "#pragma once", *includes, "", "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
            "/* Why a call with these sizes is refused; a null pointer where it is not. */", f"{refusal};", "",
            "/* Bytes of workspace of one call at a time. Before the first call the first zero_bytes of them are zero, as they are again",
            " * after each. A workspace for the largest of each size, so prepared once, serves calls of smaller sizes in any order. */",
            f"{workspace};", f"{zero};", "",
            f"/* {'Pointers' if self.on_host else 'Device pointers'}, 16-byte aligned; strides in elements:", *rows,
            f" * {self.refused} where the sizes are refused or the workspace is too small. */", f"{self.signature()};", "",
            "#ifdef __cplusplus", "}", "#endif", ""])

    # -- the source

    def source(self) -> str:
        """Kernels, and the functions that compute grids and places and launch."""
        build = f"g++ -O3 -fopenmp -c {self.stem}.cpp" if self.on_host else f"nvcc -O3 -arch={self.device.arch} -c {self.stem}.cu"
        includes = [f'#include "{self.stem}.h"', "#include <cstddef>", "#include <cstdint>", "#include <cstring>"]
        refusal, workspace, zero = self.helpers()
        counters = sum(s.counter for s in self.program.scratch)
        return "\n".join([
            banner(self.origin), f"// Build: {build}", *includes, "", *(map_functions() if self.has_maps else []), self.kernel_text(),
            *([] if self.on_host else [LAUNCH]),
            "namespace {", "", C_FUNCTIONS, *self.case_function(), *self.layout_function(), *self.run_functions(), "}  // namespace", "",
            f'extern "C" {refusal} {{', *self.refusals(), "  return nullptr;", "}", "",
            *self.part_of_workspace(workspace, len(self.program.scratch)), *self.part_of_workspace(zero, counters), *self.entry()])

    def part_of_workspace(self, signature: str, parts: int) -> Iterable[str]:
        """The function that computes the bytes of this many parts of the workspace; 0 for sizes that are refused."""
        yield f'extern "C" {signature} {{'
        yield f"  if ({self.words.function}_refusal({self.passed})) return 0;"
        yield f"  long long tf_at[{len(self.program.scratch) + 1}];"
        yield f"  tf_layout({self._and('tf_at')});"
        yield f"  return (size_t)tf_at[{parts}];"
        yield "}"
        yield ""

    def kernel_text(self) -> str:
        """The kernels of all cases, as a text that NVRTC (or the system's compiler) compiles by itself."""
        if self.on_host:
            return print_host_together([(k, False) for k in self.kernels])
        return print_cuda_together(self.kernels, self.device)

    def _and(self, *more: str) -> str:
        return ", ".join(([self.passed] if self.passed else []) + list(more))

    def _parameters(self, *more: str) -> str:
        return ", ".join(([self.given] if self.given else []) + list(more))

    def _count(self, c: Operand) -> str:
        return count_text(c, self.words.sizes)

    def case_function(self) -> Iterable[str]:
        """Which kernels the sizes keep the limits of."""
        yield "// Which kernels the sizes keep the limits of; -1: none."
        yield f"int tf_case({self._parameters()}) {{"
        aligned = " && ".join(dict.fromkeys(f"{self.words.sizes[s]} % {words} == 0" for _, s, words in self.program.strides))
        for n, (case, limits) in enumerate(zip(self.program.cases, self.program.limits, strict=True)):
            conditions = [f"{self._count(count)} <= {most}ll" for _, count, most in limits]
            conditions = [*([aligned] if case.aligned else []), *conditions]
            yield f"  if ({' && '.join(conditions) or 'true'}) return {n};  // {case.name}"
        yield "  return -1;"
        yield "}"
        yield ""

    def layout_function(self) -> Iterable[str]:
        """Where each part of the workspace begins."""
        scratch = self.program.scratch
        yield "// Where each part of the workspace begins, and behind the last one its end: counters first."
        yield f"void tf_layout({self._parameters('long long* tf_at')}) {{"
        yield "  tf_at[0] = 0;"
        for n, (s, shared) in enumerate(zip(scratch, _shared(scratch), strict=True)):
            end = f"tf_plus(tf_at[{n}], tf_times(tf_ceil({self._count(s.num_bytes)}, {ALIGNMENT}ll), {ALIGNMENT}ll))"
            yield f"  tf_at[{n + 1}] = {end if shared is None else f'tf_at[{n}]'};  // {s.name}" + (
                "" if shared is None else f": where {scratch[shared].name} was")
        yield "}"
        yield ""

    def run_functions(self) -> Iterable[str]:
        """A function for each case, which launches its kernels."""
        stream = [] if self.on_host else ["cudaStream_t stream"]
        for n, case in enumerate(self.program.cases):
            yield f"{self.status} tf_run_{case.name}({self._parameters('unsigned char* const* tf_places', *stream)}) {{"
            for s in self.program.steps:
                yield from self._launch(s, n)
            yield f"  return {'0' if self.on_host else 'cudaGetLastError()'};"
            yield "}"
            yield ""

    def _launch(self, step: Launched, case: int) -> Iterable[str]:
        kernel, launch = step.kernels[case], step.kernels[case].launch
        index = "long long" if self.on_host or kernel.index_bits == 64 else "int"
        assert kernel.blocks is not None
        yield f"  {{  // {kernel.name}"
        yield f"    void* tf_pointers[] = {{{', '.join(f'tf_places[{self.number[a]}]' for a in step.arguments)}}};"
        arguments = [*((s.name, s.count) for s in kernel.sizes), *((("blocks", kernel.blocks),) if self.on_host else ())]
        for k, (name, count) in enumerate(arguments):
            yield f"    {index} tf_size_{k} = ({index}){self._count(count)};  // {name}"
        places = [f"&tf_pointers[{k}]" if not self.on_host else f"tf_pointers[{k}]" for k in range(len(step.arguments))]
        places += [f"&tf_size_{k}" for k in range(len(arguments))]
        if not self.on_host:
            yield from map_statements(kernel)
            places += [f"&tf_map_{k}" for k in range(len(kernel.maps))]
        yield f"    void* tf_arguments[] = {{{', '.join(places)}}};"
        if self.on_host:
            number = self.kernels.index(kernel)
            yield f"    if (number_{number}::{kernel.name}_{number}(tf_arguments, nullptr, 0)) return 1;"
        else:
            flags = f"{str(launch.early).lower()}, {str(launch.scattered).lower()}"
            shape = f"{launch.num_threads}, {launch.cluster}, {launch.shared_bytes}, {flags}"
            yield (f"    const cudaError_t status = launch((const void*){kernel.name}_of::{kernel.name}, "
                   f"(int){self._count(kernel.blocks)}, {shape}, tf_arguments, stream);")
            yield "    if (status != cudaSuccess) return status;"
        yield "  }"

    def refusals(self) -> Iterable[str]:
        """Statements that refuse sizes that no case of kernels can compute."""
        for s in self.words.sizes.values():
            yield f'  if ({s} < 0) return "{s} is negative";'
        for v in self.program.graph.variables.values():
            if v.leading and len(v.sizes) == 2:
                row, name = self.words.sizes[v.sizes[1 if v.named_strides[1] == 1 else 0]], self.words.sizes[v.leading]
                yield f'  if ({name} < {row}) return "{name} is less than {row}";'
        for what, count, most in self.program.limits[-1]:
            description = self.words.sizes.get(what, what)
            yield f'  if ({self._count(count)} > {most}ll) return "{description}: more than {most}";'

    def entry(self) -> Iterable[str]:
        """The function that computes the script."""
        scratch, names, function = self.program.scratch, self.words.arguments, self.words.function
        stream = [] if self.on_host else ["stream"]
        yield f'extern "C" {self.signature()} {{'
        yield f"  if ({function}_refusal({self.passed})) return {self.refused};"
        yield f"  if (workspace_bytes < {function}_workspace_bytes({self.passed})) return {self.refused};"
        yield f"  long long tf_at[{len(scratch) + 1}];"
        yield f"  tf_layout({self._and('tf_at')});"
        yield "  unsigned char* const tf_first = static_cast<unsigned char*>(workspace);"
        yield f"  const long long tf_end = (long long)(workspace_bytes / {ALIGNMENT} * {ALIGNMENT});"
        yield f"  unsigned char* const tf_rest = tf_first + (tf_end - tf_at[{len(scratch)}]);"
        yield "  (void)tf_rest;"
        shared = _shared(scratch)
        places = [f"(unsigned char*){names[v]}" for v in self.values]
        homes = [n if home is None else home for n, home in enumerate(shared)]
        places += [f"{'tf_first' if s.counter else 'tf_rest'} + tf_at[{home}]" for s, home in zip(scratch, homes, strict=True)]
        yield f"  unsigned char* const tf_places[] = {{{', '.join(places)}}};"
        yield f"  switch (tf_case({self.passed})) {{"
        for n, case in enumerate(self.program.cases):
            yield f"    case {n}: return tf_run_{case.name}({self._and('tf_places', *stream)});"
        yield "  }"
        yield f"  return {self.refused};"
        yield "}"
        yield ""

    # -- the driver

    def driver(self) -> str:
        """A program that fills the inputs, runs and times the function, and prints the sum of each result; sizes from its command line."""
        graph, name = self.program.graph, self.words.function
        place = {v: f"d_{n}" for v, n in self.words.arguments.items()}
        variable_of = {s: f"size_{n}" for n, s in enumerate(self.program.sizes)}
        passed = ", ".join(variable_of.values())
        lines = [f"// Driver: fills the inputs, runs and times {name}, prints the sum of each result.",
                 f"// Arguments: {self.passed or 'none'}.", f'#include "{self.stem}.h"',
                 DRIVER_HEAD.replace("int main() {", f"{C_FUNCTIONS}\nint main(int tf_count, char** tf_given) {{"),
                 "  (void)tf_count; (void)tf_given;"]
        for n, s in enumerate(self.program.sizes):
            size = f"tf_count > {n + 1} ? std::atoll(tf_given[{n + 1}]) : {self.program.expected[s]}"
            lines.append(f"  const long long {variable_of[s]} = {size};  // {self.words.sizes[s]}")
        words = {v: count_text(words_of(graph.variables[v]), variable_of) for v in self.values}
        moved = [f"{count} * (double)sizeof(*{place[v]})" for v, count in words.items()]
        lines += [f"  if (const char* why = {name}_refusal({passed})) {{", '    std::fprintf(stderr, "%s\\n", why);', "    return 1;",
                  "  }"]
        for n, v in enumerate(self.values):
            lines.append(f"  auto* {place[v]} = filled<{C_TYPES[graph.variables[v].dtype.name]}>({words[v]}, {n + 1}u);")
        arguments = ", ".join([*([passed] if passed else []), *place.values(), "workspace", "bytes"])
        lines += [f"  const size_t bytes = {name}_workspace_bytes({passed});", "  void* workspace = nullptr;",
                  "  CHECK(cudaMalloc(&workspace, bytes + 16));", "  CHECK(cudaMemset(workspace, 0, bytes));",
                  f"  CHECK({name}({arguments}, 0));", "  CHECK(cudaDeviceSynchronize());",
                  "  cudaEvent_t begin, end;", "  CHECK(cudaEventCreate(&begin));", "  CHECK(cudaEventCreate(&end));",
                  "  const int repeats = 20;", "  CHECK(cudaEventRecord(begin));",
                  f"  for (int n = 0; n < repeats; ++n) CHECK({name}({arguments}, 0));",
                  "  CHECK(cudaEventRecord(end));", "  CHECK(cudaEventSynchronize(end));", "  float milliseconds = 0;",
                  "  CHECK(cudaEventElapsedTime(&milliseconds, begin, end));", "  const double us = 1e3 * milliseconds / repeats;",
                  f"  const double moved = {' + '.join(moved)};",
                  f'  std::printf("{name}: %.2f us a call, %.1f GB/s of inputs and results\\n", us, moved / us * 1e-3);']
        for v in graph.outputs:
            lines.append(f'  tell("{self.words.arguments[v]}", {place[v]}, {words[v]});')
        return "\n".join([*lines, "  return 0;", "}", ""])


def _free(name: str, taken: set[str]) -> str:
    """A name that C and C++ take and nothing else in the text has."""
    unique = identifier(name)
    while unique in taken or unique.startswith("tf_"):
        unique = f"{unique}_" if not unique.startswith("tf_") else f"v_{unique}"
    taken.add(unique)
    return unique


def map_statements(kernel: Kernel) -> Iterable[str]:
    """C++ statements that encode a kernel's tensor maps, where its pointers and sizes are `tf_pointers` and `tf_size_0` ..."""
    numbers = {b.name: n for n, b in enumerate(kernel.parameters)}
    sizes = {s.name: f"tf_size_{k}" for k, s in enumerate(kernel.sizes)}
    for n, m in enumerate(kernel.maps):
        extents = [_size_text(e, sizes) for e in m.extents[::-1]]
        strides = [f"({_size_text(s, sizes)}) * {m.dtype.itemsize}ull" for s in m.strides[-2::-1]]
        fields = (f"{m.dtype.itemsize}, {m.rank}, {m.swizzle}, {m.first * m.dtype.itemsize}, {{{', '.join(extents)}}}, "
                  f"{{{', '.join(strides)}}}, {{{', '.join(map(str, m.box[::-1]))}}}")
        yield f"    CUtensorMap tf_map_{n};  // {m.name}"
        yield f"    const TensorShape tf_tensor_{n} = {{{fields}}};"
        yield (f"    if (const cudaError_t refused = encode_tensor_map(&tf_map_{n}, tf_tensor_{n}, tf_pointers[{numbers[m.buffer]}])) "
               "return refused;")


def _size_text(e: int | Affine, sizes: Mapping[str, str]) -> str:
    """C text of an extent or stride; sizes: the variable of each of the kernel's sizes. Raises: InternalError for a division."""
    if isinstance(e, int):
        return f"{e}ull"

    def name(atom: Atom) -> str:
        if not isinstance(atom, str):
            raise InternalError(f"an extent of a tensor map that is no sum of sizes: {e}")
        return f"(unsigned long long){sizes[atom]}"

    return render(e, name)


def _shared(scratch: Sequence[Scratch]) -> list[int | None]:
    """For each part of the workspace an earlier one of equal size that nothing needs any more: they lie in one place."""
    homes: list[int | None] = []
    busy_until: dict[int, int] = {}
    for n, s in enumerate(scratch):
        home = next((k for k, last in busy_until.items() if not s.counter and scratch[k].num_bytes == s.num_bytes and last < s.first), None)
        homes.append(home)
        if not s.counter:
            busy_until[n if home is None else home] = s.last
    return homes
