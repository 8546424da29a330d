"""Prints kernel IR as one C++ source for the host, plain or with every access checked."""
from __future__ import annotations

from tilefuse.codegen import support
from tilefuse.codegen.check import CheckedPrinter
from tilefuse.codegen.fission import HostPrinter
from tilefuse.codegen.kernel import Kernel
from tilefuse.codegen.routine_text import routine_namespaces
from tilefuse.codegen.writer import Writer


def print_host(kernel: Kernel, check: bool = False) -> str:
    """C++ of `kernel`: `extern "C" int name(void* const* arguments, char* report, long report_size)`; 0 means fine.

    check: every access is checked (see `check.py`); findings make the result their number and are written to `report`.
    Exact: equal kernels give the same text.
    """
    printer: HostPrinter = CheckedPrinter(kernel) if check else HostPrinter(kernel)
    printer.function()
    body = routine_namespaces(kernel) + printer.out.text()
    head = Writer()
    head.comment(f"{kernel.name}: {kernel.launch.num_blocks} blocks of {kernel.launch.num_threads} threads, for the host"
                 + (", every access checked" if check else ""))
    for text in kernel.header:
        head.comment(text)
    for name in printer.includes:
        head.line(f"#include <{name}>")
    pasted = support.paste("checked" if check else "host", body)
    return head.text() + "\n" + (pasted + "\n\n" if pasted else "") + body
