"""The API reference: every public name is there once, docstrings become Markdown, signatures are Python's own."""
from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from typing import Any

import pytest

from tilefuse.tools import api_pages

# The modules that users import; what they list is public.
PUBLIC = ("tilefuse", "tilefuse.array", "tilefuse.nn", "tilefuse.optim", "tilefuse.blas", "tilefuse.driver.torch_backend",
          "tilefuse.arrays.functions.linalg", "tilefuse.arrays.functions.fft")


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_on_a_page(name: str) -> None:
    module = importlib.import_module(name)
    listed = {n for n in module.__all__ if inspect.isfunction(getattr(module, n)) or inspect.isclass(getattr(module, n))}
    shown = {getattr(importlib.import_module(s.module), n) for p in api_pages.PAGES for s in p.sections for n in api_pages.public_names(s)}
    missing = sorted(n for n in listed if not n.startswith("_") and getattr(module, n) not in shown)
    assert not missing, f"tools/api_pages.py has no section for {missing} of {name}"


@pytest.mark.parametrize("page", api_pages.PAGES, ids=lambda p: p.file)
def test_a_page_has_each_name_once_with_a_docstring(page: api_pages.Page) -> None:
    text = api_pages.page_text(page)
    heads = Counter(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert heads and set(heads.values()) == {1}
    names = [(s, n) for s in page.sections for n in api_pages.public_names(s)]
    assert len(names) == len(heads)
    undocumented = [n for s, n in names if not inspect.getdoc(getattr(importlib.import_module(s.module), n))]
    assert not undocumented and "0x7f" not in text


# Arguments that the array standard or Python gives a meaning, and catch-alls.
KNOWN = {"x", "x1", "x2", "axis", "keepdims", "dtype", "device", "shape", "out", "stream", "args", "kwargs", "inputs", "named", "tensors",
         "arguments", "name", "arrays_and_dtypes"}


@pytest.mark.parametrize("file", ["array.md", "array_extensions.md", "nn.md"])
def test_every_argument_is_told(file: str) -> None:
    """By the docstring of its function or class, or by the words above the section."""
    (page,) = (p for p in api_pages.PAGES if p.file == file)
    silent = []
    for section in page.sections:
        module = importlib.import_module(section.module)
        for name in api_pages.public_names(section):
            thing = getattr(module, name)
            told = f"{inspect.getdoc(thing)} {section.about} {page.about}"
            if inspect.isclass(thing) and issubclass(thing, tuple):
                continue
            silent += [f"{name}: {p}" for p in inspect.signature(thing).parameters if p not in KNOWN and not re.search(rf"\b{p}\b", told)]
    assert not silent, "no docstring tells what these arguments are:\n" + "\n".join(silent)


def example(x: Any, /, kind: str = "a", *rest: int, width: int = 3, **more: Any) -> dict[str, int]:
    """Sizes of *things*. Raises: UserError for none.

    kind: one of `*` and
        "b". width: in elements.
    rest, more: what else there is
    The result is new.
    Shapes: [*S] -> <S>
    """
    raise NotImplementedError


def test_a_docstring_becomes_paragraphs_and_lists() -> None:
    told = list(api_pages.paragraphs(inspect.getdoc(example) or "", api_pages.parameters(example)))
    assert told == [r"Sizes of \*things\*. **Raises:** UserError for none.",
                    '- `kind`: one of `*` and "b".\n- `width`: in elements.\n- `rest`, `more`: what else there is The result is new.\n'
                    r"- **Shapes:** [\*S] -> \<S>"]


def test_a_signature_is_pythons() -> None:
    assert api_pages.signature("example", example) == (
        'example(x: Any, /, kind: str = \'a\', *rest: int, width: int = 3, **more: Any) -> dict[str, int]')

    made = object()

    def keywords(a: int, *, some_rather_long_name: float = 1.0, another_rather_long_name: float = 2.0, made_by: Any = made) -> None:
        """Nothing."""

    assert api_pages.signature("f", keywords).splitlines() == [
        "f(", "    a: int,", "    *,", "    some_rather_long_name: float = 1.0,", "    another_rather_long_name: float = 2.0,",
        "    made_by: Any = ...,", ")"]
