"""The command line. Results go to standard output, progress and messages to standard error.

Exit status: 0 done; 1 our own fault (please report); 2 wrong input or usage; 3 input that tilefuse does not support; 4 the tool
chain or the device failed; 5 outputs differ (`--compare`); 130 interrupted. This file holds one of the two places where any exception
may be caught.
"""
from __future__ import annotations

import io
import os
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TextIO

import typer

from tilefuse.base.errors import CompilerError, DeviceError, InfeasibleError, ToolchainError, UnsupportedError, UserError
from tilefuse.base.printable import printable
from tilefuse.tools import completion
from tilefuse.tools.commands import blas as commands_blas
from tilefuse.tools.commands import cache as commands_cache
from tilefuse.tools.commands import device as commands_device
from tilefuse.tools.commands import export as commands_export
from tilefuse.tools.commands import info as commands_info
from tilefuse.tools.commands import model as commands_model
from tilefuse.tools.commands import run as commands_run
from tilefuse.tools.commands import tune as commands_tune
from tilefuse.tools.examples import SHORT, help_text

OK, INTERNAL, USER, UNSUPPORTED, ENVIRONMENT, INTERRUPTED = 0, 1, 2, 3, 4, 130
# click's own usage error, wherever this typer keeps its click: the class from which a bad parameter descends.
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="tilefuse", no_args_is_help=True, add_completion=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Compile, run and explain models. Exit status: 0 done, 1 internal error, 2 wrong input, 3 unsupported, 4 tool chain or device, "
         "5 outputs differ, 130 interrupted.")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        import importlib.metadata

        print(f"tilefuse {importlib.metadata.version('tilefuse')}")
        raise typer.Exit


@app.callback()
def _common(version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and stop")] = False) -> None:
    pass


app.command("run")(commands_run.run)
app.command("compile")(commands_model.compile_model)
app.command("opt")(commands_model.opt)
app.command("explain")(commands_model.explain)
app.command("info")(commands_info.info)
app.command("view")(commands_model.view)
app.command("bench")(commands_run.bench)
app.command("export")(commands_export.export)
app.command("blas")(commands_blas.blas)
app.command("tune")(commands_tune.tune)
app.add_typer(commands_tune.tuning_app, name="tuning")
app.command("calibrate")(commands_device.calibrate)
app.command("options")(commands_cache.options)
app.command("key")(commands_cache.key)
app.add_typer(commands_cache.cache_app, name="cache")
for _command in app.registered_commands:
    _command.epilog, _command.short_help = help_text(_command.name or ""), SHORT.get(_command.name or "")


def status_of(error: BaseException) -> int:
    """The exit status for an error of ours."""
    match error:
        case UserError():
            return USER
        case UnsupportedError() | InfeasibleError():
            return UNSUPPORTED
        case ToolchainError() | DeviceError():
            return ENVIRONMENT
    return INTERNAL


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status. Never raises, except what would end the interpreter anyway."""
    with warnings.catch_warnings():
        # torch's exporter meets its own deprecation; the user of a command can do nothing about it.
        warnings.filterwarnings("ignore", message=".*treespec.*", category=FutureWarning)
        warnings.showwarning = _show_warning
        return _run(arguments)


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
                  line: str | None = None) -> None:
    """A warning of ours in one line; where in our files it was raised says nothing to who runs a command."""
    ours = category.__module__.partition(".")[0] == "tilefuse"
    _say(f"warning: {message}" if ours else warnings.formatwarning(message, category, filename, lineno, line).rstrip())


def _run(arguments: Sequence[str] | None) -> int:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as in `tilefuse ... >&-`
            setattr(sys, name, io.StringIO())
    try:
        if completion.answered(_ask_typer, os.environ):
            return OK
        result = app(args=list(arguments) if arguments is not None else None, prog_name="tilefuse", standalone_mode=False)
        if result == INTERRUPTED:  # typer turns an interrupt inside a command into this status
            raise KeyboardInterrupt
        sys.stdout.flush()  # a full disk shows itself here, not when the interpreter ends
        return result if isinstance(result, int) else OK
    except _ClickError as error:
        said = io.StringIO()  # it quotes the arguments, which may hold anything
        error.show(file=said)  # type: ignore[attr-defined]
        _say(said.getvalue().rstrip("\n"))
        return USER
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted; nothing was left half written")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`tilefuse explain ... | head`): not an error, but the flush at exit would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except CompilerError as error:
        _say(f"error: {error}")
        for note in getattr(error, "__notes__", ()):
            _say(f"  {note}")
        status = status_of(error)
        if status == INTERNAL:
            _report(error)
        return status
    except OSError as error:
        place = _place_in_model(error)
        _say(f"error: {error.strerror or error}: {f'in {place}' if place else error.filename or 'standard output'}")
        return USER if place else ENVIRONMENT
    except MemoryError as error:
        _say(f"error: the host's memory does not hold this: {error}")
        return ENVIRONMENT
    except Exception as error:
        place = _place_in_model(error)
        if place is not None:
            _say(f"error: the model raised {type(error).__name__}: {error}\n  at {place}")
            for note in getattr(error, "__notes__", ()):
                _say(f"  {note}")
            return USER
        _say(f"error: {type(error).__name__}: {error}")
        _report(error)
        return INTERNAL


def _ask_typer() -> None:
    app(args=[], prog_name="tilefuse", standalone_mode=False)


def _place_in_model(error: BaseException) -> str | None:
    """Where in the user's own files the error arose, if it did: file and line of the last such frame after the last one of ours."""
    ours = str(Path(__file__).parents[1])
    folders = [p for key, p in sysconfig.get_paths().items() if "lib" in key]
    installed = [ours, *dict.fromkeys((*folders, *(str(Path(p).resolve()) for p in folders)))]  # an environment may be a link
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith(tuple(installed)):
        return f"{error.filename}:{error.lineno}"
    place, called = None, False
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(ours):
            place, called = None, frame.filename != __file__
        elif called and not frame.filename.startswith((*installed, "<")) and Path(frame.filename).is_file():
            place = f"{frame.filename}:{frame.lineno}"
    return place


def _report(error: BaseException) -> None:
    if os.environ.get("TILEFUSE_DEBUG", "0") not in ("", "0"):
        _say("".join(traceback.format_exception(error)).rstrip("\n"))
    else:
        last = traceback.extract_tb(error.__traceback__)[-1:]
        place = f" at {os.path.basename(last[0].filename)}:{last[0].lineno}" if last else ""
        _say(f"This is a fault of tilefuse{place}. Run again with TILEFUSE_DEBUG=1 for the whole trace, and please report it.")


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
