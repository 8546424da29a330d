"""Libraries of elementary functions: the shipped one is whole, and what is wrong with another is told by file, key, value and remedy."""
from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tilefuse.base.errors import ShapeError, TypeMismatchError, UserError
from tilefuse.ir.dtype import F32, F64, DType
from tilefuse.scripts.language import routine_library as blas_functions
from tilefuse.scripts.language.elementary import HigherOrder, SharedPlace, ThreadMapping, routine_macros
from tilefuse.scripts.language.lower import ArgumentShape, call_graph, resolve
from tilefuse.scripts.language.meaning import parse_meaning
from tilefuse.scripts.language.metadata import MetadataReader
from tilefuse.scripts.language.routine_library import AnyFunction, library_slips, read_library, shipped_folder
from tilefuse.scripts.language.syntax import parse_script

TOML = """\
brief = "z = alpha x + y"
kind = "map"
names = { f32 = "my_axpy" }
inputs = ["alpha", "x[n]", "y[n]"]
outputs = ["z[n]"]

[meaning]
z = "z[i] = alpha * x[i] + y[i]"

[[implementation]]
name = "plain"
threads = [[64, 1], [128, 1]]
macros = { WORDS = [1, 2] }
tile = { n = "WORDS * BX" }

[implementation.places]
"x, y, z" = { slots = ["WORDS"], at = ["BX * s0 + tx"] }
"""
ROUTINES = """\
TF_ROUTINE void load_x(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {}
TF_ROUTINE void load_y(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {}
TF_ROUTINE void compute(REAL alpha, const REAL* x, const REAL* y, REAL* z, int tx, int ty) {}
TF_ROUTINE void store_z(REAL* p, INDEX stride, const REAL* e, int tx, int ty, INDEX first, INDEX count) {}
"""
REDUCTION = TOML.replace('"map"', '"reduce"').replace('outputs = ["z[n]"]', 'outputs = ["z"]\nover = ["n"]\noperator = "+"').replace(
    "z[i] = alpha * x[i] + y[i]", "z = sum(i) x[i] * y[i]").replace("x, y, z", "x, y")


def library(folder: Path, toml: str = TOML, routines: str | None = ROUTINES) -> Path:
    """A library of one function."""
    (folder / "my_axpy").mkdir(parents=True)
    (folder / "my_axpy" / "function.toml").write_text(toml)
    if routines is not None:
        (folder / "my_axpy" / "plain.h").write_text(routines)
    return folder


def test_every_shipped_function_is_whole() -> None:
    """Names in s and d, a meaning for every output, sizes and a register implementation; siblings exist and agree."""
    found = read_library().functions
    assert len(found) >= 48
    for function in found.values():
        letter = function.name[function.name.startswith("is") or function.name.startswith("id")]
        assert function.dtype == {"s": F32, "d": F64}[letter]
        assert function.name.replace(letter, {"s": "d", "d": "s"}[letter], 1) in found, function.name
        assert set(function.meaning) == {p.name for p in function.outputs} and function.brief, function.name
        assert len({i.name for i in function.implementations}) == len(function.implementations)
        if function.transposed:
            sibling = found[function.transposed]
            back = found[sibling.transposed]
            assert back is function and sibling.dtype == function.dtype and len(sibling.inputs) == len(function.inputs)


def test_functions_on_matrices_share_their_mapping_of_the_matrix() -> None:
    """gemv, gemtv, ger, madd and mscal hold a tile alike, so that fusions of them pass it on in registers."""
    found = read_library().functions
    for name in ("sgemtv", "sger", "smadd", "smscal", "sgemv_full", "sgemtv_full"):
        for one, other in zip(found["sgemv"].implementations, found[name].implementations, strict=True):
            assert one.name == other.name and one.places["A"] == other.places["A"] and one.geometry == other.geometry
    tile = found["sgemv"].implementations[-1]
    assert tile.places["A"] == SharedPlace(1) and routine_macros(found["sgemv"], tile)["PITCH_A"] == "33"


def test_a_library_of_ones_own(tmp_path: Path) -> None:
    """Geometries are enumerated, macros counted, coordinates affine; the function hides a shipped one of its name."""
    found = read_library(library(tmp_path / "own")).functions["my_axpy"]
    assert found.kind is HigherOrder.MAP and [i.name for i in found.implementations] == [
        "plain 64x1 WORDS=1", "plain 64x1 WORDS=2", "plain 128x1 WORDS=1", "plain 128x1 WORDS=2"]
    last = found.implementations[-1]
    place = last.places["x"]
    assert isinstance(place, ThreadMapping) and place.slots == (2,) and str(place.at[0]) == "128*s0 + tx"
    assert last.geometry.extents == {"n": 256}
    macros = routine_macros(found, last)
    assert (macros["REAL"], macros["VEC"], macros["TILE_N"], macros["WORDS_x"], macros["PAD_y"]) == ("float", "4", "256", "2", "REAL(0)")
    hidden = library(tmp_path / "hides", TOML.replace("my_axpy", "saxpy"))
    assert read_library(hidden).functions["saxpy"].origin.startswith(str(hidden))


def test_a_changed_library_is_read_again(tmp_path: Path) -> None:
    """The files' sizes and times are part of what is remembered."""
    folder = library(tmp_path)
    assert read_library(folder).functions["my_axpy"].brief == "z = alpha x + y"
    (folder / "my_axpy" / "function.toml").write_text(TOML.replace("z = alpha x + y", "another text of another length"))
    assert read_library(folder).functions["my_axpy"].brief == "another text of another length"


SLIPS: list[tuple[str, Callable[[str], str], str, str, str]] = [
    ("no TOML", lambda t: t.replace("[meaning]", "[meaning"), "", "is not TOML", "docs/blas.md"),
    ("unknown key", lambda t: 'knd = "map"\n' + t, "knd", "unknown key (value 'map')", "kind"),
    ("kind", lambda t: t.replace('"map"', '"mapp"'), "kind", "'mapp' is no kind of function", "map"),
    ("type of a value", lambda t: t.replace('kind = "map"', "kind = 3"), "kind", "3 is not a text in quotes", 'kind = "map"'),
    ("names", lambda t: t.replace("f32 =", "f16 ="), "names.f16", "is no element type", "f32"),
    ("parameter", lambda t: t.replace("x[n]", "x[N]", 1), "inputs", "'x[N]' is no parameter", "small letters"),
    ("twice", lambda t: t.replace('"z[n]"', '"x[n]"'), "outputs", "x names two parameters", "another name"),
    ("size of the output", lambda t: t.replace('"z[n]"', '"z[k]"'), "outputs", "z has the extent k, which no input has", "arguments"),
    ("nesting", lambda t: t.replace('"map"', '"nested map"'), "kind", "runs over 2 sizes, the parameters have 1 (n)", "two sizes"),
    ("meaning", lambda t: t.replace("alpha * x[i]", "alpa * x[i]"), "meaning.z", "alpa is no input", "alpha"),
    ("meaning's text", lambda t: t.replace("+ y[i]", "+ * y[i]"), "meaning.z", "expected a value, found '*'", ""),
    ("meaning's subscripts", lambda t: t.replace("+ y[i]", "+ y[i, j]"), "meaning.z", "y has 1 subscripts, 2 given", ""),
    ("no implementation", lambda t: t[:t.index("[[")], "implementation", "no implementation is given", "[[implementation]]"),
    ("threads", lambda t: t.replace("[128, 1]", "[2048, 1]"), "implementation[0].threads", "2048 threads", ""),
    ("threads' form", lambda t: t.replace("[128, 1]", "128"), "implementation[0].threads", "128 is no pair", "[[32, 8]]"),
    ("macro", lambda t: t.replace("WORDS = [1, 2]", "BX = [1, 2]"), "implementation[0].macros.BX", "is no name of a macro", "taken"),
    ("tile", lambda t: t.replace('n = "WORDS * BX"', 'm = "WORDS * BX"'), "implementation[0].tile.n", "is missing", "tile"),
    ("tile's expression", lambda t: t.replace('"WORDS * BX"', '"WORD * BX"'), "implementation[0].tile.n", "the unknown name WORD", "WORDS"),
    ("division", lambda t: t.replace('"WORDS * BX"', '"BX / 3"'), "implementation[0].tile.n", "leaves a remainder", "//"),
    ("place missing", lambda t: t.replace('"x, y, z"', '"x, y"'), "implementation[0].places.z", "is missing", "slots"),
    ("place unknown", lambda t: t.replace('"x, y, z"', '"x, y, z, w"'), "implementation[0].places.w", "unknown key", ""),
    ("place outside", lambda t: t.replace("BX * s0 + tx", "BX * s0 + 2 * tx"), "implementation[0].places.x.at",
     "the element has 64 words along n", "tile"),
    ("place not affine", lambda t: t.replace("BX * s0 + tx", "s0 * tx"), "implementation[0].places.x", "multiplies two", "affine"),
    ("place's rank", lambda t: t.replace('at = ["BX * s0 + tx"]', 'at = ["tx", "ty"]'), "implementation[0].places.x.at",
     "one coordinate for each of n", ""),
    ("over", lambda t: REDUCTION.replace('over = ["n"]\n', ""), "over", "is missing", 'over = ["n"]'),
    ("over unknown", lambda t: REDUCTION.replace('over = ["n"]', 'over = ["m"]'), "over", "m is no size", ""),
    ("operator", lambda t: REDUCTION.replace('"+"', '"plus"'), "operator", "'plus' is no operator", '"+"'),
    ("operator of one's own", lambda t: REDUCTION.replace('"+"', '"combine"'), "combine", "needs operator", "state"),
    ("map that reduces", lambda t: t.replace('kind = "map"', 'kind = "map"\nover = ["n"]'), "over", "a map reduces nothing", "drop"),
]


@pytest.mark.parametrize(("change", "key", "message", "remedy"), [s[1:] for s in SLIPS], ids=[s[0] for s in SLIPS])
def test_slips_of_metadata(tmp_path: Path, change: Callable[[str], str], key: str, message: str, remedy: str) -> None:
    """Each names the file, the key, what is wrong and what to do; reading the library fails with all of them."""
    changed = change(TOML)
    assert changed != TOML
    folder = library(tmp_path, changed)
    slips = library_slips(folder)
    found = [s for s in slips if s.key == key and message in s.message]
    assert found, "\n".join(map(str, slips))
    assert remedy in found[0].remedy and found[0].file.endswith("function.toml")
    with pytest.raises(UserError) as caught:
        read_library(folder)
    assert str(found[0]) in caught.value.message


@pytest.mark.parametrize(("routines", "message", "remedy"), [
    (None, "cannot be read", "put the routines there"),
    (ROUTINES.replace("load_y", "read_y"), "plain.h defines no routine load_y", "load_x"),
    (ROUTINES.replace("store_z(REAL* p, INDEX stride, ", "store_z(REAL* p, "), "store_z takes 6 parameters, the generated code gives 7",
     "TF_ROUTINE void store_z(REAL* p, INDEX stride, const REAL* e"),
    (ROUTINES.replace("REAL alpha, ", ""), "compute takes 5 parameters, the generated code gives 6",
     "TF_ROUTINE void compute(REAL alpha, const REAL* x"),
])
def test_slips_of_routines(tmp_path: Path, routines: str | None, message: str, remedy: str) -> None:
    """Missing files, missing routines and wrong parameters are found without a compiler, with the form that is wanted."""
    slips = library_slips(library(tmp_path, routines=routines))
    assert any(message in s.message and remedy in s.remedy for s in slips), "\n".join(map(str, slips))


def test_two_functions_of_one_name(tmp_path: Path) -> None:
    """Two folders cannot define one function, nor two forms with equally many arguments."""
    folder = library(tmp_path)
    for name in ("function.toml", "plain.h"):
        (tmp_path / "copy").mkdir(exist_ok=True)
        (tmp_path / "copy" / name).write_text((tmp_path / "my_axpy" / name).read_text())
    assert any("is also defined in" in s.message for s in library_slips(folder))
    text = (tmp_path / "copy" / "function.toml").read_text()
    (tmp_path / "copy" / "function.toml").write_text(text.replace('{ f32 = "my_axpy" }', '{ f32 = "other" }\ncalled = { f32 = "my_axpy" }'))
    assert any("scripts already call my_axpy with 3 arguments" in s.message for s in library_slips(folder))


def test_a_folder_that_is_no_library(tmp_path: Path) -> None:
    """An empty folder is told apart from a library."""
    with pytest.raises(UserError, match="is no library"):
        read_library(tmp_path)


def test_shipped_files_are_all_used() -> None:
    """Every header beside a function.toml belongs to an implementation."""
    found = read_library().functions.values()
    used = {Path(i.file).resolve() for f in found for i in f.implementations}
    assert {p.resolve() for p in shipped_folder().glob("*/*.h")} == used
    assert parse_meaning("r = sum(i) x[i]")[0].name == "r"


def test_only_functions_that_are_called_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading all of the shipped library took as long as finding a script's first program; names and forms are known without it."""
    read: list[str] = []
    whole = MetadataReader.functions

    def functions(reader: MetadataReader, only: DType | None = None) -> tuple[AnyFunction, ...]:
        read.append(reader.folder.name)
        return whole(reader, only)

    monkeypatch.setattr(MetadataReader, "functions", functions)
    monkeypatch.setattr(blas_functions, "_function_of", cache(blas_functions._function_of.__wrapped__))
    script = parse_script("matrix A; vector x; input A, x; y = sgemv(A, x); z = sscal(2.0, y); return z;")
    call_graph(resolve(script, read_library()), {"A": ArgumentShape((3, 2)), "x": ArgumentShape((2,))})
    assert sorted(read) == ["gemv", "gemv_full", "scal"]  # both forms of sgemv: their arguments decide


def test_listed_names_are_those_of_the_functions() -> None:
    """Of every shipped function, its own name and the one that scripts call."""
    library = read_library()
    for name, function in (*library.functions.items(), *library.composed.items()):
        assert function.name == name and name in library.calls[function.called or name]
    assert sum(map(len, library.calls.values())) == len(library.functions) + len(library.composed)
    assert pickle.loads(pickle.dumps(library)).called("sgemv") == library.called("sgemv")
    assert not library_slips(shipped_folder())


def test_every_shipped_function_is_on_the_page() -> None:
    """docs/blas.md names each as scripts call it, in single precision."""
    page = (Path(__file__).resolve().parents[4] / "docs" / "blas.md").read_text(encoding="utf-8")
    library = read_library()
    called = {f.called or f.name for f in (*library.functions.values(), *library.composed.values()) if not f.name.startswith(("d", "id"))}
    assert {name for name in called if f"`{name}(" not in page} == set()


COMPOSED = """\
brief = "z = x + alpha (y - x)"
kind = "composed"
names = { f32 = "smix" }
inputs = ["alpha", "x[n]", "y[n]"]
outputs = ["z[n]"]

[calls]
f32 = "d = saxpy(-1, x, y); z = saxpy(alpha, d, x);"
"""


def test_a_composed_function_is_its_calls(tmp_path: Path) -> None:
    """With names of its own that keep away from the script's; errors speak of the script's call."""
    folder = library(tmp_path, COMPOSED, None)
    functions = read_library(folder)
    script = "vector x, y, z_d; scalar a; input a, x, y; z = smix(a, x, y); z_d = sscal(2, z); return z_d;"
    resolved = resolve(parse_script(script), functions)
    calls = [(*(r.text for r in c.statement.results), c.function.name) for c in resolved.calls]
    assert calls == [("z_d_", "saxpy"), ("z", "saxpy"), ("z_d", "sscal")]
    with pytest.raises(TypeMismatchError, match="smix takes a vector as y") as told:
        resolve(parse_script("vector x; scalar a; input a, x; z = smix(a, x, a); return z;"), functions)
    assert told.value.where is not None


@pytest.mark.parametrize(("old", "new", "message"), [
    ('z = saxpy(alpha, d, x);', 'z = saxpy(alpha, d, x)', "expected ';'"),
    ('[calls]\nf32', '[calls]\nf64', "no calls are given for f32"),
    ('outputs = ["z[n]"]', 'outputs = ["z[n]"]\nover = ["n"]', "unknown key"),
])
def test_slips_of_composed_functions(old: str, new: str, message: str, tmp_path: Path) -> None:
    """Calls that do not parse, or are not there, and keys of other kinds."""
    found = library_slips(library(tmp_path, COMPOSED.replace(old, new), None))
    assert any(message in s.message for s in found), found


def test_a_composed_function_that_calls_itself(tmp_path: Path) -> None:
    """Told, not followed for ever."""
    functions = read_library(library(tmp_path, COMPOSED.replace("d = saxpy(-1, x, y)", "d = smix(1, x, y)"), None))
    with pytest.raises(UserError, match="composed of calls of itself"):
        resolve(parse_script("vector x; input x; z = smix(1, x, x); return z;"), functions)


def test_a_function_like_another(tmp_path: Path) -> None:
    """Keys that a file does not give are those of the other function, and so are its routines."""
    folder = library(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "function.toml").write_text('like = "../my_axpy"\nnames = { f32 = "other" }\nmacros = { SIGN = -1 }\n')
    found = read_library(folder, shipped=False).functions
    assert [i.name for i in found["other"].implementations] == [i.name for i in found["my_axpy"].implementations]
    assert found["other"].implementations[0].geometry.macros["SIGN"] == -1
    assert found["other"].meaning == found["my_axpy"].meaning
    (tmp_path / "other" / "function.toml").write_text('like = "../nothing"\nnames = { f32 = "other" }\n')
    assert any("cannot be read" in s.message for s in library_slips(folder))
    (tmp_path / "other" / "function.toml").write_text('like = "../other"\nnames = { f32 = "other" }\n')
    assert any("it names itself" in s.message for s in library_slips(folder))


@pytest.mark.parametrize(("keys", "message"), [
    ('triangle = "left"', "is no triangle"), ('triangle = "lower"', "words of a map would be missing"),
])
def test_slips_of_triangles(keys: str, message: str, tmp_path: Path) -> None:
    """A triangle has two names, and only reductions may leave tiles out."""
    assert any(message in s.message for s in library_slips(library(tmp_path, f"{keys}\n{TOML}")))


def test_a_triangle_is_square() -> None:
    """The message has the shape."""
    resolved = resolve(parse_script("matrix A; vector x; input A, x; y = strmv(A, x); return y;"), read_library())
    with pytest.raises(ShapeError, match=r"A is square, A is \[3, 5\]"):
        call_graph(resolved, {"A": ArgumentShape((3, 5)), "x": ArgumentShape((5,))})
