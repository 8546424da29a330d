"""Values written into the storage of another: updates of inputs, and scatters into values without other users.

Updates are written in place where that is safe, else copied at the end. Writing in place is safe where nothing reads the old contents
afterwards, and the kernel that writes reads each element only to compute the same element. The two buffers of the kernel then become
one, so that the printed code promises nothing false about aliasing.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from tilefuse.driver.lowering.in_place_walks import Walks
from tilefuse.ir.affine import Affine
from tilefuse.ir.layouts import strides_of
from tilefuse.ir.scalar import reads
from tilefuse.kernel.ir import Buffer, Kernel
from tilefuse.plan.pattern import LibraryCall, Plan, PlannedKernel

T = TypeVar("T")


def in_place_updates(plan: Plan) -> dict[str, str]:
    """Value -> input whose storage it takes over, for every update that is safe in place."""
    last_read: dict[str, int] = {}
    through_window: set[tuple[str, int]] = set()
    writer: dict[str, int] = {}
    base = {v.value: v.base for v in plan.windows}
    for number, step in enumerate(plan.steps):
        match step:
            case PlannedKernel():
                names = [v for n in step.pattern.nodes for v in plan.graph.node_by_name[n].reads()]
                through_window.update((base[v], number) for v in names if v in base and v not in step.pattern.nodes)
                writer.update(dict.fromkeys(step.pattern.written, number))
            case LibraryCall():
                names = list(step.operands)
        for name in names:
            last_read[base.get(name, name)] = number
    results = {base.get(r, r) for r in plan.graph.results}
    walks = Walks(plan.graph)
    target_of: dict[str, str] = {}
    for target, value in plan.graph.updates:
        number = writer.get(value, -1)
        if number < 0 or value in target_of or value in results or last_read.get(target, -1) > number:
            continue
        step = plan.steps[number]
        assert isinstance(step, PlannedKernel)
        same_strides = strides_of(plan.graph, plan.layouts, target) == strides_of(plan.graph, plan.layouts, value)
        same_type = plan.graph.type_of(target) == plan.graph.type_of(value)
        if not (same_type and same_strides):
            continue
        if (target, number) in through_window:
            # The kernel's description does not show where it reads the target.
            continue
        if last_read.get(target, -1) < number or walks.may_overwrite(step, value, target):
            target_of[value] = target
    return target_of


def scatter_bases(plan: Plan, taken: Mapping[str, str]) -> dict[str, str]:
    """Base -> scatter, for every base that a kernel writes and only the scatter reads: the base is written straight into the scatter's
    storage.

    taken: values already written into an input's storage.

        %zeros = map { 0 }   copy %zeros -> %s   %s = scatter into %zeros      ->      %s = map { 0 }   %s = scatter into %s
    """
    graph = plan.graph
    writer: dict[str, PlannedKernel] = {}
    readers: dict[str, list[str]] = {}
    fixed = {name for v in plan.windows for name in (v.base, v.value)} | set(graph.results) | {v for pair in graph.updates for v in pair}
    for step in plan.steps:
        if isinstance(step, LibraryCall):
            fixed.update(step.operands)
            continue
        writer.update(dict.fromkeys(step.pattern.written, step))
        for name in step.pattern.nodes:
            node = graph.node_by_name[name]
            # A scatter that also computes with its base reads it twice, and would otherwise read elements that it has already written.
            inner = {v for e in (*node.target, node.body) if e is not None for v in reads(e)} if node.operands else set()
            for value in (*node.reads(), *(v for v in node.operands if v in inner)):
                readers.setdefault(value, []).append(name)
    scatter_of: dict[str, str] = {}
    for name in (n for step in plan.kernels for n in step.pattern.nodes):
        node = graph.node_by_name[name]
        base = node.operands[0] if node.category == "scatter" else ""
        if not base or base not in writer or base in fixed or base in taken or name in taken or readers[base] != [name]:
            continue
        if strides_of(graph, plan.layouts, base) == strides_of(graph, plan.layouts, name):
            scatter_of[base] = name
    # A scatter may be the base of the next one.
    for base, name in scatter_of.items():
        while name in scatter_of:
            name = scatter_of[name]
        scatter_of[base] = name
    return scatter_of


def alias_buffers(kernel: Kernel, into: Mapping[str, str]) -> Kernel:
    """The kernel with each buffer that is a key replaced by the buffer that is its value, which it then reads and writes."""
    if not into:
        return kernel
    buffers: list[Buffer] = []
    for buffer in kernel.buffers:
        if buffer.name not in into:
            buffers.append(replace(buffer, role="inout") if buffer.name in into.values() else buffer)
    return replace(_renamed(kernel, into), buffers=tuple(buffers))


def alias_members(kernel: Kernel, into: Mapping[str, str]) -> Kernel:
    """A packed kernel with some members whose parameter (a key) shares memory with another parameter (its value): the pointers of these
    parameters then carry no promise against aliasing, whichever member runs."""
    involved = set(into) | set(into.values())
    groups = []
    for group in kernel.groups:
        shared = tuple(s.name for n, s in enumerate(group.slots) if any(m.arguments[n] in involved for m in group.members))
        body = _renamed_all(group.body, dict(zip(shared, shared)))
        groups.append(replace(group, shared=shared, body=body))
    buffers = tuple(replace(b, role="inout") if b.name in into.values() else b for b in kernel.buffers)
    return replace(kernel, body=tuple(groups), buffers=buffers)


def _renamed_all(things: tuple[T, ...], names: Mapping[str, str]) -> tuple[T, ...]:
    """`_renamed` applied to several parts of kernel IR."""
    again = tuple(_renamed_field(x, names) for x in things)
    # A part that names no buffer stays the same object: most of a kernel does, and need not be rebuilt.
    return things if all(new is old for new, old in zip(again, things, strict=True)) else again


def _renamed_field(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, tuple):
        return _renamed_all(value, names)
    return value if isinstance(value, str | int) else _renamed(value, names)


def _renamed(thing: T, names: Mapping[str, str]) -> T:
    """A tree of kernel IR with buffer names replaced; loads that promise read-only memory lose that promise."""
    if not is_dataclass(thing) or isinstance(thing, type | Buffer | Affine):
        return thing
    changed: dict[str, Any] = {}
    for f in fields(thing):
        old = getattr(thing, f.name)
        new = names.get(old, old) if f.name == "buffer" else _renamed_field(old, names)
        if new is not old:
            changed[f.name] = new
    if getattr(thing, "cache", "") and changed.get("buffer", getattr(thing, "buffer", "")) in names.values():
        changed["cache"] = ""
    return replace(thing, **changed) if changed else thing
