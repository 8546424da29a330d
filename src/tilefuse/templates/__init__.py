"""Floor 5: how one pattern becomes one kernel: tiles, templates, storage; feasibility and cost facts for the planner.

The templates are listed here: importing the package registers them.
"""
from __future__ import annotations

from tilefuse.templates.columns.template import ColumnsTemplate
from tilefuse.templates.flat.template import FlatTemplate
from tilefuse.templates.packed.template import PackedTemplate
from tilefuse.templates.panels.template import PanelsTemplate
from tilefuse.templates.parts import Known
from tilefuse.templates.pattern import pattern_graph, schedule_pattern
from tilefuse.templates.registry import register
from tilefuse.templates.rows.template import RowsTemplate
from tilefuse.templates.staged.chain.template import ProductChainTemplate
from tilefuse.templates.staged.online.template import OnlineTemplate
from tilefuse.templates.staged.pipelined.template import PipelinedTemplate
from tilefuse.templates.staged.recomputed.template import WalkedBackTemplate
from tilefuse.templates.staged.stitched.template import StitchedTemplate
from tilefuse.templates.staged.walked.template import PipelinedWalkTemplate
from tilefuse.templates.tasks.chains.template import GroupedChainTemplate
from tilefuse.templates.tasks.template import TasksTemplate
from tilefuse.templates.tiles.template import RegisterTileTemplate
from tilefuse.templates.transpose.template import TransposeTemplate

TEMPLATES = (TransposeTemplate(), FlatTemplate(), RowsTemplate(), ColumnsTemplate(), StitchedTemplate(), OnlineTemplate(),
             PipelinedTemplate(), ProductChainTemplate(), PipelinedWalkTemplate(), WalkedBackTemplate(), PackedTemplate(),
             TasksTemplate(), RegisterTileTemplate(), GroupedChainTemplate(), PanelsTemplate())
for _template in TEMPLATES:
    register(_template)

__all__ = ["TEMPLATES", "Known", "pattern_graph", "schedule_pattern"]
