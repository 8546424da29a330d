"""The command `tilefuse info`: what is in a file."""
from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilefuse.tools import completion
from tilefuse.tools.console import emit_json


def info(file: Annotated[Path, typer.Argument(metavar="FILE", autocompletion=completion.kept_files,
                                              help="a saved program, .onnx, .pt2, a graph, plan or BLAS script as text, an explanation, "
                                                   "tuning results or an exported cache")],
         require_signature: Annotated[Path | None, typer.Option("--require-signature", help="verify that the key in this file signed "
                                                                                            "it")] = None,
         as_json: Annotated[bool, typer.Option("--json", help="print JSON on standard output")] = False) -> None:
    """Tell what is in a file: inputs, results, operators, kernels, weights, device, versions, signature. Nothing of it is run."""
    from tilefuse.runtime.stores.signature import read_key
    from tilefuse.tools.info import file_facts, info_lines
    from tilefuse.tools.lines import output_width, print_lines

    facts = file_facts(file, read_key(require_signature) if require_signature is not None else None)
    if as_json:
        emit_json(facts)
        return
    print_lines(info_lines(facts), wrap=True, width=output_width())
