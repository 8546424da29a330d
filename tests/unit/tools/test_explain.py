"""The explanation at a terminal: every section appears, long lists are cut, nothing in a name is read as markup."""
from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from tilefuse.tools.explain import bytes_text, explanation_view, names_text, time_text

EXPLANATION: dict[str, Any] = {
    "name": "softmax", "device": "h200", "unfused_kernels": 4, "unfused_bytes": 4096,
    "totals": {"kernels_us": 2.5, "library_us": 4.0, "num_at_least": 1, "us": 6.5, "unfused_us": 13.0, "kernel_bytes": 4096,
               "library_bytes": 2097152, "copy_bytes": 0, "bytes": 2101248, "unfused_bytes": 2101248},
    "kernels": [{
        "name": "k0", "template": "row", "nodes": [f"n{i}" for i in range(9)], "bytes_read": 2048, "bytes_written": 2048, "limit_us": 1.25,
        "edges": [{"producer": "n0", "user": "n1", "level": "register"}, {"producer": "n1", "user": "n2", "level": "warp"},
                  {"producer": "n0", "user": "n2", "level": "register"}]}],
    "library": [{"operator": "matmul", "operands": ["a", "b"], "results": [[0, "c"]], "bytes": 2097152, "predicted_us": 4.0,
                 "at_least": True}],
    "rejected": [{"first": "a[bold]", "second": "c", "reason": "library-call", "detail": "matmul is a library call"}], "num_rejected": 12,
    "fallbacks": [{"operator": "aten.foo", "reason": "no rule"}],
}


def printed(full: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(explanation_view(EXPLANATION, full=full))
    return out.getvalue()


def test_every_section_is_printed() -> None:
    text = printed()
    for piece in ("1 kernel (unfused 4)", "4.0 KiB moved by kernels (unfused 4.0 KiB)",
                  "predicted 6.5 us (kernels 2.5, library calls 4.0", "of 1 call only",
                  "(2.00 by library calls)", "at least 4.00", "2.0 MiB", "2 register, 1 warp", "1.25",
                  "matmul", "library-call", "12 candidates, 1 kept", "aten.foo", "no rule", "a[bold] + c"):
        assert piece in text, piece


def test_long_lists_are_cut_unless_all_is_asked_for() -> None:
    assert "... (9)" in printed() and "n8" not in printed()
    assert "n8" in printed(full=True)


def test_byte_counts_and_names() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1024, 3 << 20, 5 << 30)] == ["0 B", "1023 B", "1.0 KiB", "3.0 MiB", "5.0 GiB"]
    assert names_text(["a", "b"]) == "a, b"


def test_times_have_the_unit_that_leaves_few_digits() -> None:
    assert [time_text(us) for us in (0.5, 3.14159, 163.46, 28037.4, 640308.7, 2.5e6)] == [
        "0.50 us", "3.14 us", "163.5 us", "28.04 ms", "640.3 ms", "2.50 s"]


def test_figures_stand_with_unit_and_origin() -> None:
    """Asked for in full, each kernel's predicted time is taken apart."""
    kernel = {**EXPLANATION["kernels"][0], "step": "k0", "figures": {"global time": 1.25}, "notation": "y [GRID,WARP];",
              "launch": {"shared_bytes": 3072, "shared_requested_bytes": 4096}}
    told = {**EXPLANATION, "kernels": [kernel], "figures": {"global time": {"unit": "us", "origin": "measured here"}}}
    out = io.StringIO()
    Console(file=out, width=200).print(explanation_view(told, full=True))
    assert all(piece in out.getvalue() for piece in ("global time", "1.25", "us", "measured here", "y [GRID,WARP];", "3.0 KiB / 4.0 KiB"))
