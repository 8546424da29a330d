"""One folder of a library of elementary functions: `function.toml` and the routines beside it become ElementaryFunction values.

Every fault becomes a `Slip` with file, key, value and remedy. Reading raises no error, so that one reading lists all faults. docs/blas.md
describes the format.
"""
from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from tilefuse.base.errors import CompilerError, nearest
from tilefuse.base.search.limits import SEARCH
from tilefuse.base.source import Span
from tilefuse.ir.affine import Affine, bounds
from tilefuse.ir.dtype import DTYPES, F32, F64, DType
from tilefuse.scripts.language.agreement import disagreements
from tilefuse.scripts.language.elementary import (
    ComposedFunction,
    ElementaryFunction,
    Geometry,
    HigherOrder,
    Implementation,
    Parameter,
    Place,
    SharedPlace,
    ThreadMapping,
)
from tilefuse.scripts.language.meaning import check_meaning
from tilefuse.scripts.language.numbers import coordinate, whole_number
from tilefuse.scripts.language.syntax import WORDS, parse_calls
from tilefuse.target.capabilities import BLOCK_THREADS

METADATA = "function.toml"
FUNCTION_KEYS = ("brief", "kind", "names", "called", "inputs", "outputs", "types", "over", "operator", "neutral", "padding", "meaning",
                 "transposed", "turned", "positions", "state", "combine", "finish", "implementation", "like", "macros", "triangle", "calls")
# Keys of a function that consists of calls of others.
COMPOSED_KEYS = ("brief", "names", "called", "inputs", "outputs", "calls")
COMPOSED = "composed"
IMPLEMENTATION_KEYS = ("name", "threads", "macros", "tile", "places", "routines", "text")
_PARAMETER = re.compile(r"([A-Za-z_]\w*)\s*(?:\[\s*([a-z]\w*)\s*(?:,\s*([a-z]\w*)\s*)?\])?\Z")
_ROUTINE = re.compile(r"\bTF_ROUTINE\s+[\w\s*&:]*?\b([A-Za-z_]\w*)\s*\(([^()]*)\)")
_NAME = r"[A-Za-z_]\w*"
_RESERVED = ("tx", "ty", "REAL", "INDEX", "VEC", "BX", "BY")


@dataclass(frozen=True)
class Slip:
    """A fault of a function of a library: the file, its key, the fault and the remedy."""

    file: str
    key: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        place = f"{self.file}: {self.key}: " if self.key else f"{self.file}: "
        return place + self.message + (f"\n  hint: {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class Listed:
    """Names of a function: its own, and the one that scripts call ("": the same). `composed`: it consists of calls of others."""

    name: str
    called: str
    dtype: DType
    composed: bool
    folder: Path


@dataclass
class MetadataReader:
    """Reads one folder and collects faults in `slips`. `functions` returns the functions without faults."""

    folder: Path
    slips: list[Slip] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.file = str(self.folder / METADATA)
        self.text_folder = self.folder

    def slip(self, key: str, message: str, remedy: str = "", file: str = "") -> None:
        """Records a fault."""
        self.slips.append(Slip(file or self.file, key, message, remedy))

    # -- values of one key

    def take(self, table: Mapping[str, Any], key: str, kind: type, default: Any, prefix: str = "") -> Any:
        """The value of a key if it has the kind; else the default, and a fault."""
        value = table.get(key, default)
        if key in table and (not isinstance(value, kind) or kind is int and isinstance(value, bool)):
            words = {str: "a text in quotes", list: "a list in [ ]", dict: "a table in { }", bool: "true or false"}
            self.slip(prefix + key, f"{value!r} is not {words[kind]}", f"for example {_EXAMPLES.get(key, key + ' = ...')}")
            return default
        return value

    def known_keys(self, table: Mapping[str, Any], known: tuple[str, ...], prefix: str = "") -> None:
        """Records a fault for every unknown key."""
        for key in table:
            if key not in known:
                self.slip(prefix + key, f"unknown key (value {_short(table[key])})",
                          nearest(key, known) or f"known keys: {', '.join(known)}")

    def texts(self, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
        """A list of texts."""
        texts = self.take(table, key, list, [])
        wrong = [x for x in texts if not isinstance(x, str)]
        if wrong:
            self.slip(key, f"{wrong[0]!r} is not a text in quotes", f"for example {_EXAMPLES.get(key, '')}")
        return tuple(x for x in texts if isinstance(x, str))

    # -- the function

    def table(self, folder: Path) -> dict[str, Any] | None:
        """The keys of a folder's metadata, with those of the function that it is `like`; None if they have a fault."""
        file = folder / METADATA
        try:
            own = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            self.slip("", f"cannot be read: {error.strerror}", f"every folder of a library holds a {METADATA}", str(file))
            return None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            self.slip("", f"is not TOML: {error}", "see docs/blas.md for a whole example", str(file))
            return None
        like = self.take(own, "like", str, "")
        if not like:
            return own
        other = folder / like
        if folder != self.folder or other.resolve() == folder.resolve():
            cause = "another function is like this one" if folder != self.folder else "it names itself"
            self.slip("like", f"{like!r} leads to a circle: {cause}", "name the function that has the keys itself", str(file))
            return None
        base = self.table(other)
        if base is None:
            return None
        if "implementation" not in own:
            self.text_folder = other
        # A function never takes its names from another one.
        return {k: v for k, v in base.items() if k not in ("names", "called", "transposed", "turned")} | own

    def listed(self) -> tuple[Listed, ...]:
        """The functions of the folder by their names; other keys are not checked."""
        table = self.table(self.folder) or {}
        names = self.take(table, "names", dict, {})
        return tuple(Listed(names[d.name], self.by_type(table, "called", d), d, table.get("kind") == COMPOSED, self.folder)
                     for d in (F32, F64) if isinstance(names.get(d.name), str))

    def functions(self, only: DType | None = None) -> tuple[ElementaryFunction | ComposedFunction, ...]:
        """One function for each element type of `names`, or for the type `only`; none if the metadata have faults."""
        table = self.table(self.folder)
        if table is None:
            return ()
        self.known_keys(table, FUNCTION_KEYS)
        names = self.take(table, "names", dict, {})
        for type_name, name in names.items():
            if type_name not in ("f32", "f64"):
                self.slip(f"names.{type_name}", "is no element type of a function", "names = { f32 = \"saxpy\", f64 = \"daxpy\" }")
            elif not isinstance(name, str) or not re.fullmatch(_NAME, name) or name in WORDS:
                self.slip(f"names.{type_name}", f"{name!r} is no name that a script can call",
                          "letters, digits and _, no word of the language")
        if not names:
            self.slip("names", "no name is given", "names = { f32 = \"saxpy\", f64 = \"daxpy\" }")
        functions: list[ElementaryFunction | ComposedFunction] = []
        read = self.composed if table.get("kind") == COMPOSED else self.function
        for dtype in (F32, F64):
            if only in (None, dtype) and isinstance(names.get(dtype.name), str):
                before = len(self.slips)
                function = read(table, dtype, names)
                self.slips[before:] = [s for s in dict.fromkeys(self.slips[before:]) if s not in self.slips[:before]]
                functions += [function] if function is not None else []
        return tuple(functions)

    def composed(self, table: Mapping[str, Any], dtype: DType, names: Mapping[str, str]) -> ComposedFunction | None:
        """The function that consists of calls of others, for one element type; None if it has faults."""
        before = len(self.slips)
        self.known_keys({k: v for k, v in table.items() if k != "kind"}, COMPOSED_KEYS)
        inputs, outputs = self.parameters(table, "inputs"), self.parameters(table, "outputs")
        function = ComposedFunction(names[dtype.name], dtype, inputs, outputs, self.by_type(table, "calls", dtype),
                                self.by_type(table, "called", dtype), self.take(table, "brief", str, ""), str(self.folder))
        for name in dict.fromkeys(p.name for p in outputs if p in inputs):
            self.slip("outputs", f"{name} names two parameters", "results are new values: give the output another name")
        if not outputs:
            self.slip("outputs", "no output is given", _EXAMPLES["outputs"])
        if not function.calls:
            self.slip("calls", f"no calls are given for {dtype}", 'calls = { f32 = "t = sgemv(A, x); y = svadd(t, x);" }')
        else:
            try:
                parse_calls(function.calls, function.name)
            except CompilerError as error:
                place = error.where.column if isinstance(error.where, Span) else 1
                self.slip(f"calls.{dtype}", f"{error.message} (character {place} of {function.calls!r})", error.hint or "")
        return function if len(self.slips) == before else None

    def function(self, table: Mapping[str, Any], dtype: DType, names: Mapping[str, str]) -> ElementaryFunction | None:
        """The function for one element type; None if it has faults."""
        before = len(self.slips)
        kind = self.kind(table)
        inputs, outputs = self.parameters(table, "inputs"), self.parameters(table, "outputs")
        if not outputs:
            self.slip("outputs", "no output is given", _EXAMPLES["outputs"])
        parameter_names = [p.name for p in (*inputs, *outputs)]
        for name in dict.fromkeys(n for n in parameter_names if parameter_names.count(n) > 1):
            self.slip("outputs", f"{name} names two parameters", "results are new values: give the output another name")
        if kind is None or len(self.slips) > before:
            return None
        over, operator = self.texts(table, "over"), self.take(table, "operator", str, "")
        function = ElementaryFunction(
            name=names[dtype.name], kind=kind, dtype=dtype, inputs=inputs, outputs=outputs, over=over, operator=operator,
            neutral=self.take(table, "neutral", str, "0"), padding=self.named(table, "padding", inputs + outputs),
            meaning=self.named(table, "meaning", outputs, dtype), transposed=self.by_type(table, "transposed", dtype),
            turned=tuple(self.take(table, "turned", list, [])), positions=self.take(table, "positions", bool, False),
            state=self.take(table, "state", str, ""), finishes="finish" in table, called=self.by_type(table, "called", dtype),
            brief=self.take(table, "brief", str, ""), origin=str(self.folder), triangle=self.take(table, "triangle", str, ""))
        for key, message, remedy in disagreements(function, table):
            self.slip(key, message, remedy)
        self.meanings(function)
        fields = self.take(table, "implementation", list, [])
        if not fields:
            self.slip("implementation", "no implementation is given", "add an [[implementation]] table: docs/blas.md shows one")
        implementations = tuple(i for number, one in enumerate(fields) for i in self.implementations(function, table, one, number))
        names_taken: set[str] = set()
        for implementation in implementations:
            if implementation.name in names_taken:
                self.slip("implementation.name", f"two implementations are called {implementation.name!r}", "give them different names")
            names_taken.add(implementation.name)
        if len(self.slips) > before:
            return None
        return replace(function, implementations=implementations)

    def kind(self, table: Mapping[str, Any]) -> HigherOrder | None:
        """The higher-order function."""
        value = self.take(table, "kind", str, "")
        kind = next((k for k in HigherOrder if k.value == value), None)
        if kind is None:
            legal = [k.value for k in HigherOrder]
            self.slip("kind", f"{value!r} is no kind of function" if value else "is missing",
                      nearest(value, legal) or f"one of: {', '.join(legal)}")
        return kind

    def parameters(self, table: Mapping[str, Any], key: str) -> tuple[Parameter, ...]:
        """Parameters from texts like "A[m, n]", "x[n]", "alpha"."""
        types = self.take(table, "types", dict, {})
        parameters: list[Parameter] = []
        for text in self.texts(table, key):
            match = _PARAMETER.match(text.strip())
            if match is None or match[1] in _RESERVED:
                reason = f"{text!r} is a name of the generated code" if match else f"{text!r} is no parameter"
                self.slip(key, reason, 'write "alpha" for a scalar, "x[n]" for a vector, "A[m, n]" for a matrix; sizes in small letters')
                continue
            dtype = types.get(match[1])
            if dtype is not None and dtype not in DTYPES:
                self.slip(f"types.{match[1]}", f"{dtype!r} is no data type", nearest(str(dtype), DTYPES) or "for example i64")
                dtype = None
            parameters.append(Parameter(match[1], tuple(e for e in match.groups()[1:] if e), DTYPES[dtype] if dtype else None))
        return tuple(parameters)

    def named(self, table: Mapping[str, Any], key: str, parameters: tuple[Parameter, ...], dtype: DType | None = None) -> dict[str, str]:
        """A table of texts by parameter name; with `dtype`, a text may also be given by element type: { f32 = ..., f64 = ... }."""
        names = [p.name for p in parameters]
        texts: dict[str, str] = {}
        for name, value in self.take(table, key, dict, {}).items():
            if dtype is not None and isinstance(value, dict):
                value = value.get(dtype.name)
            if name not in names:
                self.slip(f"{key}.{name}", f"{name} is none of {', '.join(names)}", nearest(name, names) or "")
            elif not isinstance(value, str):
                self.slip(f"{key}.{name}", f"{value!r} is not a text in quotes", f'{name} = "..."')
            else:
                texts[name] = value
        return texts

    def by_type(self, table: Mapping[str, Any], key: str, dtype: DType) -> str:
        """A name that differs by element type: { f32 = ..., f64 = ... }."""
        by_type = self.take(table, key, dict, {}).get(dtype.name, "")
        if not isinstance(by_type, str):
            self.slip(f"{key}.{dtype.name}", f"{by_type!r} is not a text in quotes", f'{key} = {{ f32 = "s...", f64 = "d..." }}')
            return ""
        return by_type

    def meanings(self, function: ElementaryFunction) -> None:
        """Records meanings that do not parse, or that name values which the function does not have."""
        if any(s.key == "outputs" for s in self.slips):
            return
        for output in function.meaning:
            try:
                check_meaning(function, output)
            except CompilerError as error:
                place = error.where.column if isinstance(error.where, Span) else 1
                self.slip(f"meaning.{output}", f"{error.message} (character {place} of {function.meaning[output]!r})", error.hint or "")

    # -- implementations

    def implementations(self, function: ElementaryFunction, table: Mapping[str, Any], fields: Any, number: int) -> Iterator[Implementation]:
        """Every geometry of one [[implementation]] table."""
        prefix = f"implementation[{number}]."
        if not isinstance(fields, dict):
            self.slip(prefix[:-1], f"{_short(fields)} is no table", "write [[implementation]] on one line, then its keys")
            return
        self.known_keys(fields, IMPLEMENTATION_KEYS, prefix)
        name = self.take(fields, "name", str, "", prefix)
        if not re.fullmatch(_NAME, name):
            self.slip(prefix + "name", f"{name!r} is no name", 'letters, digits and _, for example name = "registers"')
            return
        before = len(self.slips)
        constants = self.take(table, "macros", dict, {})
        source, routines = self.routine_text(function, table, fields, name, prefix)
        if len(self.slips) > before:
            return
        for threads, macros in self.geometries(fields, table, prefix):
            values = {"VEC": 16 // function.dtype.itemsize, "BX": threads[0], "BY": threads[1], **macros}
            extents = self.tile(function, fields, values, prefix)
            if extents is None:
                return
            values |= {f"TILE_{size.upper()}": extent for size, extent in extents.items()}
            places = self.places(function, fields, values, threads, extents, prefix)
            if places is None:
                return
            title = " ".join([name, f"{threads[0]}x{threads[1]}", *(f"{k}={v}" for k, v in macros.items() if k not in constants)])
            file = str(self.text_folder / fields.get("text", f"{name}.h"))
            yield Implementation(title, Geometry(threads, extents, values), places, routines, source, file)

    def geometries(self, fields: Mapping[str, Any], table: Mapping[str, Any],
                   prefix: str) -> Iterator[tuple[tuple[int, int], dict[str, int]]]:
        """Threads and macros: every combination of the listed values, with the function's own."""
        threads = self.take(fields, "threads", list, [], prefix)
        macros = self.take(fields, "macros", dict, {}, prefix) | self.take(table, "macros", dict, {})
        lists: list[list[int]] = []
        for key, values in macros.items():
            listed = values if isinstance(values, list) else [values]
            if not re.fullmatch(r"[A-Z][A-Z0-9_]*", key) or key in _RESERVED:
                self.slip(f"{prefix}macros.{key}", f"{key} is no name of a macro", "capital letters; VEC, BX, BY, REAL and INDEX are taken")
            if not listed or any(type(v) is not int for v in listed):
                self.slip(f"{prefix}macros.{key}", f"{values!r} is no list of whole numbers", f"{key} = [1, 2, 4]")
                listed = []
            lists.append(listed)
        if not threads:
            self.slip(prefix + "threads", "no number of threads is given", "threads = [[128, 1], [256, 1]]")
        for pair in threads:
            if not (isinstance(pair, list) and len(pair) == 2 and all(type(t) is int and t > 0 for t in pair)):
                self.slip(prefix + "threads", f"{pair!r} is no pair (x, y) of positive numbers", "threads = [[32, 8]]")
            elif pair[0] * pair[1] > BLOCK_THREADS:
                self.slip(prefix + "threads", f"{pair[0]} x {pair[1]} are {pair[0] * pair[1]} threads, a block has at most {BLOCK_THREADS}")
            else:
                for values in product(*lists):
                    yield (pair[0], pair[1]), dict(zip(macros, values, strict=True))

    def tile(self, function: ElementaryFunction, fields: Mapping[str, Any], macros: Mapping[str, int],
             prefix: str) -> dict[str, int] | None:
        """Words of an element along each size; None, with a fault, if one is missing or no positive number."""
        tile = self.take(fields, "tile", dict, {}, prefix)
        self.known_keys(tile, function.sizes, prefix + "tile.")
        sizes: dict[str, int] = {}
        for size in function.sizes:
            key = f"{prefix}tile.{size}"
            if size not in tile:
                self.slip(key, "is missing: how many words an element has along this size", f'tile = {{ {size} = "4 * VEC * BX" }}')
                return None
            try:
                sizes[size] = whole_number(tile[size], macros)
            except CompilerError as error:
                self.slip(key, error.message, error.hint or "")
                return None
            if sizes[size] <= 0:
                self.slip(key, f"{tile[size]!r} is {sizes[size]} for {_values(macros)}", "an element has at least one word")
                return None
        return sizes

    def places(self, function: ElementaryFunction, fields: Mapping[str, Any], macros: Mapping[str, int], threads: tuple[int, int],
               extents: Mapping[str, int], prefix: str) -> dict[str, Place] | None:
        """The place of each element, for one geometry; None, with a fault, if one is wrong."""
        listed: dict[str, Any] = {}
        for names, value in self.take(fields, "places", dict, {}, prefix).items():
            listed |= dict.fromkeys((n.strip() for n in names.split(",")), value)
        parameters = (*function.inputs, *function.outputs)
        self.known_keys(listed, tuple(p.name for p in parameters if p.extents), prefix + "places.")
        places: dict[str, Place] = {}
        for p in parameters:
            key = f"{prefix}places.{p.name}"
            if not p.extents:
                if p in function.outputs:
                    places[p.name] = ThreadMapping((), ())
                continue
            value = listed.get(p.name)
            if not isinstance(value, dict):
                self.slip(key, "is missing" if value is None else f"{value!r} is no place", _EXAMPLES["places"])
                return None
            place = self.place(p, value, macros, threads, extents, key)
            if place is None:
                return None
            places[p.name] = place
        return places

    def place(self, p: Parameter, value: Mapping[str, Any], macros: Mapping[str, int], threads: tuple[int, int],
              extents: Mapping[str, int], key: str) -> Place | None:
        """One place; None, with a fault, if it is wrong or reaches beyond the element."""
        self.known_keys(value, ("slots", "at", "shared", "pad"), key + ".")
        if "shared" in value:
            pad = value.get("pad", 0)
            if value["shared"] is not True or type(pad) is not int or pad < 0:
                self.slip(key, f"{value!r} is no place in shared memory", f"{p.name} = {{ shared = true, pad = 1 }}")
                return None
            return SharedPlace(pad)
        slots_given, at_given = value.get("slots", []), value.get("at", [])
        if not isinstance(slots_given, list) or not isinstance(at_given, list) or len(at_given) != len(p.extents):
            self.slip(key + ".at", f"{at_given!r} does not give one coordinate for each of {', '.join(p.extents)}", _EXAMPLES["places"])
            return None
        try:
            slots = tuple(whole_number(s, macros) for s in slots_given)
            names = ("tx", "ty", *(f"s{n}" for n in range(len(slots))))
            at = tuple(coordinate(a, macros, names) for a in at_given)
        except CompilerError as error:
            self.slip(key, error.message, error.hint or "")
            return None
        spans = {"tx": threads[0], "ty": threads[1], **{f"s{n}": s for n, s in enumerate(slots)}}
        if min(slots, default=1) < 1:
            self.slip(key + ".slots", f"{slots_given!r} is {list(slots)} for {_values(macros)}", "a thread holds at least one word")
            return None
        return self.inside(p, ThreadMapping(slots, at), spans, extents, macros, key)

    def inside(self, p: Parameter, mapping: ThreadMapping, spans: Mapping[str, int], extents: Mapping[str, int], macros: Mapping[str, int],
               key: str) -> ThreadMapping | None:
        """The mapping, if every coordinate lies within the element."""
        for at, size in zip(mapping.at, p.extents, strict=True):
            low, high = _reach(at, spans)
            if low < 0 or high >= extents[size]:
                self.slip(key + ".at", f"{at} runs from {low} to {high}, the element has {extents[size]} words along {size} "
                          f"({_values(macros)})", "coordinates count from 0; make the tile or the slots fit")
                return None
        return mapping

    # -- routines

    def routine_text(self, function: ElementaryFunction, table: Mapping[str, Any], fields: Mapping[str, Any], name: str,
                     prefix: str) -> tuple[str, dict[str, str]]:
        """(C text, routine -> name of its C function); the number of parameters is checked."""
        file = self.text_folder / self.take(fields, "text", str, f"{name}.h", prefix)
        try:
            source = file.read_text(encoding="utf-8")
        except OSError as error:
            self.slip(prefix + "text", f"{file} cannot be read: {error.strerror}",
                      'put the routines there, or name their file: text = "..."')
            return "", {}
        forms = self.routine_forms(function)
        renamed = self.take(fields, "routines", dict, {}, prefix)
        self.known_keys(renamed, tuple(forms), prefix + "routines.")
        routines = {r: str(renamed.get(r, r.replace(' ', '_'))) for r in forms}
        for special in ("combine", "finish"):
            if special in table:
                routines[special] = self.take(table, special, str, "")
        defined = {m[1]: len(m[2].split(",")) if m[2].strip() else 0 for m in _ROUTINE.finditer(source)}
        for routine, function_name in routines.items():
            form = forms.get(routine) or _SPECIAL[routine]
            if function_name not in defined:
                self.slip(f"{prefix}routines.{routine}", f"{file.name} defines no routine {function_name}",
                          nearest(function_name, defined) or f"TF_ROUTINE void {function_name}({', '.join(form)})", str(file))
            elif defined[function_name] != len(form):
                self.slip(f"{prefix}routines.{routine}", f"{function_name} takes {defined[function_name]} parameters, the generated code "
                          f"gives {len(form)}", f"TF_ROUTINE void {function_name}({', '.join(form)})", str(file))
        return source, routines

    @staticmethod
    def routine_forms(function: ElementaryFunction) -> dict[str, tuple[str, ...]]:
        """Routine -> its parameters, as C text."""
        forms: dict[str, tuple[str, ...]] = {}
        for p in function.inputs:
            if p.extents:
                forms[f"load {p.name}"] = _access_form("const REAL* p", "REAL* e", len(p.extents))
        state = function.state or "REAL"
        forms["compute"] = (
            *(f"const REAL* {p.name}" if p.extents else f"REAL {p.name}" for p in function.inputs),
            *(f"{state}* {p.name}" for p in function.outputs),
            *(f"INDEX {size}" for size in function.sizes if function.positions), "int tx", "int ty")
        for p in function.outputs:
            if p.extents:
                forms[f"store {p.name}"] = _access_form("REAL* p", "const REAL* e", len(p.extents))
        return forms


_SPECIAL = {"combine": ("STATE* into", "const STATE* other"), "finish": ("const STATE* s", "TYPE* out")}
_EXAMPLES = {
    "names": 'names = { f32 = "saxpy", f64 = "daxpy" }', "inputs": 'inputs = ["alpha", "x[n]", "y[n]"]', "outputs": 'outputs = ["z[n]"]',
    "over": 'over = ["n"]', "kind": 'kind = "map"', "meaning": 'meaning = { z = "z[i] = alpha * x[i] + y[i]" }',
    "threads": "threads = [[128, 1]]", "tile": 'tile = { n = "VEC * BX" }', "macros": "macros = { LOADS = [1, 2] }",
    "places": 'x = { slots = ["LOADS", "VEC"], at = ["VEC * BX * s0 + VEC * tx + s1"] } or x = { shared = true }',
}


def _access_form(memory: str, element: str, rank: int) -> tuple[str, ...]:
    if rank == 1:
        return memory, "INDEX stride", element, "int tx", "int ty", "INDEX first", "INDEX count"
    return (memory, "INDEX row_stride", "INDEX column_stride", element, "int tx", "int ty", "INDEX row", "INDEX column", "INDEX rows",
            "INDEX columns")


def _reach(at: Affine, spans: Mapping[str, int]) -> tuple[int, int]:
    reached = bounds(at, spans)
    assert reached is not None  # every variable of a coordinate has a span
    return reached


def _values(macros: Mapping[str, int]) -> str:
    return ", ".join(f"{k} = {v}" for k, v in macros.items())


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SEARCH.scripts.quoted_characters else text[:SEARCH.scripts.quoted_characters - 3] + "..."
