"""Prints kernel IR as one C++ source for the host, plain or with every access checked."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.pipeline_rules import check_pipeline
from tilefuse.kernel.routine_text import routine_namespaces
from tilefuse.kernel.writer import Writer
from tilefuse.printers import support
from tilefuse.printers.check import CheckedPrinter
from tilefuse.printers.fission import HostPrinter


def print_host(kernel: Kernel, check: bool = False, task_order: Sequence[int] | None = None) -> str:
    """C++ of `kernel`: `extern "C" int name(void* const* arguments, char* report, long report_size)`; 0 means fine.

    check: every access is checked (see `check.py`); findings make the result their number and are written to `report`.
    task_order: numbers of the tasks of a kernel of tasks in the order in which they run; None for the kernel's own order.
    Exact: equal kernels give the same text.
    """
    head, includes, body = _printed(kernel, check, task_order)
    pasted = support.paste("checked" if check else "host", body)
    return head + _include_lines(includes) + "\n" + (pasted + "\n\n" if pasted else "") + body


def print_host_together(kernels: Sequence[tuple[Kernel, bool]]) -> str:
    """C++ of several kernels in one source, each with whether it is checked; kernel n has the entry `<name>_<n>`.

    The kernels share the support text, whose compilation takes longer than that of a small kernel.
    """
    printed = [_printed(replace(kernel, name=f"{kernel.name}_{n}"), check) for n, (kernel, check) in enumerate(kernels)]
    includes = tuple(dict.fromkeys(name for _, headers, _ in printed for name in headers))
    # The checking mode's support text contains that of the plain mode.
    pasted = support.paste("checked" if any(check for _, check in kernels) else "host", "\n".join(body for _, _, body in printed))
    parts = [f"namespace number_{n} {{\n{head}{body}\n}}\n" for n, (head, _, body) in enumerate(printed)]
    return "\n".join([_include_lines(includes), pasted, *parts])


def _printed(kernel: Kernel, check: bool, task_order: Sequence[int] | None = None) -> tuple[str, tuple[str, ...], str]:
    """(comment lines, standard headers, the function and its routines)."""
    check_pipeline(kernel)
    printer: HostPrinter = CheckedPrinter(kernel, task_order) if check else HostPrinter(kernel, task_order)
    printer.function()
    head = Writer()
    count = "" if kernel.blocks is not None else f"{kernel.launch.num_blocks} "
    head.comment(f"{kernel.name}: {count}blocks of {kernel.launch.num_threads} threads, for the host"
                 + (", every access checked" if check else ""))
    for text in kernel.header:
        head.comment(text)
    return head.text(), tuple(printer.includes), routine_namespaces(kernel) + printer.out.text()


def _include_lines(names: Sequence[str]) -> str:
    # The first header defines the macro. Without the macro, <cmath> omits the special functions of C++17, which no kernel calls.
    # g++ 12, a small kernel: they take 0.17 of 0.24 s.
    assert names[0] == "cstdlib"
    first, *others = (f"#include <{name}>\n" for name in names)
    return "".join([first, "#undef _GLIBCXX_USE_STD_SPEC_FUNCS\n", *others])
