"""tilefuse: a GPU kernel-fusion compiler. Importing it loads neither torch nor the compiler; `compile` and `load` do."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__version__ = "0.1.0"
__all__ = ["apply_passes", "bisect", "compare", "compile", "explain", "export", "graph_pass", "load", "profile", "programs", "set_logs",
           "source", "view"]


def compile(model: Any, example_inputs: Sequence[Any] | None = None, *, device: Any = None,
            shapes: Mapping[str, Sequence[int]] | None = None, example_kwargs: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """A callable program of a model.

    model: an ONNX model (path, bytes or ModelProto), a torch.nn.Module or function, an exported program (or the path of its .pt2 file), or
    a `tilefuse.ir` graph (or the path of its text).
    example_inputs, example_kwargs: torch models are compiled for the shapes, dtypes and device of these, given by place and by name;
    ONNX models for their shapes. Arrays of NumPy do as well, and a program called with them gives arrays of NumPy.
    device: "host", "cuda", "cuda:1"; by default where a torch model lies, else the GPU if there is one.
    shapes: shapes of ONNX inputs that the file leaves open. options: fields of `tilefuse.base.options.Options`; `target` names a
    device that need not be present and gives sources only.
    The result has `.explain()`, `.view(path)`, `.source()`, `.kernels` and `.save(path)`. It holds copies of the weights as they are now;
    where weights change later, use `torch.compile(model, backend="tilefuse")`, which follows them.
    Raises: UserError and its kinds for what is wrong with the model or the options; ToolchainError; DeviceError.
    """
    from tilefuse.driver.compile import compile_model

    return compile_model(model, example_inputs, device=device, shapes=shapes, example_kwargs=example_kwargs, **options)


def compare(model: Any, example_inputs: Sequence[Any] | None = None, against: Any = "eager", *, device: Any = None,
            shapes: Mapping[str, Sequence[int]] | None = None, example_kwargs: Mapping[str, Any] | None = None, rtol: float | None = None,
            atol: float | None = None, **options: Any) -> Any:
    """A model's outputs, compiled, against another execution of it for the same inputs: a report that prints, with `.agrees`.

    model, example_inputs, example_kwargs, device, shapes, options: as for `compile`. against: "eager" or "inductor" (torch models),
    "onnxruntime" (ONNX models), "unfused", "interpreter" (the definition of the graph), a callable, or the expected outputs themselves.
    rtol, atol: tolerances; by default those of each output's data type (docs/comparing.md has the rule). Where an output is outside, the
    model runs in f64 as well, and the report says whose error is larger.
    Raises: as `compile`; UserError without inputs; OptionError for a peer that such a model does not have.
    """
    from tilefuse.driver.compare.compare import compare_model

    return compare_model(model, example_inputs, against, device=device, shapes=shapes, example_kwargs=example_kwargs, rtol=rtol, atol=atol,
                         **options)


def bisect(model: Any, example_inputs: Sequence[Any] | None = None, *, device: Any = None,
           shapes: Mapping[str, Sequence[int]] | None = None, example_kwargs: Mapping[str, Any] | None = None, rtol: float | None = None,
           atol: float | None = None, seconds: float = 60.0, **options: Any) -> Any:
    """The first place where a model's compiled form differs from its definition for these inputs: import, pass, kernel, or overlap.

    Arguments as for `compare`; seconds: for making the failing graph smaller. The result prints; `.table()` has the error of every
    kernel, `.failing` the smallest graph that fails, and `.save(folder)` writes that graph with its inputs and gives the command that
    runs it.
    Raises: as `compare`.
    """
    from tilefuse.driver.compare.compare import fault_of_model

    return fault_of_model(model, example_inputs, device=device, shapes=shapes, example_kwargs=example_kwargs, rtol=rtol, atol=atol,
                          seconds=seconds, **options)


def export(model: Any, folder: Any, example_inputs: Sequence[Any] | None = None, *, device: Any = None,
           shapes: Mapping[str, Sequence[int]] | None = None, target: str = "", example_kwargs: Mapping[str, Any] | None = None,
           name: str = "", **options: Any) -> Any:
    """Writes a program as a folder that runs without Python, torch or tilefuse: C++, weights, a C interface, a CMake file, a page, and a
    loader for Python with NumPy alone. docs/export.md tells what is in it.

    model: what `tilefuse.compile` takes, a compiled program, or the path of a saved one. device: "host", "cuda"; target: a GPU that need
    not be present ("h200"). name: what files and functions are called. The result tells what was written.
    Raises: UnsupportedOpError for a library call without a form outside Python; UserError and its kinds; as `compile`.
    """
    from tilefuse.driver.export import export_model

    return export_model(model, folder, example_inputs, device=device, shapes=shapes, target=target, example_kwargs=example_kwargs,
                        name=name, **options)


def load(path: Any, device: Any = None, *, require_signature: Any = None) -> Any:
    """A saved program, ready to run without the compiler. It is called as what was saved, and gives results of the same structure.

    The file holds machine code that runs with all rights of this process: load a file from a stranger as you would run a program
    from a stranger. require_signature: file with the key with which it must be signed (`save(path, sign=...)`, `tilefuse key`); it
    is verified before anything is unpacked. None: TILEFUSE_REQUIRE_SIGNATURE, if that is set.
    Raises: UserError when the file is missing, damaged or not signed as required; UnsupportedDeviceError when it is for another device.
    """
    from tilefuse.runtime.archive import holds_parts

    if holds_parts(path):
        from tilefuse.driver.onnx.split import load_split

        return load_split(path, device, require_signature)
    from tilefuse.runtime.load import load_saved

    program, model = load_saved(path, device, require_signature=require_signature)
    if model is None:
        return program
    from tilefuse.driver.model import loaded_model

    return loaded_model(program, model, path)


def programs(compiled: Any) -> list[Any]:
    """The programs of a compiled object, one record each: name, direction, sizes, state, place, `.program`, `.explain()`, `.source()`.

    compiled: a model, function or method of `torch.compile(backend="tilefuse")`, also one compiled in place, or a module that holds such
    ones; what `tilefuse.compile`, `load`, `array.compile` and `blas.compile` give; an `nn.TrainingStep`.
    Raises: TypeMismatchError for what tilefuse did not compile; UserError where there is no program yet, or none any more.
    """
    from tilefuse.inspection.subject import subject_of

    return list(subject_of(compiled).parts)


def explain(compiled: Any, json: bool = False) -> Any:
    """Why a compiled object is as it is: programs, graph breaks, what runs in torch, with reasons and the lines of the user's program.

    Text, or plain data with `json=True` (docs/explanation.md). compiled: as for `programs`. Raises: as `programs`; an object without
    programs that runs in torch as a whole is explained, too.
    """
    from tilefuse.inspection.explain import explanation_json, explanation_text
    from tilefuse.inspection.subject import subject_of

    found = subject_of(compiled, needs_parts=False)
    if not found.in_torch:
        subject_of(found)
    return explanation_json(found) if json else explanation_text(found)


def source(compiled: Any, kernel: str | None = None) -> str:
    """Source text of one kernel of a compiled object, or of all of its programs. Raises: as `programs`; NameLookupError for an unknown
    kernel."""
    from tilefuse.inspection.sources import source_of

    return source_of(compiled, kernel)


def view(compiled: Any, path: Any = None, *, arguments: Any = None, show: bool = False) -> Any:
    """Writes one page with all programs of a compiled object and gives its path (docs/view.md). compiled: as for `programs`.

    path: None is "<name>.html" in the current folder. arguments: those of a call, of which a run is measured. show: open it.
    Raises: as `programs`; UnsupportedError where the packages of a page are missing (`tilefuse[view]`).
    """
    from tilefuse.inspection.pages import write_view

    return write_view(compiled, path, arguments=arguments, show=show)


def profile(compiled: Any, *arguments: Any, repeats: int = 10, backward: bool = False, call: Any = None, **named: Any) -> Any:
    """A measured run of `compiled(*arguments, **named)`: `str` of it is one screen; `.json()`, `.trace()` for Perfetto, `.write(path)`.

    Times of every kernel, library call and copy, what torch ran beside the programs, and the rest. The call is made two times to warm up,
    and then again and again: what it updates is updated as often. repeats: calls that are timed, once as they are and once step by step.
    backward: with the gradient of the sum of its results. call: a function to be called instead (a training step).
    Raises: as `programs`; UserError where the call runs none of the programs; as the call.
    """
    from tilefuse.inspection.profile import profile_of

    return profile_of(compiled, arguments, named, repeats=repeats, backward=backward, call=call)


def set_logs(logs: str = "", *, out: str = "", **levels: Any) -> None:
    """Shows what tilefuse tells of its work, as TILEFUSE_LOGS does: `set_logs("+plan,recompiles")`, `set_logs(recompiles=True)`.

    logs: names with commas between them, +name for more, -name for errors only; `set_logs("help")` prints the list. levels: the same by
    keyword: True, or a level of the module `logging`. out: a file that receives the lines as well. Each call replaces what the one before
    set; without arguments nothing is shown. Where TILEFUSE_LOGS is set, it goes before this.
    Raises: OptionError for an unknown name, or a file that cannot be written.
    """
    from tilefuse.base import logs as named

    named.set_logs(logs, out=out, **levels)


def apply_passes(graph: Any, passes: Sequence[str] | str, *, constants: Mapping[str, Any] | None = None, device: Any = None,
                 **options: Any) -> Any:
    """A graph after passes, with the attributes that they left: `apply_passes(graph, ["fusion", "codegen", "rtc"])`.

    graph: an `ir` graph, arrays, or the result of an earlier call. Attributes are read by name: `made["subgraph"]`, `made["kernel"]`,
    `made["rtc"]`; after "rtc" the result can be called. docs/array_passes.md lists passes and attributes.
    Raises: OptionError for an unknown pass; UserError naming the pass to add where an attribute is missing.
    """
    import tilefuse.driver.kernel_passes  # noqa: F401  registers fusion, codegen and rtc
    from tilefuse.arrays.evaluation.passes import apply_passes as apply

    return apply(graph, passes, constants=constants, device=device, **options)


def graph_pass(name: str, *, provides: Sequence[str] | str = (), depends: Sequence[str] | str = (), requires: Sequence[str] | str = (),
               establishes: Sequence[str] | str = (), preserves: Sequence[str] | str = (), replace: bool = False) -> Any:
    """Registers the decorated function, from graph with attributes to the same, as a pass for `apply_passes` and for pipelines.

    Its parameters behind the graph need defaults and are the pass's options. provides, depends: attributes that it leaves and needs.
    requires, establishes, preserves: properties of the graph (docs/passes.md). replace: take the place of a registered pass.
    Raises: UserError for a name that is taken or cannot stand in a pipeline's text, a parameter that cannot be an option, and an unknown
        property.
    """
    import tilefuse.driver.kernel_passes  # noqa: F401  registers the passes whose names are taken
    from tilefuse.driver.graph_passes import graph_pass as register

    return register(name, provides=provides, depends=depends, requires=requires, establishes=establishes, preserves=preserves,
                    replace=replace)


def _show_logs() -> None:
    import os

    if "TILEFUSE_LOGS" in os.environ:
        from tilefuse.base.logs import from_environment

        from_environment(os.environ)


_show_logs()
