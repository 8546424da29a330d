"""The commands `tilefuse cache ...` and `tilefuse options`: what is kept on disk, and what can be set."""
from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tilefuse.base.options import OptionRecord, option_table
from tilefuse.tools.console import emit_json, errors, results
from tilefuse.tools.explain import bytes_text
from tilefuse.tools.lines import output_width, print_lines

cache_app = typer.Typer(no_args_is_help=True, help="The kernel cache: list, why, export, import, clear.")

AsJson = Annotated[bool, typer.Option("--json", help="print JSON on standard output")]

SignKey = Annotated[Path | None, typer.Option("--sign", help="sign the file with the key in this file; `tilefuse key` makes one")]
RequiredKey = Annotated[Path | None, typer.Option("--require-signature", help="refuse the file unless the key in this file signed it")]


@cache_app.command("list")
def list_entries(as_json: AsJson = False) -> None:
    """List the cached kernels, oldest first."""
    from tilefuse.runtime.stores.cache import KernelCache

    cache = KernelCache.from_environment()
    entries = cache.entries()
    if as_json:
        emit_json({
            "folder": str(cache.folder) if cache.folder else None, "size_bytes": cache.size_bytes(),
            "entries": [{"digest": e.digest, "label": e.label, "num_bytes": e.num_bytes, "created": e.created, **dict(e.fields)}
                        for e in entries]})
        return
    table = Table(title=f"{cache.folder or 'the cache is off'}: {len(entries)} kernels, {bytes_text(cache.size_bytes())}",
                  title_justify="left")
    for column in ("digest", "kernel", "target", "arch", "size", "written"):
        table.add_column(column)
    for entry in entries:
        fields = dict(entry.fields)
        written = datetime.fromtimestamp(entry.created).isoformat(sep=" ", timespec="seconds")
        table.add_row(entry.digest[:12], entry.label, fields.get("target", ""), fields.get("arch", ""), bytes_text(entry.num_bytes),
                      written)
    results().print(table)


@cache_app.command("why")
def why(model: Annotated[str, typer.Argument(help="the model to look up, as for `tilefuse compile`")],
        shapes: Annotated[list[str] | None, typer.Option("--shapes", help="NAME:1x2x3[@dtype]; may be repeated")] = None,
        device: Annotated[str, typer.Option("--device", help="host or cuda; default: the GPU if there is one")] = "",
        option: Annotated[list[str] | None, typer.Option("-O", "--option", help="NAME=VALUE; `tilefuse options` lists them")] = None,
        as_json: AsJson = False) -> None:
    """Say for each kernel of a model whether it is cached, and if not, in what it differs from the nearest entry."""
    from tilefuse.tools.programs import cached_kernels

    cache, keys = cached_kernels(model, shapes or [], device, option or [])
    answers = [(key.label, cache.get(key) is not None, cache.why(key)) for key in keys]
    if as_json:
        emit_json([{"kernel": label, "cached": hit, "why": text} for label, hit, text in answers])
        return
    for _, _, text in answers:
        results().print(text, markup=False, highlight=False)


@cache_app.command("export")
def export(path: Annotated[Path, typer.Argument(help="the file to write")], sign: SignKey = None, as_json: AsJson = False) -> None:
    """Write the whole cache to one file."""
    from tilefuse.base.options import Options
    from tilefuse.runtime.stores.cache import KernelCache
    from tilefuse.runtime.stores.cache_file import export_cache

    count = export_cache(KernelCache.from_environment(), path, sign or Options.from_environment().sign)
    _told({"kernels": count, "file": str(path)}, f"{count} kernels written to {path}", as_json)


@cache_app.command("import")
def import_file(path: Annotated[Path, typer.Argument(help="a file written by `tilefuse cache export`")],
                require_signature: RequiredKey = None, as_json: AsJson = False) -> None:
    """Add the kernels of an exported file to the cache. They are machine code that later runs as you: import what you trust."""
    from tilefuse.base.options import Options
    from tilefuse.runtime.stores.cache import KernelCache
    from tilefuse.runtime.stores.cache_file import import_cache

    count = import_cache(KernelCache.from_environment(), path, require_signature or Options.from_environment().require_signature)
    _told({"kernels": count, "file": str(path)}, f"{count} kernels added", as_json)


@cache_app.command("clear")
def clear(as_json: AsJson = False) -> None:
    """Remove every cached kernel."""
    from tilefuse.runtime.stores.cache import KernelCache

    cache = KernelCache.from_environment()
    where = f"removed from {cache.folder}" if cache.folder else "removed: the cache is off, or its folder cannot be written"
    count = cache.clear()
    _told({"kernels": count, "folder": str(cache.folder) if cache.folder else None}, f"{count} kernels {where}", as_json)


def _told(facts: dict[str, object], line: str, as_json: bool) -> None:
    """Prints what a command did: a document on standard output, or a line on standard error."""
    if as_json:
        emit_json(facts)
    else:
        errors().print(line, markup=False, highlight=False)


def key(path: Annotated[Path, typer.Argument(help="the file to write; it must not exist")], as_json: AsJson = False) -> None:
    """Write a new key for --sign and --require-signature. Who has the key can sign and verify: keep it as you keep a password."""
    from tilefuse.runtime.stores.signature import new_key

    new = new_key(path)
    _told({"key": new.name, "file": str(path)}, f"key {new.name} written to {path}", as_json)


def options(as_json: AsJson = False) -> None:
    """List every option, one a line: name=default, meaning, legal values, environment variable.

    An option is a keyword of tilefuse.compile, -O name=value of a command, or the variable.
    """
    rows = option_table()
    if as_json:
        emit_json([{"name": r.name, "variable": r.variable, "default": r.default, "choices": list(r.choices), "doc": r.doc,
                    "affects_code": r.affects_code} for r in rows])
        return
    print_lines((_option_line(row) for row in rows), wrap=True, width=output_width())


def _option_line(row: OptionRecord) -> str:
    """An option in one line, which grep finds by its name, its variable and the words of its meaning."""
    legal = f" ({', '.join(map(str, row.choices))})" if row.choices else ""
    default = json.dumps(row.default) if not isinstance(row.default, str) else row.default or '""'
    return f"{row.name}={default}  {row.doc}{legal}; {row.variable}"
