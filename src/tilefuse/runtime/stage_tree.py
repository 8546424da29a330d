"""The tree of stages of a kernel, or its tasks, as lines, from an explanation's plain data.

    block tile (row 128, column 256), 132 blocks take 2048 tiles in turn; moves 96.0 MiB global, 1.50 GiB L2
      loop inner in steps of 64, 16 times
        copy by tensor copies: %x [128, 64] shared, 4 slots of 16.0 KiB
        product by tensor cores: %h [128, 256] register
      map: %y [128, 256] register, written through 32.0 KiB of shared memory
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

INDENT = "  "


def tree_lines(tree: Mapping[str, Any]) -> list[str]:
    """The lines of a tree, its parts indented below the block."""
    tile = ", ".join(f"{axis} {extent}" for axis, extent in tree["tile"])
    blocks, tiles = tree["blocks"], tree["tiles"]
    cluster = f" in clusters of {tree['cluster']}" if tree["cluster"] > 1 else ""
    turns = f" take {tiles} tiles in turn" if tiles > blocks else ""
    moved = ", ".join(f"{bytes_text(count)} {level}" for level, count in tree["moved"].items())
    head = f"block tile ({tile}), {blocks} block{'' if blocks == 1 else 's'}{cluster}{turns}"
    return [head + (f"; moves {moved}" if moved else ""), *(line for part in tree["body"] for line in _lines(part, INDENT))]


def task_lines(parameters: Mapping[str, Any]) -> list[str]:
    """The lines of a kernel of tasks: their numbers and the critical path, then each stage; empty for any other kernel."""
    if "critical path" not in parameters:
        return []
    p = parameters
    head = (f"{p['tasks']} tasks of {p['stages']} stages and {p['bodies']} bodies, taken by {p['workers']} blocks; "
            f"{p['counters']} counters, {p['waits']} waits; critical path {p['critical path']}")
    return [head, *(f"{INDENT}{name}: {text}" for name, text in parameters.items() if name.startswith("stage "))]


def _lines(part: Mapping[str, Any], indent: str) -> Iterator[str]:
    if part["kind"] == "loop":
        steps = f" in steps of {part['step']}" if part["step"] > 1 else ""
        times = part.get("note") or f"{part['times']} time{'' if part['times'] == 1 else 's'}"
        yield f"{indent}loop {part['axis']}{steps}, {times}"
        for inner in part["body"]:
            yield from _lines(inner, indent + INDENT)
        return
    if part["barrier"]:
        yield f"{indent}barrier"
    by = f" by {part['by']}" if part["by"] else ""
    yield f"{indent}{part['kind']}{by}: {', '.join(map(_value_text, part['values']))}"


def _value_text(value: Mapping[str, Any]) -> str:
    text = f"%{value['value']} [{', '.join(map(str, value['tile']))}] {value['level']}"
    size = bytes_text(value["bytes"] // max(value["slots"], 1))
    slots = f"{value['slots']} slots of {size}" if value["slots"] > 1 else size
    on_chip = value["level"] in ("shared", "cluster")
    if value["place"]:
        text += f" in the place of %{value['place']}"
    elif value["bytes"] and on_chip:
        text += f", {slots}"
    if not value["written"]:
        return text
    return f"{text}, written" + (f" through {slots} of shared memory" if value["bytes"] and not on_chip else "")


def bytes_text(num_bytes: int) -> str:
    """A number of bytes in a unit that leaves few digits."""
    size, unit = float(num_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{num_bytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
