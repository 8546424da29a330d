"""The routines of every shipped function compile for each architecture, in f32 and f64, with either index type: no GPU is needed."""
from __future__ import annotations

import pytest

from tilefuse.printers.support import paste
from tilefuse.runtime.compilers.nvrtc import compile_text
from tilefuse.scripts.language.elementary import ElementaryFunction, Implementation, routine_macros
from tilefuse.scripts.language.routine_library import read_library

pytest.importorskip("cuda.bindings.nvrtc")


def text_of(function: ElementaryFunction, implementation: Implementation, name: str, index: str) -> str:
    """The routines in a namespace of their own, between their macros."""
    macros = routine_macros(function, implementation) | {"INDEX": index}
    macros |= {f"CONTIGUOUS_{p.name}": "1" for p in (*function.inputs, *function.outputs) if p.extents}
    head = [f"#define {key} {value}" for key, value in macros.items()]
    return "\n".join([*head, f"namespace {name} {{", implementation.source, "}", *(f"#undef {key}" for key in macros)])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("index", ["int", "long long"])
def test_routines_compile(arch: str, index: str) -> None:
    """The first and the last geometry of each implementation, all in one translation unit."""
    parts: list[str] = []
    for function in read_library().functions.values():
        by_name: dict[str, list[Implementation]] = {}
        for implementation in function.implementations:
            by_name.setdefault(implementation.name.split()[0], []).append(implementation)
        for chosen in by_name.values():
            for implementation in {c.name: c for c in (chosen[0], chosen[-1])}.values():
                parts.append(text_of(function, implementation, f"part_{len(parts)}", index))
    body = "\n".join([*parts, 'extern "C" __global__ void nothing() {}'])
    assert compile_text(paste("cuda", body) + "\n" + body, "nothing", arch, "library").payload
