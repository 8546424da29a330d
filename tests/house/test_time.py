"""One model of time: `domain/roofline.py` prices the work of kernels and calls, so nobody else divides by a rate of the device."""
from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from tests.house.source_tree import PACKAGE, nodes, package_files

# Fields of `DeviceSpec` that make time of bytes, operations, blocks or launches.
RATES = {"flops_per_s", "matrix_flops_per_s", "global_bytes_per_s", "shared_bytes_per_s", "graph_launch_us", "transfer_curve",
         "resident_curve", "saturating_bytes", "scattered_adds_per_s", "line_adds_per_s", "line_requests_per_s",
         "partial_sectors_per_s", "blocks_per_s"}
ROOMS = {"templates", "plan", "emit", "passes"}
# Places that still make time of their own. Each is a debt, and the numbers only fall.
DEBTS = {
    "passes/device/convolution_layouts.py": 3,
}
# Not a time to compare candidates by: the limit that explanations show.
LIMITS = {"plan/price/cost.py": 1}


def rates_read(tree: ast.AST) -> Iterator[str]:
    """Names of the device's rates that a file reads."""
    yield from (n.attr for n in nodes(tree) if isinstance(n, ast.Attribute) and n.attr in RATES)


def test_only_the_model_of_time_reads_rates_of_a_device() -> None:
    """A template or generator that compares times counts work, and has it priced."""
    files = (f for f in package_files() if f.folder in ROOMS)
    read = Counter({f.path.relative_to(PACKAGE).as_posix(): sum(1 for _ in rates_read(f.tree)) for f in files})
    assert {name: number for name, number in read.items() if number} == DEBTS | LIMITS


def test_a_rate_that_is_read_is_found() -> None:
    """The check itself can fail."""
    assert list(rates_read(ast.parse("moved_us = num_bytes / self.device.global_bytes_per_s * 1e6"))) == ["global_bytes_per_s"]
