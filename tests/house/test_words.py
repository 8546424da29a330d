"""Plain English: empty names, sentences that begin without a noun and words in place of one are counted by room; a count may only fall."""
from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator

from tests.house.source_tree import ROOT, docstring, nodes, nodes_of, package_files

# Participles and adjectives without a noun: a name says what was found.
EMPTY_NAMES = frozenset({"asked", "found", "given", "gone", "held", "kept", "made", "more", "shown", "told", "wanted"})
# A sentence names its quantity first.
COMMENT_WITH_CLAUSE = re.compile(r"#.*\b(?:What|Of what|Whoever|As long as)\b")
CLAUSE_FIRST = re.compile(r"(?:^|(?<=[.!?]\s))(?:What|Of what|Whoever|As long as)\b(?![^.?!]*\?)")
# Words that stand for a noun that has a name.
VAGUE_WORD = re.compile(r"\b(?:what|whatever|whoever|somebody|nobody|anybody)\b", re.IGNORECASE)


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Every name that the file binds: variables, fields, parameters, functions, classes, names of patterns."""
    for node in nodes(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name


def prose(text: str, tree: ast.Module) -> Iterator[str]:
    """Docstrings, and comments with the lines of one comment joined."""
    for node in (n for kind in (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef) for n in nodes_of(tree, kind)):
        if doc := docstring(node):
            yield " ".join(doc.split())
    if not COMMENT_WITH_CLAUSE.search(text):
        return  # cutting a file into tokens takes longer than parsing it
    lines: list[str] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1 and lines:
                yield " ".join(lines)
                lines = []
            lines.append(token.string.lstrip("#: ").strip())
            last = token.start[0]
    if lines:
        yield " ".join(lines)


def num_clauses_first(text: str) -> int:
    """Sentences that begin with a relative clause in place of a noun; questions are none of them."""
    return len(CLAUSE_FIRST.findall(text))


def num_vague_words(text: str) -> int:
    """Words in place of a noun; those of a text's questions are none of them."""
    return sum(len(VAGUE_WORD.findall(sentence)) for sentence in re.split(r"(?<=[.!?])\s", text) if not sentence.endswith("?"))


def empty_names_by_room() -> Counter[str]:
    """Bindings of names that say nothing, by room of the package."""
    counts: Counter[str] = Counter()
    for file in package_files():
        counts[file.folder] += sum(name in EMPTY_NAMES for name in bound_names(file.tree))
    return counts


def clauses_first_by_room() -> Counter[str]:
    """Sentences that begin with a relative clause, by room of the package; those of docs/*.md under "docs"."""
    counts: Counter[str] = Counter()
    for file in package_files():
        counts[file.folder] += sum(num_clauses_first(p) for p in prose(file.text, file.tree))
    for page in sorted((ROOT / "docs").glob("*.md")):
        counts["docs"] += sum(num_clauses_first(" ".join(p.split())) for p in page.read_text(encoding="utf-8").split("\n\n"))
    return counts


def vague_words_by_room() -> Counter[str]:
    """Words of docstrings in place of a noun, by room of the package."""
    counts: Counter[str] = Counter()
    for file in package_files():
        documented = (n for kind in (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef) for n in nodes_of(file.tree, kind))
        counts[file.folder] += sum(num_vague_words(docstring(n) or "") for n in documented)
    return counts


# Ceilings by room: a count may only fall. A room that is not listed has none.
EMPTY_NAMES_KNOWN = {
    "": 8, "arrays": 24, "base": 12, "domain": 4, "driver": 34, "emit": 16, "frontends": 9, "ir": 6, "kernel": 2, "nn": 6, "optim": 2,
    "passes": 7, "plan": 10, "printers": 2, "runtime": 4, "scripts": 10, "standalone": 6, "target": 11, "templates": 129, "tools": 9,
}
CLAUSES_FIRST_KNOWN: dict[str, int] = {}
VAGUE_WORDS_KNOWN = {
    "": 17, "arrays": 22, "base": 14, "domain": 5, "driver": 16, "frontends": 5, "inspection": 2, "ir": 3, "kernel": 1, "nn": 3, "pages": 1,
    "passes": 2, "plan": 1, "runtime": 2, "scripts": 2, "standalone": 1, "target": 9, "templates": 156, "tools": 19,
}


def test_names_say_what_they_hold() -> None:
    """A variable says what was found, made or asked for."""
    over = {room: n for room, n in empty_names_by_room().items() if n > EMPTY_NAMES_KNOWN.get(room, 0)}
    assert not over, f"rename new variables called {', '.join(sorted(EMPTY_NAMES))}: {over}, ceilings {EMPTY_NAMES_KNOWN}"


def test_sentences_begin_with_their_subject() -> None:
    """The quantity comes first, then its unit, then the evidence."""
    over = {room: n for room, n in clauses_first_by_room().items() if n > CLAUSES_FIRST_KNOWN.get(room, 0)}
    assert not over, f"begin these sentences with a noun: {over}, ceilings {CLAUSES_FIRST_KNOWN}"


def test_docstrings_name_what_they_speak_of() -> None:
    """A noun that has a name is called by it: no "what", no "whoever", no "nobody" in its place."""
    over = {room: n for room, n in vague_words_by_room().items() if n > VAGUE_WORDS_KNOWN.get(room, 0)}
    assert not over, f"name the thing in these docstrings: {over}, ceilings {VAGUE_WORDS_KNOWN}"


def test_empty_names_and_clauses_are_found() -> None:
    """The checks themselves can fail."""
    text = '''"""What it reads. A sum. Of what is left, half."""
def f(wanted):
    # As long as it
    # waits.  What is it?
    found = wanted.more
    return found
'''
    tree = ast.parse(text)
    assert [n for n in bound_names(tree) if n in EMPTY_NAMES] == ["wanted", "found"]
    assert sum(num_clauses_first(p) for p in prose(text, tree)) == 3
    assert num_vague_words("Nobody reads what it writes. A sum. What is it?") == 2
