"""From a command's arguments to a compiled program, its plan or its sources."""
from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilefuse.base.errors import DeviceError, NameLookupError, OptionError, ShapeError, TypeMismatchError, nearest
from tilefuse.target.device import DeviceSpec
from tilefuse.tools.console import working
from tilefuse.tools.model_source import ModelSource, SourceKind, load_model, shape_arguments
from tilefuse.tools.scripts import is_script, planned_script
from tilefuse.tools.shapes import ShapeFlag, parse_shapes

if TYPE_CHECKING:
    from tilefuse.runtime.stores.cache import KernelCache
    from tilefuse.runtime.stores.cache_key import CacheKey

DEVICES = ("host", "cuda")


def parse_options(pairs: Sequence[str]) -> dict[str, str]:
    """The mapping that `-O name=value` flags write; a name alone means true.

    Raises: OptionError for an empty name.
    """
    options: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name.strip():
            raise OptionError(f"-O {pair!r} names no option", hint="write -O name=value; `tilefuse options` lists them")
        options[name.strip().replace("-", "_")] = value if equals else "true"
    return options


def chosen_device(text: str) -> str:
    """The executor that `--device` names; without it the GPU if torch sees one, else the host.

    Raises: OptionError for an unknown name, DeviceError for a GPU that is not there.
    """
    import torch

    if not text:
        return "cuda" if torch.cuda.is_available() else "host"
    if text in ("cpu", "host"):
        return "host"
    kind, colon, number = text.partition(":")
    if kind != "cuda" or colon and not (number.isascii() and number.isdigit()):
        raise OptionError(f"unknown device {text!r}", hint=nearest(kind, DEVICES) or f"one of {', '.join(DEVICES)}, cuda:1")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise DeviceError("torch sees no CUDA device",
                          hint="use --device host; sources for a GPU: `tilefuse compile --target h200 --emit DIR`")
    if number and int(number) >= count:
        raise DeviceError(f"there is no GPU {number}: torch sees {count}", hint=f"cuda:0 to cuda:{count - 1}")
    return text


def target_device(name: str) -> DeviceSpec:
    """The device description that `--target` names; the device need not be present.

    Raises: OptionError for an unknown name.
    """
    from tilefuse.target.catalog import device_by_name

    return device_by_name(name)


def compile_source(source: ModelSource, shapes: Mapping[str, ShapeFlag], device: str, options: Mapping[str, str]) -> Any:
    """The compiled program of a model.

    Raises: whatever the compiler raises.
    """
    import tilefuse

    if source.kind is SourceKind.SAVED:
        return _loaded(source, device, options)
    inputs, named = source.examples, source.named
    if source.kind is SourceKind.TORCH and source.eager is not None and device.startswith("cuda"):
        import torch
        from torch.utils import _pytree as pytree

        for model in (source.model, source.eager):
            if isinstance(model, torch.nn.Module):
                model.to(device)
        inputs, named = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), (inputs, dict(named)))
    return tilefuse.compile(source.model, inputs, device=device, shapes=shape_arguments(shapes), example_kwargs=named or None, **options)


def _loaded(source: ModelSource, device: str, options: Mapping[str, str]) -> Any:
    """A saved program. Raises: OptionError for options: it is compiled already; DeviceError where it is for another executor."""
    import tilefuse

    if options:
        raise OptionError(f"{source.model} is compiled already, and options like {next(iter(options))} decide how a model is compiled",
                          hint="name the model, or save it again with these options")
    program = tilefuse.load(source.model)
    place = device_of(program).type
    if device and (place == "cuda") != device.startswith("cuda"):
        raise DeviceError(f"{source.model} holds machine code for {'a GPU' if place == 'cuda' else 'the host'}, not for {device}",
                          hint="leave out --device, or compile the model again for that device")
    return program


def load_and_compile(model: str, shape_flags: Sequence[str], device: str, option_flags: Sequence[str],
                     source: ModelSource | None = None) -> tuple[ModelSource, Any, float]:
    """Model, program and the seconds that compiling took. source: the model, where it is loaded already. Units: seconds."""
    shapes = parse_shapes(shape_flags)
    options = parse_options(option_flags)
    source = source or load_model(model, shapes)
    # A saved program runs where it was compiled for.
    where = device if source.kind is SourceKind.SAVED and not device else chosen_device(device)
    started = time.perf_counter()
    program = compile_source(source, shapes, where, options)
    took = time.perf_counter() - started
    check_shapes(shapes, source, program)
    return source, program, took


def check_shapes(shapes: Mapping[str, ShapeFlag], source: ModelSource, program: Any) -> None:
    """Checks the flags against the program's inputs; some models (graphs in text form, exported programs) fix their shapes themselves.

    Raises: NameLookupError, ShapeError or TypeMismatchError for a flag that says something else.
    """
    expected = wanted_inputs(program)
    for name, flag in shapes.items():
        if name not in expected:
            # The other frontends know their inputs' names; the program omits unused inputs and renames some.
            if source.kind in (SourceKind.TEXT, SourceKind.SAVED):
                raise NameLookupError(f"the model has no input {name!r}",
                                      hint=nearest(name, expected) or f"its inputs: {', '.join(expected)}")
            continue
        dtype, shape = expected[name]
        if flag.shape != shape:
            raise ShapeError(f"--shapes {name}: the model takes {list(shape)}, not {list(flag.shape)}")
        if flag.dtype is not None and flag.dtype != dtype:
            raise TypeMismatchError(f"--shapes {name}: the model takes {dtype}, not {flag.dtype}")


def cached_kernels(model: str, shape_flags: Sequence[str], device: str, option_flags: Sequence[str]) -> tuple[KernelCache, list[CacheKey]]:
    """The cache that these options name and the keys in it of a model's kernels, without compiling them."""
    from tilefuse.base.options import Options
    from tilefuse.runtime.compilers.binaries import kernel_key
    from tilefuse.runtime.stores.cache import cache_of

    options = Options.from_environment().with_overrides(**parse_options(option_flags))
    spec = generate(model, shape_flags, chosen_device(device), option_flags).spec
    return cache_of(options.cache, options.cache_dir), [kernel_key(kernel, options.cxx) for kernel in spec.kernels]


def generate(model: str, shape_flags: Sequence[str], target: str | DeviceSpec, option_flags: Sequence[str]) -> Any:
    """Plan and sources of a model for a device that need not be present: nothing is built or loaded."""
    from tilefuse.driver.compile import generate_sources

    shapes = parse_shapes(shape_flags)
    if is_script(model):
        return planned_script(Path(model), shapes, target, parse_options(option_flags))
    source = load_model(model, shapes)
    if source.kind is SourceKind.SAVED:
        if isinstance(target, DeviceSpec):
            raise OptionError(f"{model} is a saved program, compiled for one device", hint="name the model, or leave out --target")
        return compile_source(source, shapes, "", parse_options(option_flags))
    program = generate_sources(source.model, source.examples, device=target, shapes=shape_arguments(shapes),
                               example_kwargs=source.named or None, **parse_options(option_flags))
    check_shapes(shapes, source, program)
    return program


def check_one_device(target: str, device: str) -> None:
    """Raises: OptionError where both a device at hand and one that need not be present are named."""
    if target and device:
        raise OptionError(f"--device {device} and --target {target} both say for which device to compile", hint="leave out one of them")


def planned_program(model: str, shapes: Sequence[str] | None, device: str, option: Sequence[str] | None, target: str, quiet: bool) -> Any:
    """Plan and sources of a model for the device that --device or --target names, while a line on the console says so.

    A saved program, and a model that runs in parts, are the compiled program itself. Raises: OptionError for both flags; as planning.
    """
    check_one_device(target, device)
    with working(f"planning {model}", quiet=quiet):
        where = target_device(target) if target else chosen_device(device)
        return generate(model, shapes or [], where, option or [])


def wanted_inputs(program: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """(dtype, shape) of a program's inputs by their names in the source, in call order."""
    spec = program.spec
    value_by_name = {value.name: value for value in spec.values}
    return {title: (value_by_name[name].dtype, value_by_name[name].shape) for title, name in zip(spec.told_inputs, spec.inputs)}


def device_of(program: Any) -> Any:
    """The torch device on which a program, or the program inside a compiled torch model, runs."""
    return getattr(program, "program", program).device


def arguments_of(source: ModelSource, program: Any, inputs: Sequence[Any] | None = None, seed: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a program on its device, by place and by name: the model's own example inputs, or drawn ones of the shapes
    that it takes.

    inputs: tensors for the inputs of the program, in its order; numbers and structure stay those of the example inputs.
    """
    import torch
    from torch.utils import _pytree as pytree

    from tilefuse.driver.torch.arguments import bound
    from tilefuse.tools.inputs import random_tensor

    names = getattr(program, "argument_names", ())
    drawn = (random_tensor(dtype, shape, seed=seed + number) for number, (dtype, shape) in enumerate(wanted_inputs(program).values()))
    if not (source.inputs or source.named) and hasattr(program, "arguments_of"):
        leaves, structure = pytree.tree_flatten(program.arguments_of(list(inputs if inputs is not None else drawn)))
    elif (source.inputs or source.named) and names:
        leaves, structure = pytree.tree_flatten(bound(source.model, source.inputs, dict(source.named)))
        if inputs is not None:
            tensors = iter(inputs)
            leaves = [leaf if name is None else next(tensors) for leaf, name in zip(leaves, names, strict=True)]
    else:
        leaves, structure = pytree.tree_flatten((tuple(inputs if inputs is not None else drawn), {}))
    place = device_of(program)
    arguments, named = pytree.tree_unflatten([leaf.to(place) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], structure)
    return list(arguments), named


def first_call(source: ModelSource, program: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Results of a program's first call. Raises: the error that the model raises in torch, where the call fails for the same reason."""
    from tilefuse.driver.torch.model import TRACING_ERRORS, require_runs

    try:
        return program(*arguments, **named)
    except TRACING_ERRORS as error:
        failure = error
    if source.eager is not None:
        require_runs(source.eager, tuple(arguments), named)
    raise failure
