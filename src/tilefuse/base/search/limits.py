"""All bounds of searches in one record, a group for each reader. `SEARCH` is read where a search stops.

A bound says how many candidates are looked at, never which of them is better: prices and fitted figures of a device decide that.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.base.search.kernels import DomainLimits, PackingLimits, PipelineLimits, StageLimits, TaskLimits, WalkLimits
from tilefuse.base.search.plans import GeneratorLimits, SelectionLimits, TextLimits
from tilefuse.base.search.scripts import ScriptLimits


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Bounds of all searches."""

    domain: DomainLimits = DomainLimits()
    walks: WalkLimits = WalkLimits()
    stages: StageLimits = StageLimits()
    pipelines: PipelineLimits = PipelineLimits()
    packing: PackingLimits = PackingLimits()
    tasks: TaskLimits = TaskLimits()
    generators: GeneratorLimits = GeneratorLimits()
    selection: SelectionLimits = SelectionLimits()
    texts: TextLimits = TextLimits()
    scripts: ScriptLimits = ScriptLimits()


SEARCH = SearchLimits()
