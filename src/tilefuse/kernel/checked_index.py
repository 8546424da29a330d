"""Checked subscripts: the text of a device's assertion, and the numbers that the host executor reports.

A device's text names the user's values. A host kernel reports parameter numbers, which the program's step maps to names.
"""
from __future__ import annotations

from tilefuse.ir.names import plain_name
from tilefuse.ir.scalar import Call, Const
from tilefuse.kernel.ir import Group, InRange, Kernel
from tilefuse.kernel.operand_table import operand_place
from tilefuse.kernel.tasks.tables import operand_number
from tilefuse.kernel.visit import parts

# Most values of a packed kernel that one assertion names.
MAX_NAMED = 4


def counts_from_end(e: object) -> bool:
    """Whether negative values of `e`, an index expression of a graph or pattern, count from the end."""
    match e:
        case Call("select", (Call("lt", (low, Const() as zero)), Call("add", parts), same)):
            return zero.value == 0 and low == same and same in parts
    return False


def assertion_text(kernel: Kernel, e: InRange) -> str:
    """Text of a device's assertion on an index: the names of the values and the legal range."""
    indices = _names(kernel, e.source) or "index"
    low = -e.extent if e.wraps else 0
    of = f", subscript {e.dimension} of {_names(kernel, e.buffer)}" if e.buffer else ""
    return f"{low} <= {indices} < {e.extent}{of}"


def _names(kernel: Kernel, buffer: str) -> str:
    """Names of the values that a buffer or a slot of a group holds; "" for none."""
    origins = {b.name: b.origin for b in kernel.buffers}
    values = [origins[buffer]] if buffer in origins else []
    for group in kernel.groups:
        for n, slot in enumerate(group.slots):
            if slot.name == buffer:
                values += [origins[m.arguments[n]] for m in group.members]
    listed = [plain_name(name) for name in dict.fromkeys(values) if name]
    return " or ".join(listed[:MAX_NAMED]) + (" or others" if len(listed) > MAX_NAMED else "")


def parameter_number(kernel: Kernel, group: Group | None, buffer: str) -> str:
    """C++ text of the parameter number of a buffer or of a slot of the current group; "-1" for a buffer that is no parameter."""
    if group is not None:
        names = [s.name for s in group.slots]
        if kernel.tasks is not None:
            return f"(int)({operand_number(kernel, group, names.index(buffer))})" if buffer in names else "-1"
        first = sum(len(g.slots) * len(g.members) for g in kernel.groups[:kernel.groups.index(group)])
        return f"(int)({operand_place(group, first, names.index(buffer))})" if buffer in names else "-1"
    names = [b.name for b in kernel.parameters]
    return str(names.index(buffer)) if buffer in names else "-1"


def has_checks(kernel: Kernel) -> bool:
    """Whether some statement of the kernel checks a subscript."""
    return kernel.checked and any(isinstance(p, InRange) for p in parts(kernel.body))

