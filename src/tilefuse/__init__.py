"""tilefuse: a GPU kernel-fusion compiler. Importing it loads neither torch nor the compiler; `compile` and `load` do."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__version__ = "0.1.0"
__all__ = ["compile", "load"]


def compile(model: Any, example_inputs: Sequence[Any] | None = None, *, device: Any = None,
            shapes: Mapping[str, Sequence[int]] | None = None, **options: Any) -> Any:
    """A callable program of a model.

    model: an ONNX file (path, bytes or ModelProto), a torch.nn.Module or function, an exported program, or a `tilefuse.ir` graph.
    example_inputs: torch models are compiled for the shapes, dtypes and device of these.
    device: "host", "cuda", "cuda:1"; by default where a torch model lies, else the GPU if there is one.
    shapes: shapes of ONNX inputs that the file leaves open. options: fields of `tilefuse.base.options.Options`; `target` names a
    device that need not be present and gives sources only.
    The result has `.explain()`, `.source()`, `.kernels` and `.save(path)`.
    Raises: UserError and its kinds for what is wrong with the model or the options; ToolchainError; DeviceError.
    """
    from tilefuse.driver.compile import compile_model

    return compile_model(model, example_inputs, device=device, shapes=shapes, **options)


def load(path: Any, device: Any = None) -> Any:
    """A saved program, ready to run without the compiler.

    Raises: UserError when the file is missing or damaged; UnsupportedDeviceError when it is for another device.
    """
    from tilefuse.runtime.archive import load_program

    return load_program(path, device)
