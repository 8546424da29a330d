"""Generated kernels under NVIDIA's compute-sanitizer: `python -m tests.gpu.sanitize [--tools memcheck,racecheck]`.

The kernels are planned and compiled in this process, all cores at work; a bare process that only knows the CUDA driver starts them under
each tool, and all tools run side by side. Exit status: 0 nothing found; 1 something was; 2 there is no compute-sanitizer or no device.
"""
from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Tools that run unless others are asked for, and the others (both find little and take as long).
TOOLS = ("memcheck", "racecheck")
MORE_TOOLS = ("synccheck", "initcheck")
FOUND_ERRORS = 66
ITEM_BYTES = {"f64": 8, "i64": 8, "u64": 8, "f32": 4, "i32": 4, "u32": 4, "f16": 2, "bf16": 2, "i16": 2, "u16": 2}
# Integers are drawn below this: some of them lie beyond looked-up axes, where a kernel must stay inside by itself.
INTEGERS = 61
# Kernels with one fault each, by the tool that must find it: a tool that finds nothing in them proves nothing about others.
FAULTS = {
    "memcheck": 'extern "C" __global__ void fault(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x + (threadIdx.x == 63)]; }',
    "racecheck": 'extern "C" __global__ void fault(const float* x, float* y) { __shared__ float s[64]; s[threadIdx.x] = x[threadIdx.x]; '
                 "y[threadIdx.x] = s[63 - threadIdx.x]; }",
    "synccheck": 'extern "C" __global__ void fault(const float* x, float* y) { if (threadIdx.x % 2) __syncthreads(); '
                 "y[threadIdx.x] = x[threadIdx.x]; }",
    "initcheck": 'extern "C" __global__ void fault(const float* x, float* y) { y[threadIdx.x] += x[threadIdx.x]; }',
}


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(prog="python -m tests.gpu.sanitize", description=__doc__)
    found.add_argument("--tools", default=",".join(TOOLS), type=tools_of, help=f"comma list of {', '.join((*TOOLS, *MORE_TOOLS))}")
    found.add_argument("--only", default="", help="regular expression that a kernel's name in the sample must match")
    found.add_argument("--tasks", action="store_true", help="kernels of tasks alone")
    found.add_argument("--sanitizer", default="", help="path of compute-sanitizer; default: on PATH, or below CUDA_HOME or /usr/local/cuda")
    found.add_argument("--keep", type=Path, help="folder for sources, machine code and the tools' full output")
    found.add_argument("--seconds", type=float, default=300.0, help="time that one tool may take")
    found.add_argument("--list", action="store_true", help="print the sample and stop")
    found.add_argument("--launch", type=Path, help=argparse.SUPPRESS)
    return found


def tools_of(text: str) -> list[str]:
    """The named tools. Raises: ArgumentTypeError for one that there is none of."""
    found = [t for t in text.split(",") if t]
    for tool in found:
        if tool not in FAULTS:
            raise argparse.ArgumentTypeError(f"there is no tool {tool}; there are {', '.join(FAULTS)}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the sample. Exit status: as the module says."""
    options = parser().parse_args(arguments)
    if options.launch:
        return launch(options.launch)
    from tests.gpu.kernel_samples import kinds, samples, task_samples
    from tilefuse.runtime import cuda_api
    from tilefuse.target.catalog import describe_device
    from tilefuse.target.device import H200

    device = H200
    if not options.list:
        program = sanitizer_path(options.sanitizer)
        if program is None or not cuda_api.has_device():
            missing = "no CUDA device" if program else "no compute-sanitizer: it comes with the CUDA toolkit; --sanitizer PATH names it"
            print(missing, file=sys.stderr)
            return 2
        found = cuda_api.describe_device(0)
        device = describe_device(found.name, found.capability, found.memory_bytes, dict(found.facts))
    started = time.monotonic()
    chosen = [s for s in (task_samples if options.tasks else samples)(device) if re.search(options.only, s.name)]
    if options.list:
        print("\n".join(f"{s.name}: {', '.join(sorted(kinds(s)))}" for s in chosen))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        tools = options.tools
        prepare([(s.name, s.code) for s in chosen], folder)
        for tool in tools:
            prepare([(f"planted for {tool}", faulty(tool, device.arch))], folder / tool)
        print(f"{len(chosen)} kernels for {device.name}, compiled after {time.monotonic() - started:.1f} s", flush=True)
        with ThreadPoolExecutor(len(tools) or 1) as pool:
            codes = list(pool.map(lambda tool: check(program, tool, folder, options.seconds), tools))
    print(f"{time.monotonic() - started:.1f} s in all")
    return max(codes, default=0)


def sanitizer_path(asked: str) -> str | None:
    """Where compute-sanitizer is; None if nowhere."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "compute-sanitizer"
    candidates = [asked] if asked else [shutil.which("compute-sanitizer") or "", str(toolkit)]
    return next((c for c in candidates if c and Path(c).is_file()), None)


def prepare(kernels: Sequence[tuple[str, Any]], folder: Path) -> None:
    """Compile the kernels with line numbers and write them, with what their launches need, into the folder."""
    from tilefuse.runtime.compilers.nvrtc import compile_text

    folder.mkdir(parents=True, exist_ok=True)

    def compiled(item: tuple[int, tuple[str, Any]]) -> dict[str, Any]:
        number, (name, code) = item
        (folder / f"{number}.cu").write_text(code.source, encoding="utf-8")
        made = compile_text(code.source, code.entry, code.arch, str(folder / str(number)), (*code.flags, "--generate-line-info"))
        (folder / f"{number}.cubin").write_bytes(made.payload)
        return {"name": name, "file": f"{number}.cubin", "entry": code.entry, "one_structure": code.one_structure,
                "launch": asdict(code.launch), "maps": [asdict(m) for m in code.maps],
                "parameters": [[p.dtype, p.num_elements, p.role] for p in code.parameters]}

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        rows = list(pool.map(compiled, enumerate(kernels)))
    (folder / "kernels.json").write_text(json.dumps(rows), encoding="utf-8")


def faulty(tool: str, arch: str) -> Any:
    """A kernel with a fault that the tool must find."""
    from tilefuse.runtime.spec import KernelCode
    from tilefuse.target.launch import Launch, Parameter

    parameters = (Parameter("x", "f32", 64, "in"), Parameter("y", "f32", 64, "out"))
    return KernelCode("fault", "fault", FAULTS[tool] + "\n", "cuda", arch, Launch(1, 64), parameters)


def check(program: str, tool: str, folder: Path, seconds: float) -> int:
    """Run the planted fault and every kernel under one tool; prints what it found. 0, or 1 if anything, or if the fault was missed."""
    started = time.monotonic()
    planted, planted_output = run(program, tool, folder / tool, seconds)
    code, output = run(program, tool, folder, seconds)
    missed = "" if planted == FOUND_ERRORS else f"; the planted fault was not found (status {planted}), so this proves nothing"
    if missed:
        output += planted_output
    print(f"== {tool}: {verdict(code, output)}{missed}, {time.monotonic() - started:.1f} s\n{told(output)}", flush=True)
    return 1 if code or missed else 0


def run(program: str, tool: str, folder: Path, seconds: float) -> tuple[int, str]:
    """Exit status and output of a tool over the kernels of a folder; the output is also left there."""
    command = [program, "--tool", tool, "--error-exitcode", str(FOUND_ERRORS), "--print-limit", "50", "--target-processes", "all",
               sys.executable, "-m", "tests.gpu.sanitize", "--launch", str(folder)]
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(p for p in (str(ROOT / "src"), str(ROOT), environment.get("PYTHONPATH", "")) if p)
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=seconds, check=False)
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        code, output = -1, (late.stdout or b"").decode(errors="replace") + f"\n{tool} took longer than {seconds:.0f} s\n"
    (folder / f"{tool}.txt").write_text(output, encoding="utf-8")
    if code == 0 and any(int(count) for count in re.findall(r"SUMMARY: (\d+)", output)):
        # Warnings are findings as well, whatever status the tool gives them.
        code = FOUND_ERRORS
    return code, output


def verdict(code: int, output: str) -> str:
    """One line: how many kernels ran, and how the tool ended."""
    ran = len(re.findall(r"^ran ", output, re.MULTILINE))
    ended = {0: "nothing found", FOUND_ERRORS: "errors found"}.get(code, f"ended with status {code}")
    return f"{ran} kernels ran, {ended}"


def told(output: str, most: int = 60) -> str:
    """The part of a tool's output to read: its reports under the kernels they belong to, without the kernels that are clean."""
    lines: list[str] = []
    heading = ""
    for line in output.splitlines():
        if line.startswith("kernel "):
            heading = line
        elif not line.startswith("ran ") and line.strip("= "):
            if heading and "SUMMARY" not in line:
                lines.append(heading)
                heading = ""
            lines.append(line)
    return "\n".join(lines[:most]) + ("\n..." if len(lines) > most else "")


def launch(folder: Path) -> int:
    """Start every kernel of the folder twice on buffers of exactly its sizes; the part that runs under the sanitizer.

    Exit status: 1 if a kernel cannot be started, or leaves a counter that is not zero.
    """
    from tilefuse.base.errors import DeviceError
    from tilefuse.runtime.cuda_api import check as checked
    from tilefuse.runtime.cuda_api import driver, load_function, map_encoder, prepare_launch, use_device
    from tilefuse.target.launch import Launch
    from tilefuse.target.tensor_map import MAP_ALIGNMENT_BYTES, MAP_BYTES, MapParameter

    use_device(0)
    library = driver()
    failed = 0
    for row in json.loads((folder / "kernels.json").read_text(encoding="utf-8")):
        print(f"kernel {row['name']} ({row['entry']}, {row['file']})", flush=True)
        shape = Launch(**row["launch"])
        addresses = (ctypes.c_uint64 * len(row["parameters"]))()
        counters: list[tuple[int, int]] = []
        for number, (dtype, num_elements, role) in enumerate(row["parameters"]):
            num_bytes = max(num_elements, 1) * ITEM_BYTES.get(dtype, 1)
            pointer = ctypes.c_uint64()
            checked(library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(num_bytes)), "cuMemAlloc")
            addresses[number] = pointer.value
            if role in ("in", "inout"):
                data = contents(dtype, num_elements)
                checked(library.cuMemcpyHtoD_v2(pointer, data, ctypes.c_size_t(num_bytes)), "cuMemcpyHtoD")
            elif role == "counter":
                checked(library.cuMemsetD8_v2(pointer, 0, ctypes.c_size_t(num_bytes)), "cuMemsetD8")
                counters.append((pointer.value, num_bytes))
        memory = ctypes.create_string_buffer(MAP_BYTES * len(row["maps"]) + MAP_ALIGNMENT_BYTES)
        start = -(-ctypes.addressof(memory) // MAP_ALIGNMENT_BYTES) * MAP_ALIGNMENT_BYTES
        maps = [start + MAP_BYTES * n for n in range(len(row["maps"]))]
        for place, fields in zip(maps, row["maps"], strict=True):
            described = MapParameter(**{name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()})
            checked(map_encoder(described, place)(addresses[described.parameter]), "cuTensorMapEncodeTiled", row["name"])
        arguments = [ctypes.addressof(addresses) + 8 * n for n in range(len(addresses))] + maps
        places = (ctypes.c_void_p * len(arguments))(*arguments)
        try:
            function = load_function((folder / row["file"]).read_bytes(), row["entry"], shape, 0)
            call, _kept = prepare_launch(function, shape, 0, ctypes.addressof(places))
            for _ in range(2):
                checked(call(), "cuLaunchKernelEx", row["name"])
            checked(library.cuCtxSynchronize(), "cuCtxSynchronize", row["name"])
            for address, num_bytes in counters:
                left = (ctypes.c_ubyte * num_bytes)()
                checked(library.cuMemcpyDtoH_v2(left, ctypes.c_uint64(address), ctypes.c_size_t(num_bytes)), "cuMemcpyDtoH")
                if any(left):
                    failed += 1
                    print(f"  a counter of {row['name']} is not zero after the kernel", flush=True)
            print(f"ran {row['name']}", flush=True)
        except DeviceError as error:
            # After a fault the context is lost: no further kernel could start.
            print(f"  {error}", flush=True)
            return 1
        for address in addresses:
            checked(library.cuMemFree_v2(ctypes.c_uint64(address)), "cuMemFree")
    return 1 if failed else 0


def contents(dtype: str, num_elements: int) -> bytes:
    """Bytes of a buffer: floats of both signs about one, small integers; the same for every call."""
    turn = 1009
    match dtype:
        case "f64" | "f32":
            kind = ctypes.c_double if dtype == "f64" else ctypes.c_float
            period = bytes((kind * turn)(*((n * 37 % 101) / 50 - 1 for n in range(turn))))
        case "f16" | "bf16":
            # Halves by their bits: sign, an exponent around one, three bits of fraction.
            bias, shift = (15, 10) if dtype == "f16" else (127, 7)
            words = ((n % 2) << 15 | (bias - n % 3) << shift | (n * 37 % 8) << shift - 3 for n in range(turn))
            period = bytes((ctypes.c_uint16 * turn)(*words))
        case _:
            item = ITEM_BYTES.get(dtype, 1)
            period = b"".join((n % (2 if dtype == "bool" else INTEGERS)).to_bytes(item, "little") for n in range(turn))
    num_bytes = num_elements * ITEM_BYTES.get(dtype, 1)
    return (period * (num_bytes // len(period) + 1))[:num_bytes]


if __name__ == "__main__":
    sys.exit(main())
