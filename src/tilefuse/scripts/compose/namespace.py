"""The routines of one kernel: a namespace for every implementation and every set of macros, cut to the functions that are called.

Each method returns the qualified name of a routine and records that it is called; `texts()` returns the text for the kernel.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilefuse.base.user_text import Origin, remember_text
from tilefuse.ir.ops import C_TYPES
from tilefuse.kernel.ir import RoutineText
from tilefuse.kernel.routine_text import clear_text, wrapped_text
from tilefuse.scripts.language.elementary import ElementaryFunction, Implementation, routine_macros
from tilefuse.scripts.language.routine_source import cut_routines, enclosing_routine, replace_macros, routine_line


@dataclass
class _Namespace:
    """One instance of an implementation's text: the library's functions that are called, and generated ones."""

    function: str
    implementation: Implementation
    macros: dict[str, str]
    called: dict[str, None] = field(default_factory=dict)
    generated: dict[str, str] = field(default_factory=dict)


class Namespaces:
    """All routines of one kernel."""

    def __init__(self, index_type: Callable[[ElementaryFunction], str]) -> None:
        self.index_type = index_type
        self.names: dict[tuple[str, str, frozenset[str]], str] = {}
        self.spaces: dict[str, _Namespace] = {}

    def space(self, function: ElementaryFunction, implementation: Implementation, contiguous: frozenset[str] = frozenset()) -> str:
        """The namespace of an implementation with 16-byte accesses for the parameters `contiguous`."""
        key = (function.name, implementation.name, contiguous)
        if key not in self.names:
            same = sum(name == function.name for name, _, _ in self.names)
            self.names[key] = name = f"{function.name}_{same}" if same else f"{function.name}_routines"
            macros = routine_macros(function, implementation) | {"INDEX": self.index_type(function)}
            macros |= {f"CONTIGUOUS_{p.name}": str(int(p.name in contiguous)) for p in (*function.inputs, *function.outputs)}
            self.spaces[name] = _Namespace(function.name, implementation, macros)
        return self.names[key]

    def routine(self, function: ElementaryFunction, implementation: Implementation, role: str,
                contiguous: frozenset[str] = frozenset()) -> str:
        """Qualified name of a routine of the library ("load A", "compute", "store y")."""
        space = self.space(function, implementation, contiguous)
        name = implementation.routines[role]
        self.spaces[space].called.setdefault(name)
        return f"{space}::{name}"

    def clear(self, function: ElementaryFunction, implementation: Implementation, count: int) -> str:
        """Qualified name of a routine that sets `count` partial values to the neutral element: (words*)."""
        space = self.space(function, implementation)
        name = f"neutral_{count}"
        if function.state:
            self._wrap(space, name, f"set_{name}", [("unsigned int*", "words")], {"words": count}, function)
            self.spaces[space].generated.setdefault(f"set_{name}", clear_text(function.state, function.neutral, count, f"set_{name}"))
            self._order(space, f"set_{name}", name)
        else:
            self.spaces[space].generated.setdefault(name, clear_text(C_TYPES[function.dtype.name], function.neutral, count, name))
        return f"{space}::{name}"

    def padding(self, function: ElementaryFunction, implementation: Implementation, parameter: str) -> str:
        """Qualified name of a routine that sets one word to the padding of a parameter: (word*)."""
        space = self.space(function, implementation)
        dtype = function.parameter(parameter).dtype or function.dtype
        self.spaces[space].generated.setdefault(f"padding_{parameter}",
                                           clear_text(C_TYPES[dtype.name], f"PAD_{parameter}", 1, f"padding_{parameter}"))
        return f"{space}::padding_{parameter}"

    def compute(self, function: ElementaryFunction, implementation: Implementation, held: int) -> str:
        """Qualified name of the compute routine. Its output, if it is `held` structs of partial values, is passed as 32-bit words."""
        plain = self.routine(function, implementation, "compute")
        if not function.state:
            return plain
        space = self.space(function, implementation)
        real = C_TYPES[function.dtype.name]
        parameters = [(f"const {C_TYPES[(p.dtype or function.dtype).name]}*" if p.extents else real, p.name) for p in function.inputs]
        parameters += [("unsigned int*", p.name) for p in function.outputs]
        parameters += [("INDEX", f"first_{n}") for n in function.sizes if function.positions] + [("int", "tx"), ("int", "ty")]
        outputs = {p.name: held for p in function.outputs}
        self._wrap(space, "compute_words", implementation.routines["compute"], parameters, outputs, function)
        return f"{space}::compute_words"

    def combine(self, function: ElementaryFunction, implementation: Implementation) -> str:
        """Qualified name of the routine that combines two structs of partial values: (words* into, const words* other)."""
        self.routine(function, implementation, "combine")
        space = self.space(function, implementation)
        parameters = [("unsigned int*", "into"), ("const unsigned int*", "other")]
        self._wrap(space, "combine_words", implementation.routines["combine"], parameters, {"into": 1, "other": 1}, function)
        return f"{space}::combine_words"

    def finish(self, function: ElementaryFunction, implementation: Implementation) -> str:
        """Qualified name of the routine that computes the output from a combined partial value: (const words*, output*)."""
        plain = self.routine(function, implementation, "finish")
        if not function.state:
            return plain
        space = self.space(function, implementation)
        output = function.outputs[0]
        parameters = [("const unsigned int*", "state"), (f"{C_TYPES[(output.dtype or function.dtype).name]}*", "out")]
        self._wrap(space, "finish_words", implementation.routines["finish"], parameters, {"state": 1}, function)
        return f"{space}::finish_words"

    def _wrap(self, space: str, name: str, called: str, parameters: list[tuple[str, str]], states: dict[str, int],
              function: ElementaryFunction) -> None:
        """Generates a function that passes structs of partial values as 32-bit words to the routine `called`."""
        names = self.spaces[space]
        names.called.setdefault(function.state)
        names.generated.setdefault(name, wrapped_text(name, called, parameters, states, function.state))

    def _order(self, space: str, first: str, then: str) -> None:
        """Puts a generated function before another one that calls it."""
        texts = self.spaces[space].generated
        texts[then] = texts.pop(then)
        assert first in texts

    def texts(self) -> tuple[RoutineText, ...]:
        """Texts of the routines that the kernel carries."""
        routines = []
        for name, space in self.spaces.items():
            text = cut_routines(space.implementation.source, space.macros, space.called) if space.called else ""
            generated = replace_macros("".join(space.generated.values()), space.macros)
            if text.strip() or generated:
                full_text = text.strip("\n") + "\n" + generated
                remember_text(full_text.strip(), Origin(f"function {space.function}", _place(space.implementation, full_text.strip())))
                routines.append(RoutineText(name, full_text))
        return tuple(routines)


def _place(implementation: Implementation, text: str) -> Callable[[int], str]:
    """Number of a line of `text` -> the routine of that line, and its place in the library's file."""

    def place(line: int) -> str:
        routine = enclosing_routine(text, line)
        at = routine_line(implementation.source, routine)
        return f"routine {routine} at {implementation.file}:{at}" if at else f"routines in {implementation.file}"

    return place
