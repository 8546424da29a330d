"""A torch module or function to a graph of ATen operators, recorded in one run over stand-ins without data.

torch.export does the same in two or three runs, with checks for programs to be saved, and takes most of the time of compiling a small
model. This file records the same operators: composite operators with a lowering stay whole, all others are decomposed, writes into
intermediate values become new values. Everything else (writes into inputs, data-dependent control flow, attributes that the model assigns,
higher-order operators) is left to torch.export, which supports it or gives the reason.
"""
from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import operator
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tilefuse.base.errors import UnsupportedError
from tilefuse.frontends.torch.decompositions import decompositions
from tilefuse.frontends.torch.fx import Traced
from tilefuse.frontends.torch.ops import TORCH_OPS

# Errors of a run over stand-ins where this way does not work (and of a torch with other insides).
NOT_THIS_WAY = (RuntimeError, NotImplementedError, TypeError, AttributeError, ImportError, AssertionError, UnsupportedError)
_aten = torch.ops.aten
_FRESH = {_aten.lift_fresh.default, _aten.lift_fresh_copy.default}
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_CONTAINERS = (list, tuple, dict)
_NUMBERS = (bool, int, float, type(None))


def trace(model: Callable[..., Any], arguments: Sequence[Any]) -> Traced:
    """The operators that a module or function runs for arguments like these; parameters and buffers are `held`.

    Raises: UnsupportedError, or another of `NOT_THIS_WAY`, when torch.export is needed; the model's own errors.
    """
    module = model if isinstance(model, torch.nn.Module) else None
    names = argument_names(model, arguments)
    recorder = _Recorder(module)
    stand_ins = recorder.inputs(names, arguments)
    with contextlib.ExitStack() as stack:
        if module is not None:
            stack.enter_context(_stand_ins(module, recorder))
            stack.enter_context(_entered_modules(module, recorder.path))
        stack.enter_context(_as_compiling())
        stack.enter_context(torch.no_grad())
        stack.enter_context(_kept_whole())
        stack.enter_context(recorder.mode)
        stack.enter_context(recorder)
        result = model(*stand_ins)
    return recorder.finish(result)


def argument_names(model: Callable[..., Any], arguments: Sequence[Any]) -> list[str]:
    """A name for every leaf of the arguments: the parameter's, and the way to the leaf."""
    try:
        signature = inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)
    except ValueError:
        # C functions have no signature; they take their arguments by position.
        return _leaf_names({"arguments": tuple(arguments)})
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in signature.parameters.values()):
        raise UnsupportedError("a model with required keyword arguments")
    if not isinstance(model, torch.nn.Module):
        # A function's arguments are numbered, as if it took any number: so they are when a module is made of it.
        return _leaf_names({"arguments": tuple(arguments)})
    return _leaf_names(signature.bind_partial(*arguments).arguments)


def _leaf_names(bound: Mapping[str, Any]) -> list[str]:
    leaves, _ = pytree.tree_flatten_with_path(dict(bound))
    return ["_".join(_key_name(key).lower() for key in path) for path, _ in leaves]


def _key_name(key: Any) -> str:
    for kind in ("key", "idx", "name"):
        if hasattr(key, kind):
            return re.sub(r"[^a-zA-Z0-9]", "_", str(getattr(key, kind)))
    raise UnsupportedError(f"arguments in a {type(key).__name__}")


class _Recorder(TorchDispatchMode):
    """Every operator that reaches torch's dispatcher below autograd becomes a node; a mode of stand-ins beneath computes its results."""

    def __init__(self, module: torch.nn.Module | None) -> None:
        super().__init__()
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.module = module
        self.graph = fx.Graph()
        self.held: dict[str, torch.Tensor] = {}
        self.titles: dict[str, str] = {}
        self.table = decompositions()
        self._node_by_id: dict[int, fx.Node] = {}
        self._alive: list[torch.Tensor] = []  # an id is a tensor's only while it lives
        self._tensors_by_storage: dict[int, list[int]] = {}
        self._stale: set[int] = set()  # tensors whose memory was written through another one
        self._stood_in_for: dict[int, torch.Tensor] = {}
        self._names: set[str] = set()
        self._constants: dict[int, fx.Node] = {}
        self._first_input: fx.Node | None = None
        self._num_lifted = 0
        self.path: list[str] = []  # of the modules that are running, outermost first

    # Start of the run

    def inputs(self, names: Sequence[str], arguments: Sequence[Any]) -> Sequence[Any]:
        """The arguments with stand-ins for tensors, each a placeholder. Raises: UnsupportedError."""
        leaves, spec = pytree.tree_flatten(tuple(arguments))
        fakes = []
        for name, leaf in zip(names, leaves, strict=True):
            if not isinstance(leaf, _NUMBERS) and type(leaf) not in _PLAIN:
                raise UnsupportedError(f"an argument of type {type(leaf).__name__}")
            node = self._placeholder(name)
            self._first_input = self._first_input or node
            fake = self.stand_in(leaf) if isinstance(leaf, torch.Tensor) else leaf
            node.meta["val"] = fake
            if isinstance(leaf, torch.Tensor):
                self._track(fake, node)
            fakes.append(fake)
        tree: tuple[Any, ...] = pytree.tree_unflatten(fakes, spec)
        return tree

    def stand_in(self, tensor: torch.Tensor) -> FakeTensor:
        """A tensor without data like this one. Raises: UnsupportedError for a kind of tensor with its own rules."""
        if type(tensor) not in _PLAIN or tensor.layout != torch.strided or tensor.is_quantized:
            raise UnsupportedError(f"a {type(tensor).__name__} of layout {tensor.layout}")
        # One tensor given twice is two arguments, which later calls may give different tensors: it has a stand-in for each.
        source = tensor.detach() if id(tensor) in self._stood_in_for else tensor
        self._stood_in_for[id(tensor)] = tensor
        return self.mode.from_tensor(source)

    def constant(self, tensor: torch.Tensor, name: str, fake: FakeTensor) -> fx.Node:
        """The placeholder of a tensor that the model holds, before those of the arguments."""
        known = self._constants.get(id(tensor))
        if known is not None:
            return known
        before = self.graph.inserting_before(self._first_input) if self._first_input is not None else contextlib.nullcontext()
        with before:
            node = self._placeholder(name)
        node.meta["val"] = fake
        self.held[node.name] = tensor
        self._constants[id(tensor)] = node
        self._alive.append(tensor)
        return node

    def _placeholder(self, name: str) -> fx.Node:
        node = self.graph.create_node("placeholder", name, name=name)
        if node.name != name and name not in self._names:
            node.name = name  # the graph would not give a node the name of one of Python's functions
        self._names.add(node.name)
        return node

    # The run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Records one operator, decomposed if the table says so."""
        kwargs = kwargs or {}
        if func in _FRESH and not isinstance(args[0], FakeTensor):
            return self._fresh(args[0])
        if func._schema.is_mutable:
            return self._written(func, args, kwargs)
        apart = self.table.get(func)
        if apart is not None:
            with self:
                result = apart(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if func.namespace == "prim" or func.name().startswith("aten::sym_"):
            return func(*args, **kwargs)
        arguments, named = self._nodes(args), self._nodes(kwargs)
        result = func(*args, **kwargs)
        node = self.graph.create_node("call_function", func, arguments, named, name=func._opname)
        node.meta["val"] = result
        node.meta["stack_trace"] = _place_in_the_program()
        node.meta["nn_module_stack"] = {path: (path, "") for path in self.path}
        if isinstance(result, torch.Tensor):
            self._track(result, node)
        elif isinstance(result, (tuple, list)):
            for number, one in enumerate(result):
                if isinstance(one, torch.Tensor):
                    part = self.graph.create_node("call_function", operator.getitem, (node, number), name="getitem")
                    part.meta["val"] = one
                    self._track(one, part)
        return result

    def _fresh(self, tensor: torch.Tensor) -> Any:
        """A tensor made from numbers of the program; its stand-in knows them, so that the program may ask for them."""
        fake = _aten.lift_fresh.default(tensor)
        node = self.constant(tensor, f"c_lifted_tensor_{self._num_lifted}", fake)
        self._num_lifted += 1
        self._track(fake, node)
        return fake

    def _written(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator that writes into its first operand, recorded as one that makes a new value. Raises: UnsupportedError."""
        target = args[0] if args else None
        plain = getattr(getattr(_aten, func._opname.removesuffix("_"), None), func._overloadname, None)
        if func.namespace != "aten" or not func._opname.endswith("_") or plain is None or not isinstance(target, FakeTensor):
            raise UnsupportedError(f"{func} writes into its operands")
        sharing = self._tensors_by_storage.get(target.untyped_storage()._cdata, [])
        if any(self._node_by_id[one].op == "placeholder" for one in sharing):
            raise UnsupportedError(f"{func} writes into an input of the program")
        with self:
            result = plain(*args, **kwargs)
        is_alike = result.shape == target.shape and result.dtype == target.dtype and result.stride() == target.stride()
        if not is_alike or id(result) not in self._node_by_id:
            raise UnsupportedError(f"{func} changes the shape, strides or type of its operand")
        self._node_by_id[id(target)] = self._node_by_id[id(result)]
        self._stale.update(one for one in sharing if one != id(target))
        return target

    def _nodes(self, values: Any) -> Any:
        """Arguments of a node: nodes for tensors."""
        if isinstance(values, torch.Tensor):
            return self._node(values)
        if isinstance(values, (tuple, list)):
            return type(values)(self._nodes(v) for v in values) if type(values) in (tuple, list) else tuple(self._nodes(v) for v in values)
        if isinstance(values, dict):
            return {key: self._nodes(v) for key, v in values.items()}
        return values

    def _node(self, tensor: torch.Tensor) -> fx.Node:
        """The node whose value a tensor is; a tensor that the model holds besides its parameters becomes a constant."""
        node = self._node_by_id.get(id(tensor))
        if id(tensor) in self._stale:
            raise UnsupportedError("a view of a tensor that was written in place")
        if node is not None:
            return node
        if isinstance(tensor, FakeTensor):
            raise UnsupportedError("a value from outside of the run")
        return self.constant(tensor, f"c_{self._attribute(tensor)}", self.stand_in(tensor))

    def _attribute(self, tensor: torch.Tensor) -> str:
        for path, part in self.module.named_modules() if self.module is not None else ():
            for name, value in vars(part).items():
                if value is tensor:
                    return _flat(f"{path}.{name}")
        self._num_lifted += 1
        return f"lifted_tensor_{self._num_lifted - 1}"

    def _track(self, tensor: torch.Tensor, node: fx.Node) -> None:
        if id(tensor) in self._node_by_id:
            return
        self._alive.append(tensor)
        self._node_by_id[id(tensor)] = node
        self._tensors_by_storage.setdefault(tensor.untyped_storage()._cdata, []).append(id(tensor))

    def track_held(self, fake: torch.Tensor, node: fx.Node) -> None:
        """A stand-in of a parameter or a buffer."""
        self._track(fake, node)

    # Its end

    def finish(self, result: Any) -> Traced:
        """The graph with its outputs, without unused nodes."""
        leaves, spec = pytree.tree_flatten(result)
        for leaf in leaves:
            if not isinstance(leaf, (torch.Tensor, *_NUMBERS)):
                raise UnsupportedError(f"a result of type {type(leaf).__name__}")
        self.graph.output([self._node(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])
        self.graph.eliminate_dead_code()
        return Traced(self.graph, self.held, spec, self.titles)


def _flat(path: str) -> str:
    """The name of an attribute, as torch.export writes it."""
    return re.sub(r"[^a-zA-Z0-9]", "_", path.strip(".").removeprefix("self_")).lower()


@contextlib.contextmanager
def _stand_ins(module: torch.nn.Module, recorder: _Recorder) -> Iterator[None]:
    """The module with stand-ins for its parameters and buffers. Raises: UnsupportedError when the run assigned attributes."""
    places: list[tuple[dict[str, Any], str, torch.Tensor, FakeTensor]] = []
    fakes: dict[int, FakeTensor] = {}
    for kind, prefix in (("_parameters", "p_"), ("_buffers", "b_")):
        for path, part in module.named_modules(remove_duplicate=False):
            for name, tensor in getattr(part, kind).items():
                if tensor is not None:
                    fake = fakes[id(tensor)] if id(tensor) in fakes else recorder.stand_in(tensor)
                    fakes[id(tensor)] = fake
                    node = recorder.constant(tensor, prefix + _flat(f"{path}.{name}"), fake)
                    recorder.titles.setdefault(node.name, f"{path}.{name}".strip("."))
                    recorder.track_held(fake, node)
                    places.append((getattr(part, kind), name, tensor, fake))
    before = {id(part): (part, dict(vars(part))) for part in module.modules()}
    for holder, name, _, fake in places:
        holder[name] = fake
    try:
        yield
        replaced = [name for holder, name, _, fake in places if holder.get(name) is not fake]
    finally:
        for holder, name, tensor, _ in places:
            holder[name] = tensor
        known = {id(fake) for _, _, _, fake in places}
        assigned = [name for part, attributes in before.values() for name in _assigned(part, attributes, known)]
    if replaced or assigned:
        raise UnsupportedError(f"a model that assigns its attributes {', '.join(replaced + assigned)}")


def _assigned(part: torch.nn.Module, before: dict[str, Any], known: set[int]) -> list[str]:
    """Attributes of a module that the run made or replaced by tensors, or put results into. All that hold stand-ins are put back."""
    now = vars(part)
    assigned = []
    for name, value in list(now.items()):
        if name in ("_parameters", "_buffers", "_modules"):
            continue
        if isinstance(value, torch.Tensor):
            changed = is_assigned = value is not before.get(name)
        else:
            fakes = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, FakeTensor)] if isinstance(value, _CONTAINERS) else []
            # A list of weights, which recurrent modules make anew, says nothing that is not said already.
            changed, is_assigned = bool(fakes), not all(id(leaf) in known for leaf in fakes)
        if is_assigned:
            assigned.append(name)
        if changed and name in before:
            now[name] = before[name]
        elif changed:
            del now[name]
    return assigned


@contextlib.contextmanager
def _entered_modules(module: torch.nn.Module, path: list[str]) -> Iterator[None]:
    """Keeps in `path` which modules of a model are running. The hooks are global: a module with hooks of its own may run differently."""
    name_by_id = {id(part): name for name, part in module.named_modules()}
    thread = threading.get_ident()

    def enter(part: torch.nn.Module, inputs: Any) -> None:
        if threading.get_ident() == thread:
            path.append(name_by_id.get(id(part), path[-1] if path else ""))

    def leave(part: torch.nn.Module, inputs: Any, result: Any) -> None:
        if threading.get_ident() == thread and path:
            path.pop()

    handles = (register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _as_compiling() -> Iterator[None]:
    """Makes models see that they are being compiled, so that they do not use torch's fused layers."""
    flags = {"_is_compiling_flag": True, "_is_exporting_flag": True}
    before = {name: getattr(torch.compiler, name) for name in flags}
    fused = torch.backends.mha.get_fastpath_enabled()
    for name, value in flags.items():
        setattr(torch.compiler, name, value)
    torch.backends.mha.set_fastpath_enabled(False)
    # The processor's library takes whole recurrent layers, which are expressed here step by step.
    by_library = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(by_library)
        torch.backends.mha.set_fastpath_enabled(fused)
        for name, value in before.items():
            setattr(torch.compiler, name, value)


@contextlib.contextmanager
def _kept_whole() -> Iterator[None]:
    """Composite operators that have a lowering reach the recorder as one operator; torch would take them apart before."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch.export.exported_program import _override_composite_implicit_decomp

    with _override_composite_implicit_decomp(dict.fromkeys(composites(), _whole)), enable_python_dispatcher():
        yield


def _whole(*_: Any, **__: Any) -> Any:
    return NotImplemented


@functools.cache
def composites() -> tuple[Any, ...]:
    """Composite operators with a lowering here, as far as this torch has them."""
    from torch._export.utils import _is_preservable_cia_op

    operators = []
    for name in sorted(TORCH_OPS):
        namespace, packet, overload = name.split(".")
        op = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload, None)
        if op is not None and _is_preservable_cia_op(op):
            operators.append(op)
    return tuple(operators)


_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep
_OWN_FILES = (os.path.dirname(torch.__file__) + os.sep, _PACKAGE, contextlib.__file__)


def _place_in_the_program() -> str:
    """The innermost line of the run that is neither torch's nor ours, in the form of a traceback; "" if there is none."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN_FILES):
        frame = frame.f_back
    if frame is None:
        return ""
    code = frame.f_code
    text = linecache.getline(code.co_filename, frame.f_lineno).strip()
    return f'File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}\n    {text}'
