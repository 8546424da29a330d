"""Examples that `--help` prints under each command, and its line in the list of commands. A test runs or reads every one of them."""
from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "compile": (
        "tilefuse compile model.onnx --save model.tilefuse",
        "tilefuse compile model.onnx --target h200 --emit sources",
    ),
    "export": (
        "tilefuse export model.onnx --out program --device host",
        "tilefuse export model.tilefuse --out program --name net",
        "tilefuse export model.onnx --out program --target h200",
    ),
    "opt": (
        "tilefuse opt --list",
        "tilefuse opt graph.txt --passes merge-equal-nodes,remove-dead-nodes",
    ),
    "explain": (
        "tilefuse explain model.onnx --summary",
        "tilefuse explain model.onnx --target h200 | grep '^kernel'",
        "tilefuse explain graph.txt --target h200 --why m y",
        "tilefuse explain model.onnx --target h200 --json > plan.json",
    ),
    "info": (
        "tilefuse info model.onnx",
        "tilefuse info model.tilefuse --json",
        "tilefuse info plan.json",
    ),
    "view": (
        "tilefuse view model.onnx --target h200 --out plan.html",
        "tilefuse view model.onnx --device host --measure --out measured.html",
        "tilefuse view plan.json model.onnx --target h200 --out both.html",
    ),
    "blas": (
        "tilefuse blas script.blas --shapes A:100x80 --device host",
        "tilefuse blas script.blas --shapes A:100x80 --emit script.cu",
    ),
    "tune": (
        "tilefuse tune model.onnx --seconds 30",
    ),
    "calibrate": (
        "tilefuse calibrate --device host",
    ),
    "options": (
        "tilefuse options",
        "tilefuse options --json",
    ),
    "key": (
        "tilefuse key signing.key",
    ),
}


# Lines of the list of commands: what fits a terminal of 80 columns.
SHORT: dict[str, str] = {
    "run": "Run a model; compare its results with others'.",
    "compile": "Save a compiled program, or write its sources.",
    "export": "Write a model as C++ that runs without Python.",
    "opt": "Run passes over a graph and print it.",
    "explain": "Print the plan: times, kernels, reasons.",
    "info": "Tell what is in a file, without running it.",
    "view": "Write the plan as one HTML page.",
    "bench": "Time a model beside its framework and others.",
    "blas": "Run a script of BLAS calls, or write it as C++.",
    "tune": "Search faster templates for a model's kernels.",
    "calibrate": "Measure bytes, launches, arithmetic of a device.",
    "options": "List every option with its default and meaning.",
    "key": "Write a new key for signing files.",
}


def help_text(command: str) -> str | None:
    """The examples of a command as the end of its help; the mark keeps their lines as they are. None where it has none."""
    lines = EXAMPLES.get(command, ())
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines) if lines else None
