"""The reason why two values are or are not computed in one kernel, and the cost of the other choice.

    one kernel     ->  the kernel split behind the earlier value's side: two kernels, priced
    two kernels    ->  their union: a path that leaves it, no schedule, or a price
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import NameLookupError, nearest
from tilefuse.ir.graph import Graph, node_inputs
from tilefuse.plan.assemble import library_call
from tilefuse.plan.pattern import LibraryCall, Pattern, Plan, PlannedKernel, is_library, needed_nodes, read_values
from tilefuse.plan.price.cost import gain_us
from tilefuse.plan.price.library_price import price_call
from tilefuse.plan.price.products import matrix_products
from tilefuse.plan.text.edit import Setting, price


@dataclass(frozen=True, slots=True)
class Answer:
    """A reason. `decided_by`: "cost", a rejection's reason, "library-call", "view", "input" or "search"; `detail` carries its numbers.

    Units: `chosen_us` is the predicted time of the kernels and calls concerned as planned, `other_us` their time under the other choice, or
    None where there is none; `no_other` then holds the reason.
    """

    first: str
    second: str
    together: bool
    decided_by: str
    detail: str
    chosen_us: float | None = None
    other_us: float | None = None
    kernels: tuple[str, ...] = ()
    others: tuple[tuple[str, ...], ...] = ()
    no_other: str = ""

    def text(self) -> str:
        """The answer in a few lines."""
        where = f"one kernel ({self.kernels[0]})" if self.together else " and ".join(self.kernels) or "no kernel"
        lines = [f"%{self.first} and %{self.second}: {where}", f"decided by {self.decided_by}: {self.detail}"]
        if self.chosen_us is not None:
            lines.append(f"as planned {self.chosen_us:.3f} us")
        if self.other_us is not None and self.chosen_us is not None:
            names = " | ".join("{" + ", ".join(f"%{n}" for n in nodes) + "}" for nodes in self.others)
            lines.append(f"the other choice {self.other_us:.3f} us ({self.other_us - self.chosen_us:+.3f} us): {names}")
        else:
            lines.append(f"no other choice: {self.no_other or 'no kernel holds both'}")
        return "\n".join(lines)


def why(plan: Plan, setting: Setting, first: str, second: str) -> Answer:
    """The reason why the plan computes two values in one kernel or not. Raises: NameLookupError for a value that the graph does not
    have."""
    known = list(plan.graph.type_by_name)
    for name in (first, second):
        if name not in known:
            raise NameLookupError(f"the graph has no value %{name}", hint=nearest(name, known) or
                                  "names are those of the graph after passes: tilefuse explain MODEL --full prints them")
    apart = _outside_kernels(plan, setting, first, second)
    if apart is not None:
        return _held(plan, setting, first, second) or apart if apart.decided_by == "library-call" else apart
    homes = {n: [k for k in plan.kernels if n in k.pattern.nodes] for n in (first, second)}
    shared = [k for k in homes[first] if k in homes[second]]
    if shared:
        return _split(plan, setting, shared[0], first, second)
    return _joined(plan, setting, homes[first][-1], homes[second][-1], first, second)


def _outside_kernels(plan: Plan, setting: Setting, first: str, second: str) -> Answer | None:
    """The answer where one of the two values is not computed in a kernel."""
    inputs = {i.name for i in plan.graph.inputs}
    views = {v.value: v for v in plan.views}
    calls = {value: step for step in plan.library_calls for _, value in step.results}
    for name in (n for n in (first, second) if n in inputs):
        return Answer(first, second, False, "input", f"%{name} is an input of the graph; nothing computes it",
                      no_other="kernels read inputs, whatever the plan")
    for name in (n for n in (first, second) if n in views):
        return Answer(first, second, False, "view", f"%{name} is a window onto the memory of %{views[name].base}: it has no kernel",
                      no_other="a view takes no time")
    for name in (n for n in (first, second) if n in calls):
        steps = {id(s): s for n in (first, second) for s in plan.steps if n in _computes(s)}
        return Answer(first, second, False, "library-call", f"%{name} is computed by the library call {calls[name].operator}, which "
                      "takes its operands from memory and gives its results there",
                      sum(_step_us(plan, setting, s) for s in steps.values()),
                      kernels=tuple(s.name if isinstance(s, PlannedKernel) else f"call {s.operator}" for s in steps.values()),
                      no_other=f"no kernel computes {calls[name].operator} on {setting.device.name}")
    return None


def _held(plan: Plan, setting: Setting, first: str, second: str) -> Answer | None:
    """The answer where a kernel could hold the calls that compute one value or both, together with the other value's kernel."""
    products = matrix_products(plan.graph, setting.device, plan.layouts)
    steps: list[PlannedKernel | LibraryCall] = []
    for name in (first, second):
        home = next((s for s in plan.steps if name in _computes(s)), None)
        if home is None or isinstance(home, LibraryCall) and not products.fusible(plan.graph.node_by_name[name]):
            return None
        steps.append(home)
    a, b = steps
    if a is b:
        return None
    names = tuple(s.name if isinstance(s, PlannedKernel) else f"call {s.operator}" for s in steps)
    chosen_us = sum(_step_us(plan, setting, s) for s in steps)
    path = _path_outside(plan, a, b) or _path_outside(plan, b, a)
    if path is not None:
        return _not_convex(plan, setting, a, b, path, Answer(first, second, False, "not-convex", "", chosen_us, kernels=names))
    held_calls = [n for s, n in zip(steps, (first, second), strict=True) if isinstance(s, LibraryCall)]
    inside = {*held_calls, *(n for s in steps if isinstance(s, PlannedKernel) for n in s.pattern.nodes)}
    views = {v.value for v in plan.views}
    read = {v for n in held_calls for v in plan.graph.node_by_name[n].reads() if v in views}
    nodes = tuple(n.name for n in plan.graph.nodes if n.name in inside | read)
    own = [s for s in steps if isinstance(s, PlannedKernel)]
    priced = price(setting, replace(pattern_of(plan, nodes, own), written=pattern_of(plan, [n for n in nodes if n in inside], own).written))
    if isinstance(priced, Rejected):
        return Answer(first, second, False, priced.reason.value, priced.detail, chosen_us, kernels=names,
                      no_other=f"no kernel holds both ({priced.reason.value})")
    detail = "one kernel is no faster than the call beside the other" if priced.cost.us >= chosen_us else \
        "one kernel would be faster, and the plan as a whole is not with it, or it was not tried"
    decided = "cost" if priced.cost.us >= chosen_us else "search"
    return Answer(first, second, False, decided, detail, chosen_us, priced.cost.us, names, (nodes,))


def _split(plan: Plan, setting: Setting, kernel: PlannedKernel, first: str, second: str) -> Answer:
    """The kernel cut in two: the nodes that depend on the later of the two values, and the other nodes."""
    order = {n.name: place for place, n in enumerate(plan.graph.nodes)}
    late = max((first, second), key=order.__getitem__)
    behind = _behind(plan.graph, late, kernel.pattern.nodes)
    sides = [tuple(n for n in kernel.pattern.nodes if n not in behind), tuple(n for n in kernel.pattern.nodes if n in behind)]
    if first == second or not sides[0] or any(not s for s in sides):
        return Answer(first, second, True, "cost", "they cannot be cut apart", kernel.cost.us, kernels=(kernel.name,),
                      no_other="it is one value" if first == second else "each needs the other's nodes")
    detail = f"{kernel.generator} put {len(kernel.pattern.nodes)} nodes into {kernel.name}, bound by {kernel.cost.source}"
    parts: list[Part] = []
    for side in sides:
        outcome = _parts(plan, setting, side, kernel)
        if isinstance(outcome, Rejected):
            # No kernel holds the side; each of its nodes alone has one.
            detail += f"; no kernel holds one side: {outcome}"
            outcome = _one_by_one(plan, setting, side, kernel)
        if isinstance(outcome, Rejected):
            return Answer(first, second, True, outcome.reason.value, f"{detail}, and not all of its nodes alone: {outcome}", kernel.cost.us,
                          kernels=(kernel.name,), no_other="cut apart, a side has no kernels")
        parts += outcome
    other_us = sum(p.us for p in parts)
    extra_bytes = sum(p.num_bytes for p in parts) - kernel.program.bytes_moved
    num_calls = sum(p.is_call for p in parts)
    parts_text = _counted(len(parts) - num_calls, "kernel") + (f" and {_counted(num_calls, 'library call')}" if num_calls else "")
    moved = f"{parts_text} would move {f'{extra_bytes} bytes more' if extra_bytes >= 0 else f'{-extra_bytes} bytes less'}"
    again = "" if len(parts) == 1 else " and launch once more" if len(parts) == 2 else f" and launch {len(parts) - 1} times more"
    others = tuple(p.nodes for p in parts)
    if other_us < kernel.cost.us:
        return Answer(first, second, True, "search", f"{detail}; apart would be faster, and was not among the candidates that were tried: "
                      f"{moved}{again}", kernel.cost.us, other_us, (kernel.name,), others)
    return Answer(first, second, True, "cost", f"{detail}; {moved}{again}", kernel.cost.us, other_us, (kernel.name,), others)


def _counted(number: int, what: str) -> str:
    return f"{'no' if number == 0 else 'one' if number == 1 else 'two' if number == 2 else number} {what}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Part:
    """A kernel or a library call that would compute some nodes of a kernel. Units: bytes moved, microseconds."""

    nodes: tuple[str, ...]
    us: float
    num_bytes: int
    is_call: bool = False


def _parts(plan: Plan, setting: Setting, nodes: tuple[str, ...], kernel: PlannedKernel) -> list[Part] | Rejected:
    """Units that would compute these nodes of a kernel: one kernel, or library calls and the kernels between them, whichever is faster.

    Empty where other kernels already write all of their values that are read.
    """
    needed = needed_nodes(plan.graph, pattern_of(plan, nodes, [kernel]))
    nodes = tuple(n for n in nodes if n in needed)
    if not nodes:
        return []
    node_by_name = plan.graph.node_by_name
    products = [n for n in nodes if is_library(node_by_name[n])]
    if len(nodes) == len(products) == 1 and not matrix_products(plan.graph, setting.device, plan.layouts).alone(node_by_name[nodes[0]]):
        return [_call_part(plan, setting, nodes[0])]
    whole = _part(plan, setting, nodes, kernel)
    if not products:
        return whole if isinstance(whole, Rejected) else [whole]
    before: dict[str, int] = {}
    for name in nodes:
        before[name] = max((before[v] + (v in products) for v in node_by_name[name].reads() if v in before), default=0)
    parts: list[Part] = []
    for place in range(max(before.values()) + 1):
        between = tuple(n for n in nodes if before[n] == place and n not in products and n not in setting.views)
        outcome = _part(plan, setting, between, kernel) if between else None
        if isinstance(outcome, Rejected):
            return whole if isinstance(whole, Rejected) else [whole]
        parts += [outcome] if outcome is not None else []
        parts += [_call_part(plan, setting, n) for n in products if before[n] == place]
    return [whole] if not isinstance(whole, Rejected) and whole.us <= sum(p.us for p in parts) else parts


def _one_by_one(plan: Plan, setting: Setting, nodes: tuple[str, ...], kernel: PlannedKernel) -> list[Part] | Rejected:
    """A kernel for every needed node, and library calls."""
    needed = needed_nodes(plan.graph, pattern_of(plan, nodes, [kernel]))
    parts: list[Part] = []
    for name in (n for n in nodes if n in needed and n not in setting.views):
        node = plan.graph.node_by_name[name]
        if is_library(node):
            parts.append(_call_part(plan, setting, name))
            continue
        part = _part(plan, setting, (name,), kernel)
        if isinstance(part, Rejected):
            return part
        parts.append(part)
    return parts


def _call_part(plan: Plan, setting: Setting, name: str) -> Part:
    call = price_call(library_call(plan.graph, Pattern((name,), (name,))), plan.graph, setting.device, plan.timed_calls, plan.layouts)
    return Part((name,), call.us, call.num_bytes, True)


def _part(plan: Plan, setting: Setting, nodes: tuple[str, ...], kernel: PlannedKernel) -> Part | Rejected:
    priced = price(setting, pattern_of(plan, nodes, [kernel]))
    if isinstance(priced, Rejected):
        return priced
    return Part(nodes, priced.cost.us, priced.figures.bytes_moved)


def _joined(plan: Plan, setting: Setting, a: PlannedKernel, b: PlannedKernel, first: str, second: str) -> Answer:
    """The two kernels as one."""
    chosen_us = a.cost.us + b.cost.us
    names = (a.name, b.name)
    path = _path_outside(plan, a, b) or _path_outside(plan, b, a)
    if path is not None:
        return _unpacked(plan, setting, a, b, first, second) or _not_convex(
            plan, setting, a, b, path, Answer(first, second, False, "not-convex", "", chosen_us, kernels=names))
    inside = set(a.pattern.nodes) | set(b.pattern.nodes)
    nodes = tuple(n.name for n in plan.graph.nodes if n.name in inside)
    joined = pattern_of(plan, nodes, (a, b))
    priced = price(setting, joined)
    if isinstance(priced, Rejected):
        return Answer(first, second, False, priced.reason.value, priced.detail, chosen_us, kernels=names,
                      no_other=f"no kernel holds both ({priced.reason.value})")
    if gain_us((a.cost, b.cost), priced.cost) <= 0:
        return Answer(first, second, False, "cost", f"one kernel is no faster than two, bound by {priced.cost.source}", chosen_us,
                      priced.cost.us, names, (nodes,))
    refusal = next((r.rejected for r in plan.rejected if {r.first, r.second} <= inside), None)
    refusal_note = f"; what was tried of it was refused: {refusal}" if refusal is not None else ""
    return Answer(first, second, False, "search",
                  f"one kernel would be faster, and was not among the candidates that were tried{refusal_note}",
                  chosen_us, priced.cost.us, names, (nodes,))


def _not_convex(plan: Plan, setting: Setting, a: PlannedKernel | LibraryCall, b: PlannedKernel | LibraryCall, path: Sequence[str],
                answer: Answer) -> Answer:
    """The answer where a path leaves the union of two steps and comes back: the other choice includes all steps on such paths."""
    cycle = "one kernel would wait for itself: a path leaves it and comes back through " + " -> ".join(path)
    between = _steps_between(plan, a, b) or _steps_between(plan, b, a)
    steps = [s for n, s in enumerate(plan.steps) if s is a or s is b or n in between]
    products = matrix_products(plan.graph, setting.device, plan.layouts)
    stops = [s.operator for s in steps if isinstance(s, LibraryCall)
             for _, v in s.results if not products.fusible(plan.graph.node_by_name[v])]
    if stops:
        return replace(answer, detail=cycle, no_other=f"no kernel computes {stops[0]} on {setting.device.name}, which lies between them")
    inside = {n for s in steps for n in _computes(s)}
    views = {v.value for v in plan.views}
    read = {v for n in inside for v in plan.graph.node_by_name[n].reads() if v in views}
    nodes = tuple(n.name for n in plan.graph.nodes if n.name in inside | read)
    own = [s for s in steps if isinstance(s, PlannedKernel)]
    written = pattern_of(plan, [n for n in nodes if n in inside], own).written
    priced = price(setting, replace(pattern_of(plan, nodes, own), written=written))
    if isinstance(priced, Rejected):
        return replace(answer, detail=cycle, no_other=f"one kernel of them and of all between them has none: {priced}")
    chosen_us = sum(_step_us(plan, setting, s) for s in steps)
    return replace(answer, detail=f"{cycle}; the other choice holds these too", chosen_us=chosen_us, other_us=priced.cost.us,
                   others=(nodes,), kernels=tuple(_step_name(plan, n) for n, s in enumerate(plan.steps) if s in steps))


def _steps_between(plan: Plan, start: PlannedKernel | LibraryCall, end: PlannedKernel | LibraryCall) -> set[int]:
    """Steps on any path of values from one step to the other, without the two."""
    base = {v.value: v.base for v in plan.views}
    reads = [{base.get(v, v) for v in (s.operands if isinstance(s, LibraryCall) else
                                       node_inputs(plan.graph.node_by_name[n] for n in s.pattern.nodes))} for s in plan.steps]
    first, last = plan.steps.index(start), plan.steps.index(end)
    after, values = {first}, set(_gives(plan, first))
    for n in range(first + 1, last + 1):
        if reads[n] & values:
            after.add(n)
            values |= set(_gives(plan, n))
    before, values = {last}, set(reads[last])
    for n in range(last - 1, first - 1, -1):
        if set(_gives(plan, n)) & values:
            before.add(n)
            values |= reads[n]
    return (after & before) - {first, last} if first < last and first in before else set()


def _unpacked(plan: Plan, setting: Setting, a: PlannedKernel, b: PlannedKernel, first: str, second: str) -> Answer | None:
    """The parts of two packed kernels that hold the values as one kernel; the other parts become kernels of their own.

        k0 = {y}, k1 = {g, c}, and y -> product -> g        c may join y where g may not: {y, c} | {g}

    None where the two kernels have no other parts, or the path goes through the parts themselves.
    """
    parts = [_connected_with(plan.graph, n, k.pattern.nodes) for n, k in ((first, a), (second, b))]
    beside = [tuple(n for n in k.pattern.nodes if n not in part) for k, part in zip((a, b), parts, strict=True)]
    if not any(beside):
        return None
    kernel_of = {id(k): [replace(k, pattern=pattern_of(plan, nodes, [k])) for nodes in (part, rest) if nodes]
                 for k, part, rest in zip((a, b), parts, beside, strict=True)}
    apart = replace(plan, steps=tuple(s for step in plan.steps for s in kernel_of.get(id(step), [step])))
    one, other = kernel_of[id(a)][0], kernel_of[id(b)][0]
    if _path_outside(apart, one, other) or _path_outside(apart, other, one):
        return None
    inside = {*one.pattern.nodes, *other.pattern.nodes}
    joined = tuple(n.name for n in plan.graph.nodes if n.name in inside)
    names, chosen_us = (a.name, b.name), a.cost.us + b.cost.us
    priced = price(setting, pattern_of(apart, joined, (one, other)))
    if isinstance(priced, Rejected):
        return Answer(first, second, False, priced.reason.value, priced.detail, chosen_us, kernels=names,
                      no_other=f"no kernel holds both ({priced.reason.value})")
    rests = [price(setting, k.pattern) for kernels in kernel_of.values() for k in kernels[1:]]
    other_us = priced.cost.us + sum(r.cost.us for r in rests if not isinstance(r, Rejected))
    packed_text = ", with what is packed beside them as kernels of its own"
    others = (joined, *(k.pattern.nodes for kernels in kernel_of.values() for k in kernels[1:]))
    if other_us < chosen_us:
        return Answer(first, second, False, "search",
                      f"one kernel would be faster{packed_text}, and was not among the candidates that were tried",
                      chosen_us, other_us, names, others)
    return Answer(first, second, False, "cost", f"one kernel is no faster{packed_text}", chosen_us, other_us, names, others)


def _connected_with(graph: Graph, name: str, nodes: Sequence[str]) -> tuple[str, ...]:
    """The nodes of a kernel connected to one of its values by dependences, in graph order."""
    linked: dict[str, list[str]] = {n: [] for n in nodes}
    for node in nodes:
        for value in graph.node_by_name[node].reads():
            if value in linked:
                linked[node].append(value)
                linked[value].append(node)
    connected, waiting = {name}, [name]
    while waiting:
        fresh = [n for n in linked[waiting.pop()] if n not in connected]
        connected.update(fresh)
        waiting += fresh
    return tuple(n for n in nodes if n in connected)


def pattern_of(plan: Plan, nodes: Sequence[str], own: Sequence[PlannedKernel]) -> Pattern:
    """A pattern of these nodes in place of the kernels `own`, or of a part of them: it writes values that are read elsewhere and that they
    do not write.

    Values that other kernels recompute for themselves do not count as read.
    """
    views = {v.value: v for v in plan.views}
    base = {v.value: v.base for v in plan.views}
    read = {base.get(v, v) for c in plan.library_calls for v in c.operands} | {base.get(v, v) for v in plan.graph.escaping}
    written: set[str] = set()
    for kernel in plan.kernels:
        if all(kernel is not k for k in own):
            read.update(read_values(plan.graph, views, kernel.pattern))
            written.update(kernel.pattern.written)
    inside = set(nodes)
    rest = Pattern(tuple(n for k in own for n in k.pattern.nodes if n not in inside), ())
    read.update(read_values(plan.graph, views, rest))
    return Pattern(tuple(nodes), tuple(n for n in nodes if n in read and n not in written))


def _behind(graph: Graph, name: str, nodes: Sequence[str]) -> set[str]:
    """A node and all nodes among `nodes` that are computed from it."""
    dependants = {name}
    for node in nodes:
        if dependants.intersection(graph.node_by_name[node].reads()):
            dependants.add(node)
    return dependants


def _path_outside(plan: Plan, start: PlannedKernel | LibraryCall, end: PlannedKernel | LibraryCall) -> list[str] | None:
    """Steps other than these two on a path of values from one to the other."""
    base = {v.value: v.base for v in plan.views}
    readers: dict[str, list[int]] = {}
    for number, step in enumerate(plan.steps):
        reads = step.operands if isinstance(step, LibraryCall) else node_inputs(plan.graph.node_by_name[n] for n in step.pattern.nodes)
        for value in dict.fromkeys(base.get(v, v) for v in reads):
            readers.setdefault(value, []).append(number)
    came: dict[int, int | None] = {plan.steps.index(start): None}
    stack = [plan.steps.index(start)]
    goal = plan.steps.index(end)
    while stack:
        at = stack.pop()
        for following in (r for v in _gives(plan, at) for r in readers.get(v, ())):
            direct = following == goal and came[at] is None
            if following in came or direct:
                continue
            came[following] = at
            if following == goal:
                path: list[str] = []
                back = came[following]
                while back is not None and came[back] is not None:
                    path.append(_step_name(plan, back))
                    back = came[back]
                return path[::-1]
            stack.append(following)
    return None


def _computes(step: PlannedKernel | LibraryCall) -> tuple[str, ...]:
    return step.pattern.nodes if isinstance(step, PlannedKernel) else tuple(v for _, v in step.results)


def _gives(plan: Plan, number: int) -> tuple[str, ...]:
    step = plan.steps[number]
    return tuple(v for _, v in step.results) if isinstance(step, LibraryCall) else step.pattern.written


def _step_us(plan: Plan, setting: Setting, step: PlannedKernel | LibraryCall) -> float:
    """Units: microseconds."""
    if isinstance(step, PlannedKernel):
        return step.cost.us
    return price_call(step, plan.graph, setting.device, plan.timed_calls, plan.layouts).us


def _step_name(plan: Plan, number: int) -> str:
    step = plan.steps[number]
    return step.operator if isinstance(step, LibraryCall) else step.name
