"""The text of routines as it stands before a kernel, and wrappers where partial values are structs.

A struct of partial values travels through kernel IR as an array of 32-bit words; wrappers copy it in and out around each routine.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilefuse.kernel.ir import Kernel


def routine_namespaces(kernel: Kernel) -> str:
    """The routines that a kernel carries, each text in its namespace; "" if there are none."""
    return "".join(f"namespace {r.namespace} {{\n{r.text.strip()}\n}}\n\n" for r in kernel.routines)


def clear_text(ctype: str, neutral: str, words: int, name: str = "tf_neutral") -> str:
    """A routine that sets `words` values of a C type to the neutral element."""
    store = f"const {ctype} value = {neutral};\n  for (int n = 0; n < {words}; ++n) memory[n] = value;"
    return f"TF_ROUTINE void {name}({ctype}* memory) {{\n  {store}\n}}\n"


def wrapped_text(name: str, function: str, parameters: Iterable[tuple[str, str]], states: Mapping[str, int], struct: str) -> str:
    """A routine of `name` that calls `function` with the parameters `states` (name -> number of values) as arrays of 32-bit words.

    parameters: (C type, name), in order; those of `states` have the type of the words.
    """
    given = list(parameters)
    lines = [f"TF_ROUTINE void {name}({', '.join(f'{t} {n}' for t, n in given)}) {{"]
    lines += [f"  {struct} {n}_values[{count}];\n  memcpy({n}_values, {n}, sizeof {n}_values);" for n, count in states.items()]
    lines.append(f"  {function}({', '.join(n + '_values' if n in states else n for _, n in given)});")
    const = {n for t, n in given if t.startswith("const")}
    lines += [f"  memcpy({n}, {n}_values, sizeof {n}_values);" for n in states if n not in const]
    return "\n".join([*lines, "}"]) + "\n"
