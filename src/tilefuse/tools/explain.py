"""The explanation of a program for a person at a terminal: kernels, levels, bytes against the limit, what was not fused and why.

Reads the explanation as plain data (the same that `--json` prints); decides nothing.
"""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tilefuse.runtime.explanation import search_text, totals_text

SHOWN_NAMES = 6
SHOWN_REJECTED = 3
SHOWN_FIGURES = 8


def bytes_text(num_bytes: float) -> str:
    """A byte count for people. Units: bytes; the prefix is binary."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024 or unit == "GiB":
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"


def time_text(us: float) -> str:
    """A time for people, four figures. Units: microseconds; printed in us, ms or s, with few digits before the point."""
    value, unit = next(((us / scale, unit) for scale, unit in ((1e6, "s"), (1e3, "ms")) if us >= scale), (us, "us"))
    return f"{value:.{1 if value >= 100 else 2}f} {unit}"


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 kernel", "2 kernels"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def names_text(names: Sequence[str], most: int = SHOWN_NAMES) -> str:
    """A list of names, cut after a few with the count of the rest."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)})"


def explanation_view(explanation: Mapping[str, Any], *, full: bool = False) -> RenderableType:
    """The whole explanation as rich tables. `full`: every kernel's nodes and every rejected candidate kept."""
    return Group(*_sections(explanation, full))


def _sections(explanation: Mapping[str, Any], full: bool) -> Iterator[RenderableType]:
    yield summary_line(explanation)
    if told := search_text(explanation.get("plan", {})):
        yield Text(told)
    kernels: Sequence[Mapping[str, Any]] = explanation.get("kernels", ())
    if kernels:
        yield kernel_table(kernels, full)
        if full and any(k.get("notation") for k in kernels):
            yield schedule_table(kernels)
        if full and any(k.get("figures") for k in kernels):
            yield figure_table(kernels, explanation["figures"])
    library = explanation.get("library", ())
    if library:
        yield library_table(library)
    rejected = explanation.get("rejected", ())
    if rejected:
        yield rejected_table(rejected, int(explanation.get("num_rejected", len(rejected))), full)
    fallbacks = explanation.get("fallbacks", ())
    if fallbacks:
        yield fallback_table(fallbacks)
    for note in explanation.get("notes", ()):
        yield Text(f"note: {note}")


def summary_line(explanation: Mapping[str, Any]) -> Text:
    """One paragraph: how many kernels of how many, bytes moved of how many, predicted time."""
    kernels = explanation.get("kernels", ())
    fused_bytes = sum(k.get("bytes_read", 0) + k.get("bytes_written", 0) for k in kernels)
    parts = [f"{explanation.get('name', 'program')} on {explanation.get('device', '?')}: {counted(len(kernels), 'kernel')}"]
    if explanation.get("unfused_kernels"):
        parts[0] += f" (unfused {explanation['unfused_kernels']})"
    parts.append(counted(len(explanation.get("library", ())), "library call"))
    moved = f"{bytes_text(fused_bytes)} moved by kernels"
    if explanation.get("unfused_bytes"):
        moved += f" (unfused {bytes_text(explanation['unfused_bytes'])})"
    parts.append(moved)
    if told := totals_text(explanation.get("totals", {})):
        parts.append(told)
    return Text(", ".join(parts), style="bold")


def kernel_table(kernels: Sequence[Mapping[str, Any]], full: bool) -> Table:
    """One row a kernel: nodes, levels of its edges, bytes, the time they need at full bandwidth."""
    table = Table(title="kernels", title_justify="left", expand=False)
    table.add_column("kernel")
    table.add_column("template")
    table.add_column("nodes", overflow="fold")
    table.add_column("levels of edges")
    table.add_column("read", justify="right")
    table.add_column("written", justify="right")
    table.add_column("limit us", justify="right")
    table.add_column("predicted us", justify="right")
    for kernel in kernels:
        levels = Counter(str(edge.get("level")) for edge in kernel.get("edges", ()))
        nodes = list(kernel.get("nodes", ()))
        predicted = kernel.get("predicted_us", kernel.get("cost_us"))
        table.add_row(
            escape(str(kernel.get("name"))),
            escape(str(kernel.get("template", ""))),
            escape(names_text(nodes, len(nodes) if full else SHOWN_NAMES)),
            ", ".join(f"{count} {level}" for level, count in levels.items()) or "-",
            bytes_text(kernel.get("bytes_read", 0)),
            bytes_text(kernel.get("bytes_written", 0)),
            f"{kernel.get('limit_us', 0.0):.2f}",
            "-" if predicted is None else f"{predicted:.2f}",
        )
    return table


def schedule_table(kernels: Sequence[Mapping[str, Any]]) -> Table:
    """The template of each distinct kernel, in the notation that --template reads, and the shared memory of its blocks."""
    table = Table(title="schedules; shared memory of a block as allocated and as requested", title_justify="left")
    table.add_column("kernel")
    table.add_column("shared", justify="right")
    table.add_column("template", overflow="fold")
    for name, kernel in {str(k.get("name")): k for k in kernels if k.get("notation")}.items():
        table.add_row(escape(name), shared_text(kernel.get("launch", {})), escape(str(kernel["notation"])))
    return table


def shared_text(launch: Mapping[str, Any]) -> str:
    """Shared memory that a block's values got, and that they asked for, each with a place of its own."""
    allocated = int(launch.get("shared_bytes", 0))
    return f"{bytes_text(allocated)} / {bytes_text(int(launch.get('shared_requested_bytes', allocated)))}" if allocated else "-"


def figure_table(kernels: Sequence[Mapping[str, Any]], origins: Mapping[str, Mapping[str, str]]) -> Table:
    """Parts of each predicted time, every number with its unit and origin; equal kernels stand once."""
    distinct = dict(list({str(k.get("name")): k for k in kernels if k.get("figures")}.items())[:SHOWN_FIGURES])
    table = Table(title="figures behind the predictions; --json has those of every kernel", title_justify="left")
    table.add_column("figure")
    for kernel in distinct.values():
        table.add_column(escape(str(kernel.get("step"))), justify="right")
    table.add_column("unit")
    table.add_column("origin", overflow="fold")
    for name, told in origins.items():
        table.add_row(escape(name), *(f"{k['figures'][name]:.6g}" for k in distinct.values()), told["unit"], escape(told["origin"]))
    return table


def library_table(calls: Sequence[Mapping[str, Any]]) -> Table:
    """Library calls grouped by operator."""
    by_operator: dict[str, list[str]] = defaultdict(list)
    for call in calls:
        results = call.get("results") or call.get("nodes") or ()
        by_operator[str(call.get("operator", call.get("name")))] += [str(r[-1] if isinstance(r, list | tuple) else r) for r in results]
    counts = Counter(str(call.get("operator", call.get("name"))) for call in calls)
    table = Table(title="library calls", title_justify="left")
    table.add_column("operator")
    table.add_column("calls", justify="right")
    table.add_column("results", overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_column("predicted us", justify="right")
    for operator, results in by_operator.items():
        own = [c for c in calls if str(c.get("operator", c.get("name"))) == operator]
        least = "at least " if any(c.get("at_least") for c in own) else ""
        told = [bytes_text(sum(c["bytes"] for c in own)), f"{least}{sum(c['predicted_us'] for c in own):.2f}"] \
            if all("predicted_us" in c for c in own) else ["-", "-"]
        table.add_row(escape(operator), str(counts[operator]), escape(names_text(results)), *told)
    return table


def rejected_table(rejected: Sequence[Mapping[str, Any]], num_rejected: int, full: bool) -> Table:
    """Candidates that were tried and not taken, grouped by reason, each with the numbers that decided it."""
    by_reason: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for item in rejected:
        by_reason[str(item.get("reason"))].append(item)
    kept = "" if num_rejected == len(rejected) else f", {len(rejected)} kept"
    table = Table(title=f"not fused ({num_rejected} candidates{kept})", title_justify="left")
    table.add_column("reason")
    table.add_column("count", justify="right")
    table.add_column("pair", overflow="fold")
    table.add_column("what decided it", overflow="fold")
    for reason, items in sorted(by_reason.items(), key=lambda pair: -len(pair[1])):
        for number, item in enumerate(items if full else items[:SHOWN_REJECTED]):
            pair = f"{item.get('first', '?')} + {item.get('second', '?')}"
            head = (reason, str(len(items))) if number == 0 else ("", "")
            table.add_row(*head, escape(pair), escape(str(item.get("detail", ""))))
    return table


def fallback_table(fallbacks: Sequence[Any]) -> Table:
    """Operators that run in the framework because tilefuse cannot express them, each with the reason."""
    table = Table(title="fallbacks to the framework", title_justify="left")
    table.add_column("operator")
    table.add_column("reason", overflow="fold")
    for item in fallbacks:
        operator, reason = (item.get("operator"), item.get("reason")) if isinstance(item, Mapping) else (item[0], item[1])
        table.add_row(escape(str(operator)), escape(str(reason)))
    return table
