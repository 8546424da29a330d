"""Graphs over named sizes: one callable for all of them, which compiles a size when that pays.

    call -> values of the symbols -> compiled before?   its program
                                  -> worth a compile?   the graph with these sizes, compiled (in the background, if it may be) and kept
                                  -> else               the traced graph, operator by operator in torch

A size that occurs once does not pay for a compile: after the first few of a graph, a size is compiled when it returns. A program has one
size, and at most `recompile_limit` programs are kept. A program is evicted only for a size whose previous call was later than the program's
last call; otherwise alternating between more sizes than are kept would compile at every call.
"""
from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import sympy
import torch
from torch import fx

from tilefuse.base.logs import log_of
from tilefuse.driver.reuse.known_programs import is_keepable
from tilefuse.driver.torch.part import log
from tilefuse.driver.torch.settings import Settings
from tilefuse.driver.torch.split import Boxed, marked
from tilefuse.driver.torch.symbols import Binding, Sizes, bindings_of, with_sizes
from tilefuse.runtime.calls.strided import lies, relaid

# Sizes whose calls are counted. Beyond this the oldest are forgotten, so that endless new sizes need no endless memory.
MOST_COUNTED = 4096

# Values of the symbols and, for a backward graph, strides of its arguments.
Key = tuple[Any, ...]
# Names of sizes in a text: a language model has four caches per layer.
MOST_NAMED = 3
# Maximum number of sizes that an explanation lists as run in torch.
MOST_LISTED = 8


class Pending(Protocol):
    """A compile in the background."""

    def is_ready(self) -> bool:
        """Whether `finish` need not wait."""

    def finish(self) -> Boxed:
        """Finishes the program. Cost: loading it; a compile where the background process made none."""


class Compiler(Protocol):
    """Compiles a graph of fixed sizes, which `sizes` names."""

    def now(self, gm: fx.GraphModule, sizes: str) -> Boxed:
        """The program; the call waits for it."""

    def has_room(self) -> bool:
        """Whether `later` would be begun soon."""

    def later(self, gm: fx.GraphModule, sizes: str) -> Pending | None:
        """The compile in the background; None where it must run here."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When a size is compiled.

    at_once: number of sizes that are compiled at their first call. at_call: number of the call at which any other is compiled; 0: never.
    most: programs kept. in_background: whether torch runs the calls of those others during the compile.
    """

    at_once: int
    at_call: int
    most: int
    in_background: bool = False

    @classmethod
    def of(cls, settings: Settings, example_inputs: Sequence[Any]) -> Policy:
        """The policy for a graph that torch traces now. Torch names a size by itself only after it has seen one value of it."""
        seen = 0 if declared_dynamic(example_inputs) else 1
        at_once = 0 if told_dynamic() else max(settings.sizes_at_once - seen, 0)
        return cls(at_once, settings.compile_at_call, settings.recompile_limit, settings.in_background and is_keepable(settings.options))

    @classmethod
    def of_fixed(cls, settings: Settings, variant: int = 0) -> Policy:
        """The policy for a graph of fixed sizes. variant: its number among those of its function (see `Variants`).

        The second call of a first graph waits for the compile: a size that returned once will return again. Other graphs count as sizes of
        one axis.
        """
        in_background = variant > 0 and settings.in_background and is_keepable(settings.options)
        return cls(int(variant < settings.sizes_at_once), settings.compile_at_call, 1, in_background)

    def text(self) -> str:
        """Policy for a new size, in words for the user."""
        first = f"compiles the first {self.at_once} at once and " if self.at_once else ""
        where = " in the background" if self.in_background else ""
        later = f"compiles it at call {self.at_call} with it{where}" if self.at_call else "never compiles it"
        return f"{first}runs a new size in torch, operator by operator, and {later}"


class Variants:
    """Numbers the graphs of fixed sizes that torch traces of one function for one set of parameters and settings.

    Torch traces a function again for other arguments: first a prompt, then a token and a cache. Other parameters mean another model, which
    may share its code, as instances of `torch.nn.Sequential` do.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], tuple[int, ...]] = {}

    def number(self, settings: Settings, example_inputs: Sequence[Any]) -> int:
        """The number of the graph that torch traces now; 0 for the first one, and outside of a trace."""
        traced = torch._guards.CompileContext.current_compile_id()
        if traced is None or traced.frame_id is None or traced.frame_compile_id is None:
            return 0
        parameters = (id(x) for x in example_inputs if isinstance(x, torch.nn.Parameter))
        key = (traced.frame_id, settings, *parameters)
        before = self._seen.get(key, ())
        if before and before[-1] >= traced.frame_compile_id:
            before = ()  # torch has forgotten its graphs since
        self._seen[key] = (*before, traced.frame_compile_id)
        return len(before)


def told_dynamic() -> bool:
    """Whether the graph that torch traces now is one of `torch.compile(dynamic=True)`."""
    import torch._dynamo.config as config

    return not config.assume_static_by_default


def declared_dynamic(example_inputs: Sequence[Any]) -> bool:
    """Whether the user named a size of these inputs (`torch._dynamo.mark_dynamic`)."""
    context = torch._guards.TracingContext.try_get()
    known = getattr(context, "tensor_to_context", None)
    if known is None:
        return False
    symbols_of = (known.get(x) for x in example_inputs if isinstance(x, torch.Tensor))
    constraints = [c for symbols in symbols_of for c in getattr(symbols, "constraint_sizes", None) or ()]
    return any(c is not None and not getattr(c, "warn_only", False) for c in constraints)


class SizedPart:
    """A graph over named sizes as a boxed callable (see the module). Threads may call it at the same time.

    in_torch: the traced graph, run by torch. The arguments of a backward graph may have other strides than torch traced, because our
    forward graph saves values in its own layouts: a program is then specific to the strides as well. titles: the user's names of arguments,
    by placeholder.
    """

    def __init__(self, gm: fx.GraphModule, kind: str, name: str, policy: Policy, compiler: Compiler, in_torch: Boxed,
                 titles: Mapping[str, str] = MappingProxyType({})) -> None:
        traced = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
        bindings = bindings_of(traced)
        self.kind = kind
        self.name = name
        self.policy = policy
        self.num_in_torch = 0
        self.compiled: dict[Key, Boxed] = {}
        self._gm = gm
        placeholders = [node.name for node in gm.graph.find_nodes(op="placeholder")]
        self._size_names = tuple(b.title(titles.get(placeholders[b.argument], "")) for b in bindings or ())
        self._bindings: tuple[Binding, ...] = bindings or ()
        self._is_bound = bindings is not None
        self._compiler = compiler
        self._pending: dict[Key, Pending] = {}
        self._in_torch = in_torch
        self._free_layouts = kind == "backward"
        self._tensors = tuple(n for n, x in enumerate(traced) if isinstance(x, torch.Tensor) and x.layout == torch.strided)
        self._num_calls: dict[tuple[int, ...], int] = {}
        self._last_call: dict[tuple[int, ...], int] = {}
        self._strides: dict[tuple[int, ...], dict[int, tuple[int, ...]]] = {}
        self._clock = itertools.count()
        self._counting = threading.Lock()
        self._compiling = threading.Lock()
        self._asking = threading.Lock()
        self._is_told = False

    def boxed(self) -> Boxed:
        """The function that torch calls."""

        def run(arguments: list[Any]) -> Sequence[Any]:
            return self(arguments)

        return marked(run)

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Runs the graph for these arguments; empties the list."""
        key = self._key(arguments)
        compiled = self.compiled.get(key)
        if compiled is None:
            compiled = self._decided(key, arguments)
            if compiled is None:
                return self._torch(key, arguments)
        self._last_call[key[0]] = next(self._clock)
        return compiled(arguments)

    def sizes_text(self, key: Key) -> str:
        """The sizes of a program as text: x.shape[0]=12, s31=4; "" for a graph of fixed sizes."""
        rest = f", ... ({len(key[0])} sizes)" if len(key[0]) > MOST_NAMED else ""
        return ", ".join(f"{name}={n}" for name, n in list(zip(self._size_names, key[0]))[:MOST_NAMED]) + rest

    def notes(self) -> list[str]:
        """Statistics of the calls so far, for an explanation."""
        listed = "; ".join(self.sizes_text(key) for key in list(self.compiled)) or "none"
        calls = "call" if self.num_in_torch == 1 else "calls"
        if self._is_bound and not self._bindings:
            later = f"compiled at call {self.policy.at_call}" if self.policy.at_call else "never compiled"
            return [f"{self.name} ran in torch at {self.num_in_torch} {calls}; it is {later} (option sizes_at_once)"]
        lines = [f"{self.name} is called with several sizes: tilefuse {self.policy.text()}",
                 f"sizes compiled: {listed}; {self.num_in_torch} {calls} with other sizes ran in torch"]
        rest = [f"{sizes} ({why})" for sizes, why in self.waiting()]
        if rest:
            others = f"; and {len(rest) - MOST_LISTED} more" if len(rest) > MOST_LISTED else ""
            lines.append(f"sizes in torch: {'; '.join(rest[:MOST_LISTED])}{others}")
        return lines

    @property
    def is_of_sizes(self) -> bool:
        """Whether it is a graph for several sizes, not one of fixed sizes that is compiled later."""
        return bool(self._bindings) or not self._is_bound

    def waiting(self) -> list[tuple[str, str]]:
        """(sizes, reason) of the sizes that run in torch so far, most called first."""
        return [(self.sizes_text((sizes,)), f"{n} call{'s' * (n > 1)}, {why}") for sizes, n, why in self._rest()]

    def _rest(self) -> list[tuple[tuple[int, ...], int, str]]:
        """(sizes, number of calls, reason) of the sizes that run in torch, most called first."""
        compiled = {key[0] for key in list(self.compiled)}
        pending = {key[0]: item for key, item in list(self._pending.items())}
        rest = sorted(((n, sizes) for sizes, n in list(self._num_calls.items()) if sizes not in compiled), key=lambda row: -row[0])
        return [(sizes, n, self._why(n, sizes, pending.get(sizes))) for n, sizes in rest]

    def _why(self, calls: int, sizes: tuple[int, ...], pending: Pending | None) -> str:
        """The reason for which a size runs in torch."""
        if not self._is_bound:
            return "the arguments do not tell all sizes"
        if pending is not None:
            return "compiled, and loaded at the next call" if pending.is_ready() else "being compiled in the background"
        if not self.policy.at_call:
            return "never compiled"
        if calls < self.policy.at_call:
            return f"compiled at call {self.policy.at_call}"
        return "called before programs that are kept" if len(self.compiled) >= self.policy.most else "its compile waits for others"

    def _key(self, arguments: Sequence[Any]) -> Key:
        sizes = tuple([b.value(arguments) for b in self._bindings])
        return (sizes, tuple([arguments[n].stride() for n in self._tensors])) if self._free_layouts else (sizes,)

    def _decided(self, key: Key, arguments: list[Any]) -> Boxed | None:
        """The program of a size that has none yet, where it is worth compiling now."""
        with self._counting:
            before = self._last_call.get(key[0], -1)
            calls = self._counted(key[0])
            is_first = len(self._num_calls) <= self.policy.at_once
            is_due = is_first or 0 < self.policy.at_call <= calls
            if not is_due or not self._is_bound or not self._has_room(before):
                self._tell(key)
                return None
        return self._later(key, arguments) if self.policy.in_background and not is_first else self._now(key, arguments)

    def _now(self, key: Key, arguments: list[Any]) -> Boxed:
        """The program of a size, which this call waits for."""
        with self._compiling:
            if key not in self.compiled:
                text = self.sizes_text(key)
                log_of("sizes").info("%s is compiled for %s", self.name, text or "its sizes")
                self._keep(key, self._compiler.now(self._fixed(key, arguments), text))
            return self.compiled[key]

    def _later(self, key: Key, arguments: list[Any]) -> Boxed | None:
        """The program of a size, if it was compiled in the background; otherwise requests that."""
        pending = self._pending.get(key)
        if pending is None and not self._compiler.has_room() or pending is not None and not pending.is_ready():
            self._tell(key)
            return None
        if not self._asking.acquire(blocking=False):
            return None
        try:
            if key in self.compiled:
                return self.compiled[key]
            if pending is not None:
                self._pending.pop(key, None)
                log_of("background").info("%s for %s is loaded", self.name, self.sizes_text(key) or "its sizes")
                with self._compiling:
                    self._keep(key, pending.finish())
                    return self.compiled[key]
            text = self.sizes_text(key)
            request = self._compiler.later(self._fixed(key, arguments), text)
            if request is None:
                return self._now(key, arguments)
            log_of("background").info("%s is compiled for %s in the background", self.name, text or "its sizes")
            if len(self._pending) >= self.policy.most:
                del self._pending[self._oldest(self._pending)]
            self._pending[key] = request
            self._tell(key)
            return None
        finally:
            self._asking.release()

    def _keep(self, key: Key, made: Boxed) -> None:
        """Keeps a program; evicts the oldest where there are too many. Requires: the lock for compiles."""
        while len(self.compiled) >= self.policy.most:
            self._forget(self._oldest(self.compiled))
        self.compiled[key] = made

    def _fixed(self, key: Key, arguments: Sequence[Any]) -> fx.GraphModule:
        """The graph with these sizes, and with the real strides of its arguments."""
        gm = with_sizes(self._gm, self._values(key))
        if self._free_layouts:
            for n, node in enumerate(gm.graph.find_nodes(op="placeholder")):
                traced = node.meta.get("val")
                if n in self._tensors and traced.stride() != arguments[n].stride():
                    node.meta["val"] = traced.new_empty_strided(traced.shape, arguments[n].stride())
        return gm

    def _counted(self, sizes: tuple[int, ...]) -> int:
        """Number of this call with these sizes. Above `MOST_COUNTED` sizes, the least recently called are forgotten."""
        calls = self._num_calls[sizes] = self._num_calls.pop(sizes, 0) + 1
        self._last_call[sizes] = next(self._clock)
        if len(self._num_calls) > MOST_COUNTED:
            forgotten = next(iter(self._num_calls))
            del self._num_calls[forgotten]
            self._last_call.pop(forgotten, None)
        return calls

    def _oldest(self, programs: Mapping[Key, object]) -> Key:
        """The key whose size was called least recently."""
        return min(list(programs), key=lambda k: self._last_call.get(k[0], -1))

    def _has_room(self, before: int) -> bool:
        """Whether a size with this previous call may have a program: there is room, or the oldest program's last call was earlier."""
        if len(self.compiled) < self.policy.most:
            return True
        return self.policy.most > 0 and self._last_call.get(self._oldest(self.compiled)[0], -1) < before

    def _forget(self, key: Key) -> None:
        log_of("sizes").info("%s for %s is forgotten: no more than %d sizes are kept (recompile_limit)", self.name, self.sizes_text(key),
                 self.policy.most)
        del self.compiled[key]

    def _tell(self, key: Key) -> None:
        """Says once a graph that sizes run in torch."""
        if self._is_told:
            return
        self._is_told = True
        if self._is_bound and not self._bindings:
            log_of("sizes").info("%s runs in torch at first (options compile_at_call, sizes_at_once)", self.name)
        elif self._is_bound:
            log.warning("tilefuse runs %s in torch for %s: it %s (options compile_at_call, sizes_at_once, in_background)",
                        self.name, self.sizes_text(key), self.policy.text())
        else:
            log.warning("tilefuse leaves %s to torch: its arguments do not tell all of its sizes", self.name)

    def _torch(self, key: Key, arguments: list[Any]) -> Sequence[Any]:
        self.num_in_torch += 1
        if self._free_layouts and self._is_bound:
            for n, strides in self._traced_strides(key).items():
                # Operators were traced for these strides: a view of another layout may not exist.
                if not lies(arguments[n], strides):
                    arguments[n] = relaid(arguments[n], tuple(arguments[n].shape), strides)
        return self._in_torch(arguments)

    def _traced_strides(self, key: Key) -> Mapping[int, tuple[int, ...]]:
        """Strides of tensor arguments as torch traced them, for these sizes."""
        strides = self._strides.get(key[0])
        if strides is None:
            inputs = with_sizes(_inputs_only(self._gm), self._values(key)).graph.find_nodes(op="placeholder")
            values = {n: node.meta["val"] for n, node in enumerate(inputs) if n in set(self._tensors)}
            strides = {n: tuple(int(s) for s in value.stride()) for n, value in values.items()}
            if len(self._strides) < MOST_COUNTED:
                self._strides[key[0]] = strides
        return strides

    def _values(self, key: Key) -> Sizes:
        return {b.symbol: sympy.Integer(n) for b, n in zip(self._bindings, key[0])}


def _inputs_only(gm: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    for node in gm.graph.find_nodes(op="placeholder"):
        graph.placeholder(node.name).meta = dict(node.meta)
    graph.output(())
    return fx.GraphModule(gm, graph)
