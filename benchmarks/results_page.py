"""docs/results.md: the tables of all suites from the newest records, with every column explained and the command that measures them."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import calls, characteristics, tables
from benchmarks.products.tables import products_table
from benchmarks.record import Record
from benchmarks.report import OURS, device_text
from tilefuse.runtime.summary import counted

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results.md"
PEER_WORDS = {"inductor": "torch.compile", "jax": "jax.jit"}

# Columns that mean the same in every table: headings, explanation.
COMMON: tuple[tuple[tuple[str, ...], str], ...] = (
    (("limit us",), "time of the fewest bytes (every input read once, every result written once) at the copy bandwidth of the case's own "
                    "run; in the suites `stitched` and `products` the larger of that and its products at the rate of a large product of "
                    "the same type"),
    (("share of the limit", "share of the copy bandwidth"), "limit over tilefuse's time: 1 is the speed of a copy. Above 1, part of the "
                                                            "data stayed in the second-level cache"),
    (("eager us", "eager ms", "eager s"), "torch, operator by operator, with its own fused operator where it has one"),
    (("torch.compile us", "torch.compile ms", "torch.compile s"), "torch.compile with its own backend (Inductor), with static shapes"),
    (("tilefuse us", "tilefuse ms", "tilefuse s"), "the same function compiled by tilefuse"),
    (("× eager", "× torch.compile", "× unfused"), "that peer's time over tilefuse's: above 1, tilefuse is faster"),
    (("× best peer",), "time of the fastest of eager, torch.compile and jax.jit over tilefuse's"),
)


@dataclass(frozen=True)
class Section:
    """One suite on the page.

    measured  the quantity, how it is measured, and the limit it is held against
    columns   explanation of every column of the tables that is not in `COMMON`, by heading
    """

    suite: str
    title: str
    measured: str
    table: Callable[[Record], str]
    columns: Mapping[str, str] = field(default_factory=dict)


REPLAYS = "Medians of CUDA-graph replays over rotating inputs larger than the second-level cache."
SECTIONS = (
    Section("patterns", "Memory-bound patterns",
            f"Operators that are limited by memory: elementwise chains, norms, softmax, losses, their gradients, transposes, scans, pools. "
            f"{REPLAYS} A case moves about 256 MiB; each row is the geometric mean of a pattern's cases (types f16, f32 and bf16, rows "
            "of 256 "
            "to 262144 elements). Convolutions stand here because of the operators around them: their limit counts bytes only.",
            tables.patterns_table, {"pattern": "the family of cases", "cases": "how many were measured"}),
    Section("models", "Whole models",
            f"{REPLAYS} A training step is forward, loss and backward. torch.compile runs in its default mode.", tables.models_table,
            {"model": "model / inference or training / type / batch"}),
    Section("calls", "Host time of a call",
            "Time until a call returns, which the processor needs for checks and launches, and wall time until the device is ready. "
            "Each mode "
            "is timed in the same process on two sets of inputs that take turns.", calls.markdown,
            {"call": "model / inference or training / type / batch",
             "of torch.compile's": "tilefuse's host time over torch.compile's: below 1, tilefuse is faster",
             "torch.compile, reduce-overhead ms": "with `mode=\"reduce-overhead\"` (CUDA graphs)",
             "tilefuse, reduce-overhead ms": "with `mode=\"reduce-overhead\"`",
             "of torch.compile's, reduce-overhead": "the same ratio in that mode",
             "bare replay ms": "replay of the recorded graphs and copies of their inputs, without torch and tilefuse around them",
             "of the bare replay's": "tilefuse's wall time with `reduce-overhead` over the bare replay's",
             "device ms": "sum of the kernels' own times, by torch's profiler, in tilefuse's default mode"}),
    Section("stitched", "Patterns for one stitched or packed kernel",
            f"Chains of small products and reductions, an LSTM, attention, Adam over many tensors. {REPLAYS} torch.compile searches "
            "templates "
            "(`max-autotune-no-cudagraphs`).", tables.stitched_table,
            {"pattern": "pattern / type / sizes", "target × torch.compile": "the ratio that the project asks of itself",
             "compile time of torch.compile's": "tilefuse's compile time over torch.compile's, both with empty caches"}),
    Section("products", "Matrix products, alone and with their neighbours",
            "Bare products of all types and transposes (n: as stored, t: transposed; sizes are rows x columns x inner), then products with "
            f"the operators around them. {REPLAYS} A fused product is held against its products alone by torch, timed in the same "
            "process, and against torch.compile, which searches templates (`max-autotune-no-cudagraphs`); a bare one against torch "
            "(cuBLAS) and jax.jit (XLA).", products_table,
            {"product": "kind / type / transposes / sizes; of batches the operands' batches before the sizes",
             "fused product": "pattern / type / sizes", "jax.jit us": "the product in JAX",
             "its products alone us": "the pattern's products without their neighbours, by torch",
             "TFLOP/s": "operations of the products over tilefuse's time, in 1e12 a second",
             "of its products alone": "tilefuse's time over that: the project asks 1.08 at most",
             "library calls": "calls of cuBLASLt, cuDNN or torch in tilefuse's program"}),
    Section("workloads", "Workloads of FusionStitching's Table 1",
            f"The ten workloads that the paper describes, rebuilt from its text. {REPLAYS} Kernels are those that torch's profiler sees "
            "in one "
            "step, device copies and fills included. torch.compile searches templates.", characteristics.markdown,
            {"workload": "workload / inference or training / type", "graph size": "operators of the traced graph",
             "eager kernels": "kernels of one step, each for eager, torch.compile and tilefuse", "eager kernel us": "mean time of one "
                                                                                                                    "kernel",
             "eager memory share": "share of the kernels' time in those limited by memory",
             "torch.compile kernels": "as above", "tilefuse kernels": "as above",
             "eager/torch.compile kernels": "eager's kernels over torch.compile's", "eager/tilefuse kernels": "eager's over tilefuse's",
             "tilefuse/torch.compile kernels": "tilefuse's over torch.compile's: below 1, fewer kernels",
             "torch.compile speed": "eager's time over torch.compile's", "tilefuse speed": "eager's time over tilefuse's",
             "against torch.compile": "torch.compile's time over tilefuse's: above 1, tilefuse is faster",
             "busy against torch.compile": "sum of tilefuse's kernel times over that of torch.compile's",
             "torch.compile compile s": "compile time with empty caches", "tilefuse compile s": "compile time with empty caches",
             "planned kernels": "kernels of tilefuse's plan", "library calls": "calls of cuBLASLt, cuDNN or torch in it",
             "elementwise patterns": "share of the plan's kernels whose nodes are elementwise only; so `reduction patterns` and "
                                     "`product patterns` (those with reductions, with matrix products)",
             "reduction patterns": "see `elementwise patterns`", "product patterns": "see `elementwise patterns`",
             "elementwise time": "share of the kernels' time in that class; so `reduction time`, `product time`",
             "reduction time": "see `elementwise time`", "product time": "see `elementwise time`",
             "shared share": "share of kernels that use shared memory", "shared time": "share of the kernels' time in those",
             "shared average KiB": "mean shared memory of a block of those", "shared largest KiB": "the largest",
             "allocated/requested": "shared memory allocated over the sum of the values in it: below 1, values reuse each other's place"}),
    Section("arrays", "Programs of symbolic arrays",
            f"Training steps with Adam (forward, backward and update in one program), an activation of one's own, Adam over 96 tensors, "
            "the "
            f"compile time of a step of 945 nodes. {REPLAYS} torch runs channels last with its fused Adam.", tables.arrays_table,
            {"program": "network / training / type / batch; or program / form / type / elements",
             "unfused ms": "the same program by tilefuse with fusion off", "eager peak MiB": "memory above weights and state during a step",
             "torch.compile peak MiB": "the same of torch.compile", "tilefuse peak MiB": "the same of tilefuse"}),
    Section("blas", "BLAS sequences and iterations of solvers",
            f"Scripts of BLAS calls at their largest size. {REPLAYS} The limit counts a matrix twice where no chip holds it until it is "
            "used "
            "again.", tables.blas_table,
            {"script": "script / type / size", "torch (cuBLAS) us": "the calls one by one through torch", "jax.jit us": "the script in JAX",
             "judged ratio": "the best peer's time over tilefuse's; of solvers cuBLAS's, because one library call is a whole product there",
             "sizes": "how many sizes were measured", "least of the sizes": "the smallest judged ratio among them"}),
    Section("search", "Search over the programs of scripts",
            "Every implementation of every fusion is listed and ranked by predicted time; the first 24 programs are timed.",
            tables.search_table,
            {"script": "script / type / size", "fusions": "sets of calls that can share a kernel",
             "implementations": "kernels that those sets have", "timed": "programs timed", "best us": "time of the fastest program",
             "rank of the best": "its place in the predicted order (0: the first)",
             "first of the best": "speed of the first program as a share of the best's",
             "worst of the best": "speed of the slowest timed program as a share of the best's",
             "first program s": "time to find the first program", "search s": "time of the whole search with all timing"}),
    Section("compiler", "The compiler itself",
            "Each figure is taken in a process of its own: import, cold and warm compile of BERT-base, the host time of a launch, "
            "compile time "
            "and memory as a graph grows, planning time by shape of graph.", tables.compiler_table,
            {"figure": "name / variant or nodes", "measured": "value with its unit; `cpu` is processor time, `grown` memory that the "
                                                              "compile "
                                                             "left behind"}),
    Section("planner", "Predicted against measured times",
            "Every kernel of the plans of this suite's graphs, and every library call, is predicted by the model of time and then timed by "
            "itself.", tables.planner_table,
            {"template": "template of the kernel (`call`: library call)", "kernels": "how many",
             "rank correlation": "Spearman's, of predicted and measured time: 1 means the same order",
             "lower quartile": "of measured over predicted time", "median": "of the same", "upper quartile": "of the same"}),
    Section("sizes", "Calls whose sizes change",
            "Total time of a stream of calls, compilation included: generated tokens with a growing cache, random batches, sizes that "
            "return. Each peer runs three times if the time given suffices, each time in a new process with empty caches: all peers take "
            "their turn, then the next round begins. A total is the median of its runs (of two the shorter), with the shortest and the "
            "longest in brackets; one without brackets is of one run. Single runs differ by up to a factor of two where "
            "other programs use the host.", tables.sizes_table,
            {"stream": "stream / calls", "aot_eager s": "torch.compile's tracing with eager kernels: what tracing alone costs",
             "tilefuse, cached s": "tilefuse with what the first round's process kept on disk",
             "tilefuse, sizes_at_once=0 s": "with that option: no size is compiled before it returns",
             "× aot_eager": "tilefuse's median over aot_eager's: below 1, tilefuse is faster",
             "× aot_eager, sizes_at_once=0": "the same with that option",
             "third time: aot_eager s": "the same calls a third time, in the run of the median",
             "third time: torch.compile s": "the same of torch.compile",
             "third time: tilefuse s": "the same of tilefuse",
             "tilefuse, background done s": "the same calls once compiles in the background have ended, in the first round; at most 8 s "
                                           "are waited for them",
             "results": "right: within four times eager's own error against f64"}),
)

HEAD = """<!-- Generated by `python -m benchmarks readme` from the records in benchmarks/results; do not edit by hand. -->

# Measured results

Each case is of the newest run that tried it, beside the peers of that run on the same device; where a run left a peer out, its time is of
an earlier run on the same kind of device, and the line above the table says so. "-" means not measured. `--devices all` spreads a suite
over the GPUs of a machine; `--quick` takes a case of each family and ends within three minutes on one H200, with torch.compile in its
default mode. Raw records and the history of all runs: [benchmarks/results](../benchmarks/results/README.md).

Columns that mean the same everywhere:

"""


def provenance(record: Record, to_results: str = "../benchmarks/results/") -> str:
    """Origin of the figures: device, versions, copy bandwidth; commits and files; peers of an earlier run; cases without a result.

    to_results: path of the folder of records from the page.
    """
    header = record.header
    versions = [f"{name} {version}" for name, version in header.get("versions", {}).items() if name in ("torch", "triton", "jax")]
    runs = [f"commit {str(run['commit'])[:7]}, {str(run['time'])[:10]} ([{Path(run['file']).name}]({to_results}{run['file']}))"
            for run in header["runs"]]
    if len({run.get("inductor_mode") for run in header["runs"]}) > 1:
        runs = [f"{told}, torch.compile's mode {run.get('inductor_mode')}" for run, told in zip(header["runs"], runs, strict=True)]
    if len(runs) > 1:
        runs = [f"{counted(run['num_cases'], 'case')} of {told}" for run, told in zip(header["runs"], runs, strict=True)]
    told = [", ".join([device_text(record), *versions]), *runs]
    entries = [entry["peers"] for entry in record.cases.values() if "peers" in entry]
    earlier = Counter(peer for peers in entries for peer, measured in peers.items() if measured.get("is_earlier"))
    if earlier:
        told.append("of an earlier run than tilefuse's, on a device of the same kind: "
                    + ", ".join(f"{PEER_WORDS.get(peer, peer)} in {counted(count, 'case')}" for peer, count in sorted(earlier.items())))
    failed = [name for name, entry in record.cases.items() if entry.get("peers", {}).get(OURS, {"status": "ok"})["status"] != "ok"]
    if failed:
        told.append(f"no result of tilefuse: {', '.join(failed)}")
    return "; ".join(told)


def text(records: Mapping[str, Record]) -> str:
    """The whole page for the newest records of the suites."""
    found = [s for s in SECTIONS if s.suite in records]
    contents = "\n".join(f"- [{s.title}](#{anchor(s.title)}): `python -m benchmarks {s.suite}`" for s in found)
    parts = [HEAD + "\n".join(_explained(heads, means) for heads, means in COMMON), contents]
    for section in found:
        record = records[section.suite]
        shown = section.table(record)
        explained = "\n".join(_explained((head,), means) for head, means in section.columns.items() if f" {head} |" in shown)
        parts += [f"## {section.title}", section.measured, explained, f"{provenance(record)}.", shown]
    return "\n\n".join(parts) + "\n"


def anchor(title: str) -> str:
    """The fragment that a heading of a page has: lower case, hyphens for spaces, no other marks."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def _explained(heads: tuple[str, ...], means: str) -> str:
    return f"- {', '.join(f'*{head}*' for head in heads)}: {means}"
