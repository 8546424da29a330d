"""A task program as plain data: tasks in the order in which blocks take them, with their waits, counts and the memory that they touch.

    task 0   writes h[0, 64)                      publishes counter 0
    task 1   writes h[64, 128)                    publishes counter 0
    task 2   awaits counter 0 = 2, reads h[0, 128), writes y[0, 8)

`proof.py` proves such a program; `extract.py` makes one of a kernel. Nothing here knows templates, devices or C++.
"""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Touch:
    """Elements first .. last - 1 of a value that a task reads, or writes."""

    value: str
    first: int
    last: int
    writes: bool


@dataclass(frozen=True, slots=True)
class Need:
    """A task begins its work once `counter` has reached `value`."""

    counter: int
    value: int


@dataclass(frozen=True, slots=True)
class Task:
    """One task. publishes: counters to which it adds one behind its last access. name: for findings."""

    name: str
    needs: tuple[Need, ...] = ()
    publishes: tuple[int, ...] = ()
    touches: tuple[Touch, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskProgram:
    """Tasks in the order in which blocks take them."""

    tasks: tuple[Task, ...]
