"""Prints kernel IR as one C++ source for the host, plain or with every access checked."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.routine_text import routine_namespaces
from tilefuse.kernel.writer import Writer
from tilefuse.printers import support
from tilefuse.printers.check import CheckedPrinter
from tilefuse.printers.fission import HostPrinter


def print_host(kernel: Kernel, check: bool = False) -> str:
    """C++ of `kernel`: `extern "C" int name(void* const* arguments, char* report, long report_size)`; 0 means fine.

    check: every access is checked (see `check.py`); findings make the result their number and are written to `report`.
    Exact: equal kernels give the same text.
    """
    head, includes, body = _printed(kernel, check)
    pasted = support.paste("checked" if check else "host", body)
    return head + _include_lines(includes) + "\n" + (pasted + "\n\n" if pasted else "") + body


def print_host_together(kernels: Sequence[tuple[Kernel, bool]]) -> str:
    """C++ of several kernels, each with whether it is checked; number n has the entry `<name>_<n>`.

    What kernels rely on stands in it once: a compiler reads the support text of a small kernel longer than the kernel.
    """
    printed = [_printed(replace(kernel, name=f"{kernel.name}_{n}"), check) for n, (kernel, check) in enumerate(kernels)]
    includes = tuple(dict.fromkeys(name for _, found, _ in printed for name in found))
    # The checking mode's support text holds all of the other's.
    pasted = support.paste("checked" if any(check for _, check in kernels) else "host", "\n".join(body for _, _, body in printed))
    parts = [f"namespace number_{n} {{\n{head}{body}\n}}\n" for n, (head, _, body) in enumerate(printed)]
    return "\n".join([_include_lines(includes), pasted, *parts])


def _printed(kernel: Kernel, check: bool) -> tuple[str, tuple[str, ...], str]:
    """(comment lines, standard headers, the function and its routines)."""
    printer: HostPrinter = CheckedPrinter(kernel) if check else HostPrinter(kernel)
    printer.function()
    head = Writer()
    count = "" if kernel.blocks is not None else f"{kernel.launch.num_blocks} "
    head.comment(f"{kernel.name}: {count}blocks of {kernel.launch.num_threads} threads, for the host"
                 + (", every access checked" if check else ""))
    for text in kernel.header:
        head.comment(text)
    return head.text(), tuple(printer.includes), routine_namespaces(kernel) + printer.out.text()


def _include_lines(names: Sequence[str]) -> str:
    # The first header sets the macro. Without it <cmath> leaves out the special functions of C++17, which no kernel calls, and which
    # take most of the time of a small compile (0.17 of 0.24 s with g++ 12).
    assert names[0] == "cstdlib"
    first, *others = (f"#include <{name}>\n" for name in names)
    return "".join([first, "#undef _GLIBCXX_USE_STD_SPEC_FUNCS\n", *others])
