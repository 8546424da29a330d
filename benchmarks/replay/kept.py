"""A kernel or call as text in a record, and the program that such a text means today: pattern, layouts, template, notation.

A text outlives changes of planner and price: it says which kernel was timed, whatever a plan would take now. A packed kernel's text holds
those of its groups' bodies, because bodies keep the names of the kernel in which they were first scheduled.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.planned_kernels import Call
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import CompilerError
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.by_hand import program_by_hand
from tilefuse.templates.notation import parse_template
from tilefuse.templates.packed.packed import Packed, any_size_of, regrouped
from tilefuse.templates.parts import PackedGroup, Part
from tilefuse.templates.pattern import pattern_graph
from tilefuse.templates.registry import template_named
from tilefuse.templates.request import Request
from tilefuse.templates.walk import walk_template

Text = Mapping[str, Any]


def text_of(program: TileProgram) -> dict[str, Any]:
    """The kernel's template, pattern, layouts, notation and launch, as `program_of` reads them."""
    text: dict[str, Any] = {
        "template": program.template, "graph": print_graph(program.graph), "layouts": _lists(program.layouts),
        "notation": program.notation, "launch": _launch(program)}
    if isinstance(program.choice, Packed):
        text |= {"bytes_read": program.bytes_read, "bytes_written": program.bytes_written, "flops": program.flops,
                 "groups": [{"body": text_of(g.program), "any_size": g.any_size,
                             "parts": [[list(p.values), list(p.nodes), p.num_blocks, p.num_elements] for p in g.parts]}
                            for g in program.choice.groups]}
    return text


def text_of_call(call: Call) -> dict[str, Any]:
    """The library's product as a graph of its own, with the strides of its operands and result."""
    graph = pattern_graph(call.graph, (call.node.name,))
    layouts = {v: strides for v, strides in call.strides.items() if v in graph.type_by_name}
    return {"template": "call", "graph": print_graph(graph), "layouts": _lists(layouts)}


def pattern_of(text: Text) -> tuple[Graph, Layouts]:
    """The pattern of a text, and the strides of its values."""
    return parse_graph(text["graph"], "record"), {value: tuple(strides) for value, strides in text["layouts"].items()}


def program_of(text: Text, device: DeviceSpec) -> TileProgram | Rejected:
    """The program of a text, or why today's templates have none: the pattern is no longer taken, or the notation is refused."""
    try:
        program = _packed_of(text, device) if "groups" in text else _alone_of(text, device)
    except CompilerError as error:
        return Rejected(Reason.OTHER_TEMPLATE, error.message)
    if isinstance(program, TileProgram) and (launch := _launch(program)) != list(text["launch"]):
        return Rejected(Reason.OTHER_TEMPLATE, f"the notation launches {launch} now, and launched {text['launch']}")
    return program


def _alone_of(text: Text, device: DeviceSpec) -> TileProgram | Rejected:
    graph, layouts = pattern_of(text)
    template = template_named(text["template"])
    proposed = template.propose(Request(graph, layouts, device, packing=template.packs))
    return proposed if isinstance(proposed, Rejected) else program_by_hand(proposed, parse_template(text["notation"], "record"), device)


def _packed_of(text: Text, device: DeviceSpec) -> TileProgram | Rejected:
    """A packed kernel of the same groups, without asking what would be packed together now."""
    groups: list[PackedGroup] = []
    for group in text["groups"]:
        parts = tuple(Part(tuple(values), tuple(nodes), blocks, elements) for values, nodes, blocks, elements in group["parts"])
        made = _any_size_of(group["body"], parts, device) if group["any_size"] else _of_one_size(group["body"], parts, device)
        if isinstance(made, Rejected):
            return made
        groups.append(made)
    graph, layouts = pattern_of(text)
    launch = Launch(*text["launch"])
    return TileProgram(
        name="packed", graph=graph, choice=Packed(launch.num_threads, tuple(groups)), notation=text["notation"], layouts=layouts,
        parameters=(), levels=(), launch=replace(launch, num_blocks=sum(g.num_blocks for g in groups)),
        bytes_read=text["bytes_read"], bytes_written=text["bytes_written"], flops=text["flops"])


def _of_one_size(body: Text, parts: tuple[Part, ...], device: DeviceSpec) -> PackedGroup | Rejected:
    program = program_of(body, device)
    return program if isinstance(program, Rejected) else PackedGroup(program, parts)


def _any_size_of(body: Text, parts: tuple[Part, ...], device: DeviceSpec) -> PackedGroup | Rejected:
    """A group whose parts differ in size: the body's domain is flat, and its notation is read in that domain."""
    graph, layouts = pattern_of(body)
    program = template_named(body["template"]).propose(Request(graph, layouts, device))
    if isinstance(program, Rejected):
        return program
    any_size = any_size_of(program)
    form = any_size.form(program)
    if form is None:
        return Rejected(Reason.OTHER_TEMPLATE, f"%{graph.results[0]} has no body of any size now")
    flat = replace(program, internal=form.domain)
    first = regrouped(PackedGroup(flat, parts, any_size=True), any_size.choice(flat, body["launch"][1], device))
    choice = walk_template(first.program.choice).choice_by_hand(first.program, parse_template(body["notation"], "record"), device)
    return regrouped(first, choice)


def _launch(program: TileProgram) -> list[int]:
    return [program.launch.num_blocks, program.launch.num_threads, program.launch.cluster]


def _lists(layouts: Layouts) -> dict[str, list[int]]:
    return {value: list(strides) for value, strides in layouts.items()}
