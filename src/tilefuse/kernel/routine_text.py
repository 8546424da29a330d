"""Text of routines that precedes a kernel, and wrappers for routines whose partial values are structs.

Kernel IR holds a struct of partial values as an array of 32-bit words. A wrapper copies it in and out around each routine.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilefuse.kernel.ir import Kernel


def routine_namespaces(kernel: Kernel) -> str:
    """Text of the kernel's routines, each in its namespace; "" if there are none."""
    return "".join(f"namespace {r.namespace} {{\n{r.text.strip()}\n}}\n\n" for r in kernel.routines)


def clear_text(ctype: str, neutral: str, words: int, name: str = "tf_neutral") -> str:
    """Text of a routine that sets `words` values of a C type to the neutral element."""
    store = f"const {ctype} value = {neutral};\n  for (int n = 0; n < {words}; ++n) memory[n] = value;"
    return f"TF_ROUTINE void {name}({ctype}* memory) {{\n  {store}\n}}\n"


def wrapped_text(name: str, function: str, parameters: Iterable[tuple[str, str]], states: Mapping[str, int], struct: str) -> str:
    """Text of a routine `name` that calls `function` and passes the structs `states` (name -> number of values) as arrays of 32-bit words.

    parameters: (C type, name), in order; a parameter of `states` has the type of the words.
    """
    signature = list(parameters)
    lines = [f"TF_ROUTINE void {name}({', '.join(f'{t} {n}' for t, n in signature)}) {{"]
    lines += [f"  {struct} {n}_values[{count}];\n  memcpy({n}_values, {n}, sizeof {n}_values);" for n, count in states.items()]
    lines.append(f"  {function}({', '.join(n + '_values' if n in states else n for _, n in signature)});")
    const = {n for t, n in signature if t.startswith("const")}
    lines += [f"  memcpy({n}, {n}_values, sizeof {n}_values);" for n in states if n not in const]
    return "\n".join([*lines, "}"]) + "\n"
