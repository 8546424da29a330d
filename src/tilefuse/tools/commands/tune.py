"""The commands `tilefuse tune` and `tilefuse tuning ...`: search for faster templates, and what was found."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tilefuse.base.options import Options
from tilefuse.tools.commands.model import AsJson, Device, Model, OptionFlags, Shapes
from tilefuse.tools.console import emit_json, errors, results, working
from tilefuse.tools.explain import counted

if TYPE_CHECKING:
    from tilefuse.driver.measure.tune import CallOutcome, Comparison

tuning_app = typer.Typer(no_args_is_help=True, help="Tuning results: list, export, import, clear.")


def tune(model: Model, shapes: Shapes = None, device: Device = "", option: OptionFlags = None,
         seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="time for all kernels and calls together")] = 60.0,
         again: Annotated[bool, typer.Option("--again", help="tune kernels again that were tuned to the end")] = False,
         as_json: AsJson = False) -> None:
    """Run a model's kernels with other templates and keep the fastest, and time the library's calls for its products; compiles use both
    from then on. May be interrupted and resumed."""
    from tilefuse.driver.compile import present_device
    from tilefuse.driver.measure.measure import DiskRecords, KernelMeasurer
    from tilefuse.driver.measure.tune import Outcome, Tuner, speed_up
    from tilefuse.driver.measure.tuning_results import TuningResults
    from tilefuse.tools.programs import chosen_device, generate, parse_options

    options = Options.from_environment().with_overrides(**parse_options(option or ()))
    spec, place = present_device(chosen_device(device))
    outcomes: list[Outcome] = []
    with working(f"planning {model}", quiet=as_json) as progress:
        plans: list[Any] = []
        task = progress.task_ids[0]

        def plan_with(results: bool) -> Any:
            progress.update(task, description=f"planning {model}")
            plans.append(generate(model, shapes or [], spec, [*(option or ()), *([] if results else ["tuned=false"])]).plan)
            return plans[-1]

        def tell(kernel: str, tried: int, candidates: int) -> None:
            progress.update(task, description=f"tuning {kernel}", completed=tried, total=candidates)

        tuner = Tuner(spec, KernelMeasurer(spec, place, options), DiskRecords.of(spec, options), TuningResults.of(spec, options), tell=tell)
        try:
            for outcome in tuner.run(plan_with, seconds, again):
                outcomes.append(outcome)
        except KeyboardInterrupt:
            errors().print("interrupted; what was found is kept, and the next run goes on from there", highlight=False)
            raise
    if as_json:
        emit_json({"device": spec.name, "speed_up": speed_up(outcomes), "kernels": [
            {"kernel": o.kernel, "uses": o.uses, "known": o.known, **asdict(o.tuned)} for o in outcomes],
            "calls": [{"products": o.products, "known": o.known, **asdict(o.timed)} for o in tuner.calls],
            "kernel_or_call": [{**asdict(c), "is_kernel_faster": c.is_kernel_faster} for c in tuner.comparisons],
            "untuned": [{"kernel": kernel, "why": why} for kernel, why in tuner.untuned]})
        return
    number = len({p.name for plan in plans for p in plan.programs})
    table = Table(title=f"{len(outcomes)} of {counted(number, 'kernel')} tuned on {spec.name}", title_justify="left")
    for column in ("kernel", "before us", "after us", "tried", "rejected", "template"):
        table.add_column(column, overflow="fold", justify="right" if column.endswith(("us", "tried")) else "left")
    for o in outcomes:
        rejected = ", ".join(f"{count} {reason}" for reason, count in o.tuned.rejected.items())
        tried = f"{o.tuned.trials}{'' if o.tuned.done else ' so far'}{' (known)' if o.known else ''}"
        table.add_row(o.kernel, f"{o.tuned.base_us:.2f}", f"{o.tuned.us:.2f}", tried, rejected or "-", o.tuned.template)
    results().print(table)
    _print_calls(tuner.calls, tuner.comparisons)
    kernels_by_reason: dict[str, list[str]] = {}
    for kernel, why in tuner.untuned:
        kernels_by_reason.setdefault(why, []).append(kernel)
    for why, kernels in kernels_by_reason.items():
        results().print(f"{len(kernels)} not timed: {why}: {', '.join(kernels)}", markup=False, highlight=False)
    results().print(f"kernels take {1 / speed_up(outcomes):.3f} of the time before", highlight=False)


def _print_calls(calls: Sequence[CallOutcome], comparisons: Sequence[Comparison]) -> None:
    """The times of calls, and each kernel of products beside its calls; nothing for a model without products."""
    if calls:
        table = Table(title=f"{counted(len(calls), 'library call')} timed", title_justify="left")
        for column in ("call", "predicted us", "us", "products"):
            table.add_column(column, overflow="fold", justify="right" if column.endswith("us") else "left")
        for o in calls:
            table.add_row(f"{o.timed.label}{' (known)' if o.known else ''}", f"{o.timed.predicted_us:.2f}", f"{o.timed.us:.2f}",
                          ", ".join(f"%{p}" for p in o.products))
        results().print(table)
    if comparisons:
        table = Table(title="kernel or call", title_justify="left")
        for column in ("kernel", "products", "kernel us", "calls us", "other nodes us", "faster"):
            table.add_column(column, overflow="fold", justify="right" if column.endswith("us") else "left")
        for c in comparisons:
            table.add_row(c.kernel, ", ".join(f"%{p}" for p in c.products), f"{c.kernel_us:.2f}", f"{c.calls_us:.2f}",
                          f"{c.others_us:.2f} predicted", "kernel" if c.is_kernel_faster else "call")
        results().print(table)


@tuning_app.command("list")
def list_results(as_json: AsJson = False) -> None:
    """List the stored results of every device."""
    from tilefuse.driver.measure.tuning_results import Tuned, TunedCall, results_by_device

    stored = results_by_device(Options.from_environment())
    by_device: dict[str, tuple[Tuned | TunedCall, ...]] = {device: (*r.all(), *r.calls()) for device, r in stored.items()}
    if as_json:
        emit_json({device: [asdict(t) for t in rows] for device, rows in by_device.items()})
        return
    table = Table(title=counted(sum(map(len, by_device.values())), "tuning result"), title_justify="left")
    for column in ("device", "kernel", "before us", "after us", "template"):
        table.add_column(column, overflow="fold")
    for device, rows in by_device.items():
        for t in rows:
            if isinstance(t, Tuned):
                table.add_row(device, t.label, f"{t.base_us:.2f}", f"{t.us:.2f}", t.template)
            else:
                table.add_row(device, f"call {t.label}", "", f"{t.us:.2f}", f"predicted {t.predicted_us:.2f} us")
    results().print(table)


@tuning_app.command("export")
def export(path: Annotated[Path, typer.Argument(help="the file to write")]) -> None:
    """Write the results of all devices to one file."""
    from tilefuse.driver.measure.tuning_results import export_results

    _tell(f"{export_results(Options.from_environment(), path)} results written to {path}")


@tuning_app.command("import")
def import_file(path: Annotated[Path, typer.Argument(help="a file written by `tilefuse tuning export`")]) -> None:
    """Add the results of an exported file that are new or faster."""
    from tilefuse.driver.measure.tuning_results import import_results

    _tell(f"{counted(import_results(Options.from_environment(), path), 'result')} added")


@tuning_app.command("clear")
def clear() -> None:
    """Remove every tuning result."""
    from tilefuse.driver.measure.tuning_results import results_by_device

    removed = sum(results.clear() for results in results_by_device(Options.from_environment()).values())
    _tell(f"{counted(removed, 'result')} removed")


def _tell(text: Any) -> None:
    errors().print(text, markup=False, highlight=False)
