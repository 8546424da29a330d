"""A script over a library becomes a call graph: functions looked up, kinds checked, sizes unified with those of the arguments.

The calls of a composed function replace a call of it. `resolve` needs no sizes and runs once for a script; `call_graph` completes the graph
for some shapes and strides. A column-major matrix is replaced by its transposed, which is row-major, if every call that touches it has a
sibling for transposed matrices.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from tilefuse.base.errors import NameLookupError, ParseError, ShapeError, TypeMismatchError, UserError, nearest
from tilefuse.base.source import Span
from tilefuse.ir.dtype import DType
from tilefuse.scripts.language.elementary import CallGraph, ComposedFunction, ElementaryFunction, FunctionCall, Parameter, Variable
from tilefuse.scripts.language.routine_library import AnyFunction, FunctionLibrary
from tilefuse.scripts.language.syntax import Name, Number, Script, Statement, parse_calls


@dataclass(frozen=True)
class ResolvedCall:
    """A statement and the function that it calls; `caller`: the composed function that the call is part of, if there is one."""

    statement: Statement
    function: ElementaryFunction
    caller: str = ""


@dataclass(frozen=True)
class ResolvedScript:
    """A script with checked names and kinds, and without sizes.

    kinds   name -> scalar, vector or matrix
    dtypes  name -> element type
    """

    script: Script
    library: FunctionLibrary
    calls: tuple[ResolvedCall, ...]
    kinds: Mapping[str, str]
    dtypes: Mapping[str, DType]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in the order of the script."""
        return tuple(n.text for n in self.script.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the results, in the order of the script."""
        return tuple(n.text for n in self.script.results)


@dataclass(frozen=True)
class ArgumentShape:
    """Shape and strides of an argument. Units: strides in words; () for dense in the order that the script declares."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()


def resolve(script: Script, library: FunctionLibrary) -> ResolvedScript:
    """Functions, kinds and element types of a script.

    Raises: NameLookupError for unknown functions and variables; ParseError for a name assigned twice or never; TypeMismatchError for an
    argument of another kind or element type than the function takes.
    """
    return _Resolver(script, library).resolved()


class _Resolver:
    def __init__(self, script: Script, library: FunctionLibrary) -> None:
        self.script, self.library = script, library
        # Names that local values of composed functions must not have.
        self.taken = {*script.declared, *(r.text for s in script.statements for r in s.results)}
        # Variables that have a value so far, with the places of their assignments.
        self.spans: dict[str, Span] = {}
        self.kinds: dict[str, str] = {}
        self.dtypes: dict[str, tuple[DType, str]] = {}

    def resolved(self) -> ResolvedScript:
        declared = self.script.declared
        for name in self.script.inputs:
            if name.text not in declared:
                raise NameLookupError(f"the input {name.text} is not declared", where=name.span,
                                      hint=nearest(name.text, declared) or f"declare it: scalar {name.text}; or vector or matrix")
            self.spans[name.text], self.kinds[name.text] = name.span, declared[name.text][0]
        calls = tuple(call for s in self.script.statements for call in self.resolved_calls(s))
        inputs = {n.text for n in self.script.inputs}
        for name in self.script.results:
            if name.text in inputs:
                raise ParseError(f"{name.text} is an input and is returned unchanged", where=name.span,
                                 hint=f"return a copy: t = scopy({name.text});")
            if name.text not in self.spans:
                raise NameLookupError(f"{name.text} is returned and never computed", where=name.span, hint=nearest(name.text, self.spans))
        names = [n.text for n in self.script.results]
        for name in self.script.results:
            if names.count(name.text) > 1:
                raise ParseError(f"{name.text} is returned twice", where=name.span, hint="return each result once")
        for name in self.script.inputs:
            if name.text not in self.dtypes:
                raise ParseError(f"the input {name.text} is used by no call", where=name.span, hint="drop it from the inputs")
        return ResolvedScript(self.script, self.library, self.needed_calls(calls), self.kinds, {k: v for k, (v, _) in self.dtypes.items()})

    def needed_calls(self, calls: Sequence[ResolvedCall]) -> tuple[ResolvedCall, ...]:
        """The calls that a result depends on."""
        needed = {n.text for n in self.script.results}
        needed_calls: list[ResolvedCall] = []
        for call in reversed(calls):
            if needed & {r.text for r in call.statement.results}:
                needed_calls.append(call)
                needed |= {a.text for a in call.statement.arguments if isinstance(a, Name)}
        return tuple(reversed(needed_calls))

    def resolved_calls(self, statement: Statement, within: tuple[str, ...] = ()) -> Iterator[ResolvedCall]:
        """The call, or the calls of a composed function; `within`: the composed functions around it."""
        function = self.called_function(statement)
        for argument, parameter in zip(statement.arguments, function.inputs, strict=True):
            self.check_argument(argument, parameter, function)
        if len(statement.results) != len(function.outputs):
            raise ParseError(f"{function.name} has {_count(len(function.outputs), 'result')}, {len(statement.results)} named",
                             where=statement.results[0].span, hint=f"write {_form(function)}")
        if isinstance(function, ComposedFunction):
            for result, parameter in zip(statement.results, function.outputs, strict=True):
                self.check_new(result, parameter, function)
            if function.name in within:
                raise UserError(f"{function.name} is composed of calls of itself ({function.origin})", where=statement.function.span)
            for inner in self.calls_within(statement, function):
                yield from self.resolved_calls(inner, (*within, function.name))
            return
        for result, parameter in zip(statement.results, function.outputs, strict=True):
            self.add_result(result, parameter, function)
        yield ResolvedCall(statement, function, within[0] if within else "")

    def calls_within(self, statement: Statement, function: ComposedFunction) -> Iterator[Statement]:
        """The calls of a composed function with the script's names; their place in the text is that of its call."""
        at = statement.function.span
        names: dict[str, Name | Number] = {p.name: a for p, a in zip(function.inputs, statement.arguments, strict=True)}
        names |= {p.name: r for p, r in zip(function.outputs, statement.results, strict=True)}

        def renamed(operand: Name | Number) -> Name | Number:
            if isinstance(operand, Number):
                return Number(operand.value, at)
            if operand.text not in names:
                text = f"{statement.results[0].text}_{operand.text}"
                while text in self.taken:
                    text += "_"
                self.taken.add(text)
                names[operand.text] = Name(text, at)
            return names[operand.text]

        for inner in parse_calls(function.calls, function.name):
            results = tuple(renamed(r) for r in inner.results)
            if any(isinstance(r, Number) for r in results):
                raise UserError(f"{function.name} assigns to its input {inner.results[0].text} ({function.origin})", where=at)
            yield Statement(tuple(r for r in results if isinstance(r, Name)), Name(inner.function.text, at),
                            tuple(renamed(a) for a in inner.arguments))

    def called_function(self, statement: Statement) -> AnyFunction:
        name = statement.function
        overloads = self.library.called(name.text)
        if not overloads:
            known = self.library.calls
            raise NameLookupError(f"there is no function {name.text}", where=name.span,
                                  hint=nearest(name.text, known) or f"the library has: {', '.join(sorted(known))}")
        for function in overloads:
            if len(function.inputs) == len(statement.arguments):
                return function
        counts = " or ".join(str(len(f.inputs)) for f in overloads)
        raise ParseError(f"{name.text} takes {counts} arguments, {len(statement.arguments)} given",
                         where=name.span, hint="write " + " or ".join(map(_form, overloads)))

    def check_argument(self, argument: Name | Number, parameter: Parameter, function: AnyFunction) -> None:
        if isinstance(argument, Number):
            if parameter.extents:
                raise TypeMismatchError(f"{function.name} takes a {parameter.kind} as {parameter.name}, not the number {argument.value:g}",
                                        where=argument.span, hint=f"write {_form(function)}")
            return
        if argument.text not in self.spans:
            later = any(r.text == argument.text for s in self.script.statements for r in s.results)
            hint = "it is computed further down: move the call up" if later else "name it in `input`" \
                if argument.text in self.script.declared else nearest(argument.text, self.spans)
            raise NameLookupError(f"{argument.text} has no value here", where=argument.span, hint=hint)
        kind = self.kinds[argument.text]
        if kind != parameter.kind:
            raise TypeMismatchError(f"{argument.text} is a {kind}, {function.name} takes a {parameter.kind} as {parameter.name}",
                                    where=argument.span, hint=f"write {_form(function)}")
        self.check_dtype(argument, parameter, function)

    def add_result(self, result: Name, parameter: Parameter, function: ElementaryFunction) -> None:
        self.check_new(result, parameter, function)
        self.spans[result.text], self.kinds[result.text] = result.span, parameter.kind
        self.check_dtype(result, parameter, function)

    def check_new(self, result: Name, parameter: Parameter, function: AnyFunction) -> None:
        if result.text in self.spans:
            raise ParseError(f"{result.text} has a value already (line {self.spans[result.text].line})", where=result.span,
                             hint="a result is a new value: give it another name")
        declared = self.script.declared.get(result.text)
        if declared is not None and declared[0] != parameter.kind:
            raise TypeMismatchError(f"{result.text} is declared as a {declared[0]}, {function.name} gives a {parameter.kind}",
                                    where=result.span, hint=f"declare it: {parameter.kind} {result.text};")

    def check_dtype(self, name: Name, parameter: Parameter, function: AnyFunction) -> None:
        """Records the element type of a variable; all calls must have the same."""
        dtype = parameter.dtype or function.dtype
        first, first_function = self.dtypes.setdefault(name.text, (dtype, function.name))
        if first != dtype:
            raise TypeMismatchError(f"{name.text} is {first} for {first_function} and {dtype} for {function.name}", where=name.span,
                                    hint="use functions of one element type (s...: f32, d...: f64)")


def call_graph(resolved: ResolvedScript, shapes: Mapping[str, ArgumentShape], name: str = "script") -> CallGraph:
    """The calls with all sizes. `shapes` has every input that is a vector or matrix; scalars may be left out.

    Raises: ShapeError where sizes disagree, with the shapes of both sides; UserError for an input without a shape.
    """
    variables: dict[str, Variable] = {}
    for name_of_input in resolved.script.inputs:
        variables[name_of_input.text] = _input(resolved, name_of_input, shapes.get(name_of_input.text))
    calls: list[FunctionCall] = []
    for call in resolved.calls:
        sized = _sized(call, variables)
        calls.append(sized)
        for parameter, result in zip(call.function.outputs, call.statement.results, strict=True):
            shape = tuple(sized.sizes[e] for e in parameter.extents)
            order = _result_order(resolved, call, parameter, result.text, variables)
            variables[result.text] = Variable(result.text, resolved.dtypes[result.text], shape, order)
    graph = CallGraph(name, variables, resolved.inputs, resolved.outputs, tuple(calls))
    return _with_transposed_matrices(graph, resolved.library)


def _input(resolved: ResolvedScript, name: Name, argument: ArgumentShape | None) -> Variable:
    kind, dtype = resolved.kinds[name.text], resolved.dtypes[name.text]
    rank = ("scalar", "vector", "matrix").index(kind)
    if argument is None:
        if rank:
            raise UserError(f"the {kind} {name.text} has no shape", where=name.span,
                            hint="every vector and matrix input needs one")
        return Variable(name.text, dtype, ())
    shape, strides = argument.shape, argument.strides
    if rank == 0 and all(e == 1 for e in shape):
        return Variable(name.text, dtype, ())
    if len(shape) != rank:
        expected = ("a number or an array of one word", "an array of one dimension", "an array of two dimensions")[rank]
        raise ShapeError(f"{name.text} is a {kind}, the argument has shape {_shape(shape)}", where=name.span, hint=f"give {expected}")
    declared = bool(resolved.script.declared[name.text][1])
    column_major = declared if not strides or rank < 2 else _is_column_major(shape, strides, declared)
    return Variable(name.text, dtype, shape, column_major, strides)


def _is_column_major(shape: tuple[int, ...], strides: tuple[int, ...], declared: bool) -> bool:
    """Whether the first dimension is contiguous; with one row or one column both may be, and the declaration decides."""
    fits_columns = strides[0] == 1 or shape[0] <= 1
    fits_rows = strides[1] == 1 or shape[1] <= 1
    return declared if fits_columns == fits_rows else fits_columns


def _result_order(resolved: ResolvedScript, call: ResolvedCall, parameter: Parameter, result: str,
                  variables: Mapping[str, Variable]) -> bool:
    """Whether a result is stored column-major: as declared, else in the order of the first matrix among the arguments."""
    if len(parameter.extents) < 2:
        return False
    declared = resolved.script.declared.get(result, ("", None))[1]
    if declared is not None:
        return declared
    matrices = [variables[a.text] for a in call.statement.arguments if isinstance(a, Name) and len(variables[a.text].shape) == 2]
    return bool(matrices) and matrices[0].column_major


def _sized(call: ResolvedCall, variables: Mapping[str, Variable]) -> FunctionCall:
    """The call with its sizes unified over the arguments."""
    function, statement = call.function, call.statement
    if function.triangle:
        matrix, p = next((a, p) for a, p in zip(statement.arguments, function.inputs, strict=True) if len(p.extents) == 2)
        assert isinstance(matrix, Name)
        if len(set(variables[matrix.text].shape)) > 1:
            raise ShapeError(f"{_called(call)}: {p.name} is square, {matrix.text} is {_shape(variables[matrix.text].shape)}",
                             where=matrix.span, hint=f"the {function.triangle} triangle is that of a square matrix")
    sizes: dict[str, int] = {}
    source: dict[str, tuple[Name, int]] = {}
    for argument, parameter in zip(statement.arguments, function.inputs, strict=True):
        if isinstance(argument, Number):
            continue
        for dimension, (size, extent) in enumerate(zip(parameter.extents, variables[argument.text].shape, strict=True)):
            if sizes.setdefault(size, extent) != extent:
                _disagree(call, size, source[size], (argument, dimension), variables)
            source.setdefault(size, (argument, dimension))
    arguments = tuple(a.value if isinstance(a, Number) else a.text for a in statement.arguments)
    return FunctionCall(function, arguments, tuple(r.text for r in statement.results), sizes, statement.function.span)


def _disagree(call: ResolvedCall, size: str, first: tuple[Name, int], second: tuple[Name, int],
              variables: Mapping[str, Variable]) -> NoReturn:
    one, other = variables[first[0].text], variables[second[0].text]
    hint = None
    if len(one.shape) == 2 and len(other.shape) == 1 and other.shape[0] == one.shape[1 - first[1]]:
        hint = f"{other.name} has {one.name}'s other extent: is the transposed product meant ({call.function.transposed or 'A^T'})?"
    raise ShapeError(f"{_called(call)}: {size} is {one.shape[first[1]]} for {one.name} {_shape(one.shape)} and {other.shape[second[1]]} "
                     f"for {other.name} {_shape(other.shape)}", where=second[0].span, hint=hint)


def _with_transposed_matrices(graph: CallGraph, library: FunctionLibrary) -> CallGraph:
    """The graph with column-major matrices replaced by their transposed, if every call that touches them has a sibling."""
    transposed = {v.name for v in graph.variables.values() if v.column_major}
    changed = True
    while transposed and changed:
        changed = False
        for call in graph.calls:
            matrices = {n for n in (*call.arguments, *call.results) if isinstance(n, str) and len(graph.variables[n].shape) == 2}
            if matrices & transposed and (not matrices <= transposed or call.function.transposed not in library.functions):
                transposed -= matrices
                changed = True
    if not transposed:
        return graph
    variables = {n: replace(v, shape=v.shape[::-1], strides=v.strides[::-1], column_major=False, is_transposed=True)
                 if n in transposed else v
                 for n, v in graph.variables.items()}
    calls = tuple(_sibling(c, library) if transposed & {*c.arguments, *c.results} else c for c in graph.calls)
    return replace(graph, variables=variables, calls=calls)


def _sibling(call: FunctionCall, library: FunctionLibrary) -> FunctionCall:
    """The call of the function for transposed operands."""
    sibling = library.functions[call.function.transposed]
    order = call.function.turned or tuple(range(len(call.arguments)))
    arguments = tuple(call.arguments[n] for n in order)
    extents = [call.function.inputs[n].extents for n in order]
    sizes: dict[str, int] = {}
    for parameter, old in zip(sibling.inputs, extents, strict=True):
        named = old[::-1] if len(old) == 2 else old
        sizes |= {new: call.sizes[o] for new, o in zip(parameter.extents, named, strict=True)}
    return replace(call, function=sibling, arguments=arguments, sizes=sizes)


def _called(call: ResolvedCall) -> str:
    """The call's function as text, and the composed function around it."""
    return _form(call.function) + (f", which {call.caller} calls" if call.caller else "")


def _form(function: AnyFunction) -> str:
    """A call of the function, as text."""
    inputs = ", ".join(p.name for p in function.inputs)
    return f"{', '.join(p.name for p in function.outputs)} = {function.called or function.name}({inputs})"


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"
