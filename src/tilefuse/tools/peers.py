"""The peers that a command's `--compare` names: a framework that runs the same model, results in a file, or another model."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilefuse.base.errors import NameLookupError, OptionError, UserError
from tilefuse.tools.model_source import ModelSource, SourceKind

if TYPE_CHECKING:
    from tilefuse.driver.compare.peers import Run, Subject

KINDS = {SourceKind.TORCH: "torch", SourceKind.ONNX: "onnx", SourceKind.TEXT: "graph", SourceKind.SAVED: "saved"}
RESULTS_SUFFIX = ".npz"


def named_peers(texts: Sequence[str], source: ModelSource) -> list[str]:
    """The peers of `--compare` flags, by commas or repeated, each once.

    Raises: OptionError for a peer that this model does not have, before anything is compiled; UserError for a file that is not there.
    """
    from tilefuse.driver.compare.peers import require_peer
    from tilefuse.driver.onnx.model_file import require_file

    names = list(dict.fromkeys(part.strip() for text in texts for part in text.split(",") if part.strip()))
    if not names and texts:
        raise OptionError("--compare names nothing to compare with", hint="--compare eager")
    for name in names:
        if not is_file(name):
            require_peer(name, KINDS[source.kind])
        elif ":" not in name:
            require_file(Path(name))
    return names


def is_file(name: str) -> bool:
    """Whether a peer is results in a file or another model."""
    return "." in name or ":" in name or "/" in name


def subject_of_source(source: ModelSource, program: Any, arguments: Sequence[Any], named: Mapping[str, Any],
                      shapes: Mapping[str, Sequence[int]] | None, options: Mapping[str, str]) -> Subject:
    """The model of a command with the arguments of one call, to compare."""
    from tilefuse.driver.compare.compare import subject_of

    model = None if source.kind is SourceKind.SAVED else source.eager or source.model
    return subject_of(KINDS[source.kind], model, program, arguments, named, shapes, options)


def peer_run(name: str, subject: Subject, names: Sequence[str], device: str) -> Run:
    """One run of a peer. names: the program's outputs, as a file of results calls them.

    Raises: as `compare_peers.peer`; as reading and compiling another model.
    """
    from tilefuse.driver.compare.peers import peer

    if not is_file(name):
        return peer(name, subject)
    return _results_in(Path(name), names) if name.endswith(RESULTS_SUFFIX) else _other_model(name, subject, device)


def _results_in(path: Path, names: Sequence[str]) -> Run:
    """The results that a file holds, in the order of `names`. Raises: UserError; NameLookupError where one is missing."""
    from tilefuse.driver.compare.meaning import as_tensor
    from tilefuse.tools.inputs import read_arrays

    arrays = read_arrays(path)
    missing = [n for n in names if n not in arrays]
    if missing:
        raise NameLookupError(f"{path} has no array {missing[0]!r}", hint=f"it has: {', '.join(arrays) or 'none'}")
    return lambda: [as_tensor(arrays[n]) for n in names]


def _other_model(text: str, subject: Subject, device: str) -> Run:
    """Another model on the same inputs: by name where it knows all of them, else by place."""
    from tilefuse.driver.compare.peers import flat_tensors
    from tilefuse.tools.model_source import load_model
    from tilefuse.tools.programs import arguments_of, compile_source, wanted_inputs
    from tilefuse.tools.shapes import ShapeFlag

    by_name = dict(subject.told)
    source = load_model(text, {})
    open_shapes = {name: ShapeFlag(name, tuple(t.shape)) for name, t in by_name.items()} if source.kind is SourceKind.ONNX else {}
    program = compile_source(source, open_shapes, device, {})
    expected = wanted_inputs(program)
    if not set(expected) <= set(by_name) and len(expected) != len(by_name):
        raise UserError(f"{text} takes {len(expected)} inputs ({', '.join(expected)}), the model {len(by_name)} ({', '.join(by_name)})",
                        hint="models that are compared take the same inputs")
    tensors = [by_name[n] for n in expected] if set(expected) <= set(by_name) else list(by_name.values())
    arguments, named = arguments_of(source, program, tensors)
    return lambda: flat_tensors(program(*arguments, **named))
