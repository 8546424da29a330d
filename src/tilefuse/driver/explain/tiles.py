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

from collections.abc import Mapping
from typing import Any

from tilefuse.domain.tile import TileProgram
from tilefuse.target.launch import Launch
from tilefuse.templates.explained import StageFacts
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.stage_tree import StageTree, TreeLoop, TreeStage

WARP = 32


def tile_facts(program: TileProgram, launch: Launch, names: Mapping[str, str]) -> dict[str, Any]:
    """Tiles level by level, stages, shared-memory map and groups of a kernel; `names` leads from the program's names to the plan's.

    Units: sizes in elements, `num` in workers of the level above, memory in bytes.
    """
    template = kernel_template(program.choice)
    staging = template.staging(program)
    return {
        "tiles": _levels(program, launch),
        "stages": [_stage(s, names) for s in staging.stages],
        "tree": tree_data(template.stage_tree(program), names),
        "shared": [{"value": names.get(p.value, p.value), "offset": p.offset_bytes, "bytes": p.num_bytes, "first": p.first_stage,
                    "last": p.last_stage} for p in staging.places],
        "groups": [{"template": g.program.template, "num_blocks": g.num_blocks, "num_parts": len(g.parts),
                    "nodes": [[names.get(n, n) for n in p.nodes] for p in g.parts],
                    "tiles": _levels(g.program, g.program.launch),
                    "tree": tree_data(kernel_template(g.program.choice).stage_tree(g.program), names)}
                   for g in template.groups(program)],
    }


def _levels(program: TileProgram, launch: Launch) -> list[dict[str, Any]]:
    """The tile of each level, and the number of its workers in one worker of the level above."""
    counts = {"grid": 1, "cluster": launch.num_blocks // max(launch.cluster, 1),
              "block": launch.cluster if launch.cluster > 1 else launch.num_blocks, "warp": -(-launch.num_threads // WARP),
              "thread": min(WARP, launch.num_threads)}
    # The host's blocks are one thread: they have no warps.
    return [{"level": t.level, "num": t.num or counts[t.level], "tile": [list(extent) for extent in t.extents]}
            for t in kernel_template(program.choice).tiles(program, launch) if t.level != "warp" or launch.num_threads > 1]


def tree_data(tree: StageTree | None, names: Mapping[str, str]) -> dict[str, Any] | None:
    """The tree of stages as nested data; None for a kernel that is one walk."""
    if tree is None:
        return None
    return {"tile": [list(extent) for extent in tree.tile], "blocks": tree.blocks, "cluster": tree.cluster, "tiles": tree.tiles,
            "moved": dict(tree.moved), "body": [_part(part, names) for part in tree.body]}


def _part(part: TreeStage | TreeLoop, names: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(part, TreeLoop):
        return {"kind": "loop", "axis": part.axis, "step": part.step, "times": part.times, "note": part.note,
                "body": [_part(p, names) for p in part.body]}
    return {"kind": part.kind, "by": part.by, "barrier": part.barrier,
            "values": [{"value": names.get(v.value, v.value), "level": v.level.value, "tile": list(v.tile), "bytes": v.shared_bytes,
                        "slots": v.slots, "place": names.get(v.place, v.place), "written": v.written} for v in part.values]}


def _stage(stage: StageFacts, names: Mapping[str, str]) -> dict[str, Any]:
    return {"kind": stage.kind, "barrier": stage.barrier,
            "pieces": [{"value": names.get(p.value, p.value), "kind": p.kind, "tile": list(p.tile), "stored": p.stored,
                        "written": p.written} for p in stage.pieces]}
