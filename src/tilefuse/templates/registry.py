"""Which template a choice belongs to, by the type of its record. `templates/__init__.py` lists the templates; others may be added.

    kernel_template(program.choice).work(program, device)
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tilefuse.base.errors import InternalError
from tilefuse.domain.tile import Choice
from tilefuse.templates.template import KernelTemplate

_template_by_record: dict[type[Choice], KernelTemplate[Any]] = {}


def register(template: KernelTemplate[Any]) -> None:
    """Adds a template. Raises: InternalError where its record, or the name of its record, has one."""
    for known in _template_by_record:
        if known is template.record or known.template == template.record.template:
            raise InternalError(f"two templates for choices of {known.template!r}")
    _template_by_record[template.record] = template


@contextlib.contextmanager
def registered(template: KernelTemplate[Any]) -> Iterator[None]:
    """Adds a template until the context ends."""
    register(template)
    try:
        yield
    finally:
        del _template_by_record[template.record]


def kernel_template(choice: Choice) -> KernelTemplate[Any]:
    """The template of a choice. Raises: InternalError for a record that no template is registered for."""
    template = _template_by_record.get(type(choice))
    if template is None:
        raise InternalError(f"no template is registered for {type(choice).__name__}")
    return template


def template_named(name: str) -> KernelTemplate[Any]:
    """The template whose record has this name. Raises: InternalError where none has."""
    for record, template in _template_by_record.items():
        if record.template == name:
            return template
    raise InternalError(f"no template is called {name!r}")


def kernel_templates() -> tuple[KernelTemplate[Any], ...]:
    """All templates, in the order in which they were registered."""
    return tuple(_template_by_record.values())
