"""The record of a kernel of tasks: its bodies, and the stages that run them one behind the other.

    body 0  rows of a norm             stage 0: body 0 on x         stage 1: body 1 on stage 0's result
    body 1  a product with a vector    stage 2: body 0 on stage 1's result, and so on

A stage is one kernel of the plan without the level. Stages with one body run one text with operands of their own.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilefuse.domain.tile import TileProgram


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: the number of its body, and names in the kernel of the body's boundary values (inputs, then results) and of its nodes.

    awaits: numbers of the stages whose results it reads, without those that it is behind anyway.
    """

    body: int
    values: tuple[str, ...]
    nodes: tuple[str, ...]
    awaits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """A value of the kernel that lies in the memory of another one, from element `first` on."""

    value: str
    base: str
    first: int


@dataclass(frozen=True, slots=True)
class Tasks:
    """`threads` threads a block for all bodies; `workers` blocks take the tasks.

    tiles      tiles that one task of each body takes, one after the other
    us         predicted time of each stage within the kernel, without its wait. Units: microseconds
    together   blocks that must fit a multiprocessor, which bounds the registers of a thread; 0 for no bound
    ahead      whether a task loads or fetches its weights before it waits
    limit_ms   longest wait of a task before the kernel stops with a message; 0: for ever
    recorded   whether the kernel records the start and the end of each task
    alone      the program of each body as a kernel of its own, which may have other threads: measured beside the whole
    """

    template: ClassVar[str] = "tasks"

    threads: int
    workers: int
    bodies: tuple[TileProgram, ...]
    tiles: tuple[int, ...]
    stages: tuple[Stage, ...]
    windows: tuple[Window, ...] = ()
    us: tuple[float, ...] = ()
    together: int = 0
    ahead: bool = True
    limit_ms: int = 0
    recorded: bool = False
    alone: tuple[TileProgram, ...] = ()

    @property
    def num_threads(self) -> int:
        """Threads a block, the same for all bodies."""
        return self.threads

    @property
    def resident(self) -> int:
        """The bound that an option gives. Blocks take tasks by ticket, so that none needs another one to be resident."""
        return self.together

    @property
    def streams_results(self) -> bool:
        """False: results are read again in the same kernel."""
        return False

    def num_tasks(self, stage: int) -> int:
        """Tasks of a stage."""
        body = self.stages[stage].body
        return -(-self.bodies[body].launch.num_blocks // self.tiles[body])
