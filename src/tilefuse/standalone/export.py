"""A folder with a program that runs without Python: sources, weights, C interface, build file, a loader for NumPy, a page."""
from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tilefuse.base.errors import InternalError, UserError
from tilefuse.runtime.compilers.host import INCLUDE_LINE
from tilefuse.runtime.spec import KernelCode, ProgramSpec
from tilefuse.runtime.stores.cache import write_whole
from tilefuse.standalone.c_names import banner, identifier
from tilefuse.standalone.pages import build_text, readme_text
from tilefuse.standalone.places import Wanted, plain_results
from tilefuse.standalone.program_text import DTYPES, ProgramText, program_text
from tilefuse.standalone.weights import Weights, write_weights

# Marks of parts of a source that only programs with such calls need.
_PART = re.compile(r"^@(\w+):begin@\n(.*?)^@\1:end@\n", re.MULTILINE | re.DOTALL)
_GPU_SOURCES = {"product": ("cuda_products.cu",), "convolution": ("cuda_records.h", "cuda_convolutions.cu"),
                "attention": ("cuda_attentions.cu",)}
_HOST_SOURCES = {"product": ("host_products.cpp",), "convolution": ("host_convolutions.cpp",), "attention": ("host_attentions.cpp",)}


Told = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Exported:
    """The folder that was written. `kinds`: of library calls; inputs, results: (name, data type, extents) of each.

    Units: `weight_bytes`, `workspace_bytes` (without the libraries' own) in bytes.
    """

    folder: Path
    name: str
    files: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    inputs: tuple[Told, ...] = ()
    results: tuple[Told, ...] = ()
    num_kernels: int = 0
    weight_bytes: int = 0
    workspace_bytes: int = 0


def export_program(spec: ProgramSpec, constants: Mapping[str, Any], folder: Path, name: str = "",
                   wanted: Sequence[Wanted] | None = None) -> Exported:
    """Writes the program into `folder`, which is made where it is not there.

    name: what the files and functions are called; by default the program's own name. wanted: the results; by default the program's own.
    Raises: UnsupportedOpError for a library call without a form outside Python; UserError when the folder cannot be written.
    """
    name = identifier(name or spec.name)
    on_gpu = bool(spec.kernels) and spec.kernels[0].target == "cuda" or not spec.kernels and spec.device != "host"
    # Refusals come before anything is written.
    marks = _marks(spec, name, on_gpu)
    outputs = plain_results(spec) if wanted is None else wanted
    program_text(spec, outputs, on_gpu, name, "", 0, "")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        weights = write_weights(spec, constants, folder / "weights.bin")
        functions = _source("cuda_functions.inc" if on_gpu else "host_functions.inc", marks, frozenset())
        built = program_text(spec, outputs, on_gpu, name, marks["banner"], weights.checksum, functions)
        files = _texts(spec, built, weights, name, on_gpu, marks)
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_whole(folder / path, text.encode())
    except OSError as cause:
        raise UserError(f"cannot write the program to {folder}: {cause.strerror or cause}") from cause
    values = {v.name: v for v in spec.values}
    inputs = tuple((title, values[v].dtype, values[v].shape) for v, title in zip(spec.inputs, spec.told_inputs, strict=True))
    results = tuple((r.name, r.dtype, r.shape) for r in built.places.results)
    return Exported(folder, name, ("weights.bin", *files), tuple(sorted(built.kinds)), inputs, results, len(spec.kernels),
                    weights.num_bytes,
                    built.places.workspace_bytes)


def _marks(spec: ProgramSpec, name: str, on_gpu: bool) -> dict[str, str]:
    title = f"{spec.name}: a program written by tilefuse for {spec.device}"
    return {
        "name": name, "NAME": name.upper(), "title": title.replace("*/", "* /"), "banner": banner(title),
        "where": " They are computed on `stream` and not waited for." if on_gpu else " In the calling thread and OpenMP's.",
        "alignment": "256" if on_gpu else "64",
        "stream": "`stream` is a\n * cudaStream_t (NULL: the default one)." if on_gpu else "`stream` is not used:\n * give NULL."}


def _texts(spec: ProgramSpec, program: ProgramText, weights: Weights, name: str, on_gpu: bool, marks: Mapping[str, str]) -> dict[str, str]:
    """Every text file of the folder, by its path."""
    suffix = "cu" if on_gpu else "cpp"
    kinds = program.kinds | ({"product"} if on_gpu and "attention" in program.kinds else frozenset())
    files = {f"include/{name}.h": _source("interface.h", marks, kinds),
             "src/parts.h": _source("parts.h", marks, kinds), "src/parts.cpp": _source("parts.cpp", marks, kinds),
             f"src/program.{suffix}": program.text}
    needed = ["cuda_library.h", "cuda_library.cu", "cuda_handles.cu"] if on_gpu else ["host_library.h", "host_tiles.h", "host_library.cpp"]
    needed += [source for kind, listed in (_GPU_SOURCES if on_gpu else _HOST_SOURCES).items() if kind in kinds for source in listed]
    maps = any(k.maps for k in spec.kernels)
    shared = {**marks, "tensor_maps": _source("tensor_maps.inc", marks, kinds) if maps else ""}
    files |= {f"src/{source}": _source(source, shared, kinds | {"map"} if maps else kinds) for source in needed}
    entries = [k.entry for k in spec.kernels]
    if len(set(entries)) != len(entries):
        raise InternalError(f"program {spec.name} has two kernels of one name")
    files |= {f"src/kernels/{k.name}.{suffix}": kernel_text(k, name) for k in spec.kernels}
    drawing = {**marks, "drawing": _source("drawing.inc", marks, kinds)}
    files[f"src/example.{suffix}"] = _source("cuda_example.cu" if on_gpu else "host_example.cpp", drawing, kinds)
    files["src/npy.h"] = _source("npy.h", marks, kinds)
    files["weights.txt"] = weights.table
    files[f"{name}.py"] = _source("load.inc", {**marks, "dtypes": json.dumps(DTYPES)}, kinds)
    sources = sorted(path for path in files if path.startswith("src/") and path.endswith((".cpp", ".cu")) and "example" not in path)
    files["CMakeLists.txt"] = build_text(spec, name, on_gpu, sources, kinds)
    files["README.md"] = readme_text(spec, program, weights, name, on_gpu, kinds)
    return files


def kernel_text(kernel: KernelCode, name: str) -> str:
    """A kernel's source as a file of its own: its includes, then the rest in a namespace, so that names of kernels never clash."""
    includes = list(dict.fromkeys(line.strip() for line in INCLUDE_LINE.findall(kernel.source)))
    body = INCLUDE_LINE.sub("", kernel.source).strip("\n")
    space = f"{name}_{kernel.entry}"
    # Names that only some forms of a template read are declared in all of them.
    includes += ["#pragma nv_diag_suppress 177"] if kernel.target == "cuda" else [
        '#pragma GCC diagnostic ignored "-Wunused-variable"', '#pragma GCC diagnostic ignored "-Wunused-but-set-variable"']
    lines = [*includes, *([""] if includes else []), f"namespace {space} {{", "", body, "", f"}}  // namespace {space}", ""]
    if kernel.target == "cuda":
        lines += ["// For the launches in program.cu.",
                  f"const void* address_of_{kernel.entry}() {{ return reinterpret_cast<const void*>({space}::{kernel.entry}); }}", ""]
    return "\n".join(lines)


def _source(file: str, marks: Mapping[str, str], kinds: frozenset[str]) -> str:
    """A file of `sources/` with its marks filled, without the parts that no call of the program needs."""
    text = (resources.files("tilefuse.standalone") / "sources" / file).read_text(encoding="utf-8")
    text = _PART.sub(lambda match: match[2] if match[1].removesuffix("s") in kinds else "", text)
    return re.sub(r"@(\w+)@", lambda match: marks[match[1]], text)
