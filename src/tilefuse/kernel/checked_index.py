"""Checked subscripts: the words that a device's assertion says, and the numbers that the host executor reports.

A name of the user's stands in a device's text, a number of a parameter in a host's: what a number means, the program's step knows.
"""
from __future__ import annotations

from tilefuse.ir.names import plain_name
from tilefuse.ir.scalar import Call, Const
from tilefuse.kernel.ir import Group, InRange, Kernel
from tilefuse.kernel.operand_table import operand_place
from tilefuse.kernel.visit import parts

# Values of a packed kernel that one text names, at most.
MAX_NAMED = 4


def counts_from_end(e: object) -> bool:
    """Whether `e`, an index expression of a graph or of a pattern, is one whose negative values count from the end."""
    match e:
        case Call("select", (Call("lt", (low, Const() as zero)), Call("add", parts), same)):
            return zero.value == 0 and low == same and same in parts
    return False


def assertion_text(kernel: Kernel, e: InRange) -> str:
    """Text of a device's assertion for an index out of range: names of values, and the legal indices."""
    indices = _names(kernel, e.source) or "index"
    low = -e.extent if e.wraps else 0
    of = f", subscript {e.dimension} of {_names(kernel, e.buffer)}" if e.buffer else ""
    return f"{low} <= {indices} < {e.extent}{of}"


def _names(kernel: Kernel, buffer: str) -> str:
    """Names of the values that a buffer, or a slot of a group, stands for; "" for none."""
    origins = {b.name: b.origin for b in kernel.buffers}
    found = [origins[buffer]] if buffer in origins else []
    for group in kernel.groups:
        for n, slot in enumerate(group.slots):
            if slot.name == buffer:
                found += [origins[m.arguments[n]] for m in group.members]
    listed = [plain_name(name) for name in dict.fromkeys(found) if name]
    return " or ".join(listed[:MAX_NAMED]) + (" or others" if len(listed) > MAX_NAMED else "")


def parameter_number(kernel: Kernel, group: Group | None, buffer: str) -> str:
    """C++ text of the number of the kernel's parameter that a buffer, or a slot of the current group, is; "-1" for any other."""
    if group is not None:
        first = sum(len(g.slots) * len(g.members) for g in kernel.groups[:kernel.groups.index(group)])
        names = [s.name for s in group.slots]
        return f"(int)({operand_place(group, first, names.index(buffer))})" if buffer in names else "-1"
    names = [b.name for b in kernel.parameters]
    return str(names.index(buffer)) if buffer in names else "-1"


def has_checks(kernel: Kernel) -> bool:
    """Whether some statement of the kernel checks a subscript."""
    return kernel.checked and any(isinstance(p, InRange) for p in parts(kernel.body))

