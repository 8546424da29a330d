"""A plan as one self-contained HTML page: every kernel and library call a box, every value between them an edge; no network needed.

The page is drawn from the explanation (plain data) and the kernels' sources; the layout puts each step below the steps it reads.
"""
from __future__ import annotations

import html
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilefuse.tools.explain import bytes_text, names_text, summary_line

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 190, 46, 26, 40, 20
MOST_BOXES = 1500


@dataclass(frozen=True, slots=True)
class Box:
    """One step of the plan. `writes` and `reads` are value names; `kind` is "kernel" or "library"."""

    key: str
    kind: str
    title: str
    subtitle: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def plan_page(explanation: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """The page's text. `sources`: source text by kernel name, shown when its box is clicked."""
    boxes = boxes_of(explanation)
    places, edges = place(boxes[:MOST_BOXES])
    width = max((x for x, _ in places.values()), default=0) + BOX_WIDTH + MARGIN
    height = max((y for _, y in places.values()), default=0) + BOX_HEIGHT + MARGIN
    drawing = [_edge(places, a, b, value) for a, b, value in edges]
    drawing += [_box(box, *places[box.key]) for box in boxes[:MOST_BOXES]]
    note = "" if len(boxes) <= MOST_BOXES else f"<p>Only the first {MOST_BOXES} of {len(boxes)} steps are drawn.</p>"
    details = {box.key: _details(box, explanation, sources) for box in boxes[:MOST_BOXES]}
    title = html.escape(str(explanation.get("name", "plan")))
    parts = {
        "TITLE": title, "SUMMARY": html.escape(summary_line(explanation).plain), "NOTE": note, "REJECTED": _rejected(explanation),
        "WIDTH": str(width), "HEIGHT": str(height), "DRAWING": "\n".join(drawing),
        # A script element ends at the first "</", and does not end at all behind "<!--<script", also inside a string.
        "DETAILS": json.dumps(details).replace("<", "\\u003c"),
    }
    return re.sub("@([A-Z]+)@", lambda m: parts[m[1]], _PAGE)


def boxes_of(explanation: Mapping[str, Any]) -> list[Box]:
    """The steps of an explanation: kernels and library calls."""
    boxes: list[Box] = []
    for number, kernel in enumerate(explanation.get("kernels", ())):
        moved = bytes_text(kernel.get("bytes_read", 0) + kernel.get("bytes_written", 0))
        nodes = tuple(kernel.get("nodes", ()))
        subtitle = f"{len(nodes)} nodes, {moved}, limit {kernel.get('limit_us', 0):.1f} us"
        writes = tuple(kernel.get("writes", nodes))
        boxes.append(Box(f"k{number}", "kernel", str(kernel.get("name")), subtitle, tuple(kernel.get("reads", ())), writes))
    for number, call in enumerate(explanation.get("library", ())):
        results = tuple(str(r[-1] if isinstance(r, list | tuple) else r) for r in (call.get("results") or call.get("nodes") or ()))
        boxes.append(Box(f"l{number}", "library", str(call.get("operator", call.get("name"))), names_text(results, 2),
                         tuple(call.get("operands", call.get("reads", ()))), results))
    return boxes


def place(boxes: Sequence[Box]) -> tuple[dict[str, tuple[int, int]], list[tuple[str, str, str]]]:
    """Position of every box, and (producer, user, value) edges: a box stands one row below the lowest step that it reads.

    Cost: linear in boxes and edges.
    """
    writer = {value: box.key for box in boxes for value in box.writes}
    edges = [(writer[v], box.key, v) for box in boxes for v in dict.fromkeys(box.reads) if v in writer and writer[v] != box.key]
    before: dict[str, list[str]] = defaultdict(list)
    for producer, user, _ in edges:
        before[user].append(producer)
    rows = _depths([box.key for box in boxes], before)
    filled: dict[int, int] = defaultdict(int)
    places: dict[str, tuple[int, int]] = {}
    for box in boxes:
        row = rows[box.key]
        places[box.key] = (MARGIN + filled[row] * (BOX_WIDTH + GAP_X), MARGIN + row * (BOX_HEIGHT + GAP_Y))
        filled[row] += 1
    return places, edges


def _depths(keys: Iterable[str], before: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Longest distance from a source; steps that (wrongly) wait for each other end up in one row instead of looping."""
    depth: dict[str, int] = {}
    for start in keys:
        stack = [start]
        open_keys: set[str] = set()
        while stack:
            key = stack[-1]
            open_keys.add(key)
            waiting = [b for b in before.get(key, ()) if b not in depth and b not in open_keys]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            depth[key] = 1 + max((depth.get(b, -1) for b in before.get(key, ())), default=-1)
    return depth


def _edge(places: Mapping[str, tuple[int, int]], producer: str, user: str, value: str) -> str:
    x0, y0 = places[producer][0] + BOX_WIDTH // 2, places[producer][1] + BOX_HEIGHT
    x1, y1 = places[user][0] + BOX_WIDTH // 2, places[user][1]
    middle = (y0 + y1) // 2
    return (f'<path class="edge" d="M{x0} {y0} C{x0} {middle} {x1} {middle} {x1} {y1}">'
            f"<title>%{html.escape(value)}</title></path>")


def _box(box: Box, x: int, y: int) -> str:
    cut = box.title if len(box.title) <= 28 else box.title[:25] + "..."
    return (f'<g class="{box.kind}" data-key="{box.key}" tabindex="0">'
            f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5"/>'
            f'<text x="{x + 8}" y="{y + 19}" class="name">{html.escape(cut)}</text>'
            f'<text x="{x + 8}" y="{y + 36}">{html.escape(box.subtitle[:34])}</text><title>{html.escape(box.title)}</title></g>')


def _details(box: Box, explanation: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    lines = [box.title, box.subtitle]
    if box.kind == "kernel":
        kernel = explanation["kernels"][int(box.key[1:])]
        for key in ("template", "notation", "generator"):
            if kernel.get(key):
                lines.append(f"{key}: {kernel[key]}")
        lines.append("nodes: " + ", ".join(kernel.get("nodes", ())))
        lines += [f"edge %{e.get('producer')} -> %{e.get('user')}: {e.get('level')}" for e in kernel.get("edges", ())]
        source = sources.get(str(kernel.get("source", kernel.get("name"))), sources.get(box.title))
        if source:
            lines += ["", source]
    else:
        lines += ["reads: " + ", ".join(box.reads), "writes: " + ", ".join(box.writes)]
    return "\n".join(lines)


def _rejected(explanation: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><td>{html.escape(str(r.get('reason')))}</td>"
        f"<td>{html.escape(str(r.get('first', '')))} + {html.escape(str(r.get('second', '')))}</td>"
        f"<td>{html.escape(str(r.get('detail', '')))}</td></tr>"
        for r in explanation.get("rejected", ())
    ]
    if not rows:
        return ""
    return f"<details><summary>not fused: {len(rows)} candidates kept</summary><table>{''.join(rows)}</table></details>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>@TITLE@</title><style>
body { font: 14px system-ui, sans-serif; margin: 0; display: grid; grid-template-columns: 1fr minmax(320px, 36%); height: 100vh; }
main { overflow: auto; padding: 12px; } aside { overflow: auto; padding: 12px; border-left: 1px solid #bbb; background: #fafafa; }
pre { font: 12px ui-monospace, monospace; white-space: pre-wrap; } h1 { font-size: 18px; margin: 0 0 4px; }
.kernel rect { fill: #e6f0fa; stroke: #4a7fb5; } .library rect { fill: #f6ead9; stroke: #b5833f; }
g { cursor: pointer; } g.chosen rect, g:focus rect { stroke-width: 3; } g:focus { outline: none; }
text { font: 11px system-ui, sans-serif; fill: #222; } text.name { font-weight: 600; }
.edge { fill: none; stroke: #999; stroke-width: 1.2; } td { padding: 1px 8px 1px 0; vertical-align: top; font-size: 12px; }
</style></head><body><main><h1>@TITLE@</h1><p>@SUMMARY@</p>@NOTE@
<svg width="@WIDTH@" height="@HEIGHT@" role="img" aria-label="kernels and library calls of the plan">@DRAWING@</svg>@REJECTED@</main>
<aside><pre id="details">Choose a box to see its nodes, the levels of its edges and its source.</pre></aside>
<script>
const details = @DETAILS@;
function choose(box) {
  document.querySelectorAll("g.chosen").forEach(b => b.classList.remove("chosen"));
  box.classList.add("chosen");
  document.getElementById("details").textContent = details[box.dataset.key];
}
document.querySelectorAll("g[data-key]").forEach(box => {
  box.addEventListener("click", () => choose(box));
  box.addEventListener("keydown", event => { if (event.key === "Enter") choose(box); });
});
</script></body></html>
"""
