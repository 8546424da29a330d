"""The tiles of one kernel as plain data: which part of its domain each level of the machine handles, stages, places in shared memory.

```text
grid     [8, 128, 1024]            all of the walked domain
block    [1, 1024]     x 1024      one of so many
warp     [1, 128]      x 8         of each block
thread   [1, 4]        x 32        of each warp
```

Sizes are in elements along named axes of the kernel's root domain. A template without such a domain shows the tiles of its largest result.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.target.launch import Launch
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.packed.packed import Packed
from tilefuse.templates.rows.modes import Rows
from tilefuse.templates.staged.online.choose import OnlinePlan
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.record import Stitched
from tilefuse.templates.staged.stitch_plan import StitchPlan
from tilefuse.templates.transpose.record import Transpose

WARP = 32

Tile = list[list[Any]]


def tile_facts(program: TileProgram, launch: Launch, names: Mapping[str, str]) -> dict[str, Any]:
    """Tiles level by level, stages, shared-memory map and groups of a kernel; `names` leads from the program's names to the plan's.

    Units: sizes in elements, `num` in workers of the level above, memory in bytes.
    """
    facts: dict[str, Any] = {"tiles": _levels(program, launch), "stages": [], "shared": [], "groups": []}
    if isinstance(program.internal, StitchPlan):
        facts["stages"] = [_stage(program.internal, s, names) for s in range(len(program.internal.stages))]
        facts["shared"] = _shared_map(program.internal, names)
    if isinstance(program.internal, OnlinePlan):
        facts["shared"] = [{"value": f"{t.role} {t.number}", "offset": t.offset_bytes, "bytes": t.num_bytes, "first": 0, "last": 0}
                           for t in program.internal.tiles]
    if isinstance(program.choice, Packed):
        facts["groups"] = [{"template": g.program.template, "num_blocks": g.num_blocks, "num_parts": len(g.parts),
                            "nodes": [[names.get(n, n) for n in p.nodes] for p in g.parts],
                            "tiles": _levels(g.program, g.program.launch)} for g in program.choice.groups]
    return facts


def _levels(program: TileProgram, launch: Launch) -> list[dict[str, Any]]:
    domain = program.internal
    warps = -(-launch.num_threads // WARP)
    match program.choice:
        case Pointwise() as c if isinstance(domain, Domain):
            each = c.vector * c.steps
            walked = "*".join(c.order) or "element"
            sizes = [("grid", _whole(domain, c.order)), ("block", [[walked, each * launch.num_threads]]),
                     ("warp", [[walked, each * min(WARP, launch.num_threads)]]), ("thread", [[walked, each]])]
        case Rows() as c if isinstance(domain, Domain):
            kept, reduced = "*".join(c.kept_order) or "row", "*".join(c.reduced_order) or "element"
            length = prod(domain.extents[a] for a in c.reduced_order)
            part = -(-length // (c.cluster * c.split))
            across = min(c.threads, WARP)
            rows = c.carried_rows or c.rows
            sizes = [("grid", _whole(domain, (*c.kept_order, *c.reduced_order))),
                     *([("cluster", [[kept, rows], [reduced, part * c.cluster]])] if c.cluster > 1 else []),
                     ("block", [[kept, rows], [reduced, part]]),
                     ("warp", [[kept, min(max(WARP // c.threads, 1), rows)], [reduced, min(part, across * c.vector * c.chunks)]]),
                     ("thread", [[kept, 1], [reduced, min(part, c.vector * c.chunks)]])]
        case Columns() as c if isinstance(domain, Domain):
            kept, reduced = "*".join(c.kept_order) or "column", "*".join(c.reduced_order) or "element"
            length = prod(domain.extents[a] for a in c.reduced_order)
            across = min(c.threads_x, WARP)
            sizes = [("grid", _whole(domain, (*c.reduced_order, *c.kept_order))),
                     ("block", [[reduced, -(-length // c.split)], [kept, c.vector * c.threads_x]]),
                     ("warp", [[reduced, c.chunks * max(WARP // c.threads_x, 1)], [kept, across * c.vector]]),
                     ("thread", [[reduced, c.chunks], [kept, c.vector]])]
        case Transpose() as c if isinstance(domain, Domain):
            each = -(-c.rows * c.columns // max(c.threads, 1))
            sizes = [("grid", _whole(domain, c.order)), ("block", [[c.write_axis, c.rows], [c.read_axis, c.columns]]),
                     ("warp", [["element", each * min(WARP, c.threads)]]), ("thread", [["element", each]])]
        case Stitched() as c:
            shape = _largest(program)
            sizes = [("grid", [[f"d{i}", n] for i, n in enumerate(shape)]),
                     ("block", [[f"d{i}", n] for i, n in enumerate(c.tiles)])]
            sizes += [("warp", [["element", -(-prod(c.tiles) // warps)]]), ("thread", [["element", -(-prod(c.tiles) // c.threads)]])]
        case Online() as c if isinstance(domain, OnlinePlan):
            sizes = [("grid", [["lead", domain.form.num_leads], ["row", domain.form.num_rows]]),
                     ("block", [["row", c.rows], ["walked axis, a turn", c.columns]]),
                     ("warp", [["row", -(-c.rows // warps)], ["walked axis, a turn", c.columns]])]
        case _:
            sizes = [("grid", [[f"d{i}", n] for i, n in enumerate(_largest(program))])]
    counts = {"grid": 1, "cluster": launch.num_blocks // max(launch.cluster, 1),
              "block": launch.cluster if launch.cluster > 1 else launch.num_blocks, "warp": warps,
              "thread": min(WARP, launch.num_threads)}
    # The host's blocks are one thread: they have no warps.
    return [{"level": level, "num": counts[level], "tile": tile} for level, tile in sizes if level != "warp" or launch.num_threads > 1]


def _whole(domain: Domain, order: Sequence[str]) -> Tile:
    return [[a, domain.extents[a]] for a in order]


def _largest(program: TileProgram) -> tuple[int, ...]:
    """Shape of the largest result."""
    return max((program.graph.type_of(r) for r in program.graph.results), key=lambda t: t.num_elements).shape


def _stage(plan: StitchPlan, number: int, names: Mapping[str, str]) -> dict[str, Any]:
    stage = plan.stages[number]
    told = [plan.pieces[k] for k in (*stage.products, *stage.pieces)]
    return {"kind": stage.kind, "barrier": stage.barrier,
            "pieces": [{"value": names.get(p.value, p.value), "kind": p.kind, "tile": [s.extent for s in p.region],
                        "stored": p.stored, "written": p.written} for p in told]}


def _shared_map(plan: StitchPlan, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Place of every stored piece, and the stages from its first write to its last read."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, stage in enumerate(plan.stages):
        for key in (*stage.products, *stage.pieces):
            first.setdefault(key, number)
            last[key] = max(last.get(key, number), number)
            for source in plan.sources.get(key, ()):
                last[source] = max(last.get(source, number), number)
    return [{"value": names.get(p.value, p.value), "offset": p.offset_bytes, "bytes": p.num_bytes,
             "first": first.get(p.key, 0), "last": last.get(p.key, len(plan.stages) - 1)} for p in plan.pieces if p.stored]
