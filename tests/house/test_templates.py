"""Templates are packages behind one protocol: each implements all of it, none imports another, and nobody else asks which one it is."""
from __future__ import annotations

import ast
from collections.abc import Iterator, Set

import pytest

from tests.house.source_tree import PACKAGE, SourceFile, nodes_of, package_files
from tests.house.test_layering import imported_modules
from tilefuse.templates import TEMPLATES
from tilefuse.templates.registry import kernel_templates
from tilefuse.templates.template import KernelTemplate

FOLDERS = sorted(p.name for p in (PACKAGE / "templates").iterdir() if (p / "__init__.py").exists())
# Records of templates, and plans inside their programs: classes that only the template's own folder may ask for.
OWN_CLASSES = {t.record.__name__ for t in TEMPLATES} | {"RowSettings", "StitchPlan", "OnlinePlan"}


def relative(file: SourceFile) -> str:
    """Path from the package's root."""
    return file.path.relative_to(PACKAGE).as_posix()


def template_folder(file: SourceFile) -> str:
    """The template's folder that a file lies in, or "" for files elsewhere."""
    parts = file.path.relative_to(PACKAGE).parts
    return parts[1] if parts[0] == "templates" and parts[1] in FOLDERS else ""


def dispatches(tree: ast.AST, classes: Set[str] = OWN_CLASSES) -> Iterator[ast.AST]:
    """Places that tell templates apart: by the type of a choice or of its plan (one of `classes`), or by the template's name."""
    for node in (n for kind in (ast.Call, ast.MatchClass, ast.Compare) for n in nodes_of(tree, kind)):
        match node:
            case ast.Call(ast.Name("isinstance"), [_, kinds]):
                if any(isinstance(n, ast.Name) and n.id in classes for n in ast.walk(kinds)):
                    yield node
            case ast.MatchClass(ast.Name(name)) if name in classes:
                yield node
            case ast.Compare(left, _, others):
                sides = (left, *others)
                if any(isinstance(n, ast.Attribute) and n.attr == "template" for n in sides) and any(map(_is_text, sides)):
                    yield node


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda t: t.record.template)
def test_a_template_says_everything(template: KernelTemplate) -> None:
    """No method of the protocol is missing, and each is the template's own or its walk's, with the protocol's parameters."""
    for name in sorted(KernelTemplate.__abstractmethods__):
        method = getattr(type(template), name)
        assert not getattr(method, "__isabstractmethod__", False), f"{type(template).__name__} lacks {name}"
    assert template in kernel_templates()


def test_every_template_is_registered() -> None:
    """Each folder has at least one template, and each record another name."""
    homes = {type(t).__module__.split(".")[2] for t in TEMPLATES}
    assert homes == set(FOLDERS)
    assert len({t.record.template for t in TEMPLATES}) == len(TEMPLATES)


def test_a_template_without_a_method_cannot_be_made() -> None:
    """Forgetting one is an error where the template is made, not a wrong price later."""
    incomplete = type("Incomplete", (type(TEMPLATES[0]),), {"work": KernelTemplate.work})
    with pytest.raises(TypeError, match="work"):
        incomplete()


def crossings(file: SourceFile) -> set[tuple[str, str]]:
    """(the file, folder of another template that it imports)."""
    own = template_folder(file)
    return {(relative(file), parts[2]) for _, module in imported_modules(file)
            if (parts := module.split("."))[1:2] == ["templates"] and parts[2] in FOLDERS and parts[2] != own}


def test_template_folders_do_not_import_each_other() -> None:
    """Each template stands alone; what two share lies beside their folders, and packed asks through the protocol."""
    crossed = set().union(*(crossings(f) for f in package_files() if template_folder(f)))
    assert not crossed, f"imports of another template's folder: {sorted(crossed)}"


def test_a_crossing_is_found() -> None:
    """The check itself can fail."""
    text = "def f():\n    from tilefuse.templates.flat.choose import g\n    return g\n"
    planted = SourceFile(PACKAGE / "templates" / "rows" / "planted.py", text, ast.parse(text))
    assert crossings(planted) == {("templates/rows/planted.py", "flat")}


def test_only_templates_tell_templates_apart() -> None:
    """Outside of a template's folder the registry is asked: a place that lists kinds forgets the next one in silence."""
    num_dispatches = {relative(f): sum(1 for _ in dispatches(f.tree)) for f in package_files() if not template_folder(f)}
    assert not {name: number for name, number in num_dispatches.items() if number}


def test_a_dispatch_is_found() -> None:
    """The check itself can fail: by type, in a match, and by name."""
    for text in ("isinstance(p.choice, Rows | Columns)", "match c:\n    case Pointwise(vector=v):\n        pass", "p.template == 'rows'"):
        assert list(dispatches(ast.parse(text)))
