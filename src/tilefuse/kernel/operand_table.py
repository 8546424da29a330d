"""Operands of packed groups in printed kernels: one structure of pointers, and constant tables of block and size numbers per member.

    pointers   group by group, member by member, slot by slot: the kernel's parameters in order
    tables     known when the kernel is printed, so they are constants of the source
"""
from __future__ import annotations

from collections.abc import Iterable

from tilefuse.base.errors import InternalError
from tilefuse.kernel.ir import Group, Kernel
from tilefuse.kernel.writer import Writer, identifier

NUMBERS_A_LINE = 16


def operand_table(kernel: Kernel, index_type: str, out: Writer) -> str:
    """Prints the structure and the tables of a packed CUDA kernel; returns the kernel's parameter list.

    Raises: InternalError for a kernel with tensor maps: members would need maps of their own.
    """
    if kernel.maps:
        raise InternalError(f"packed kernel {kernel.name} has tensor maps {', '.join(m.name for m in kernel.maps)}")
    with out.block(f"struct {kernel.name}_operands", ";"):
        out.line(f"void* at[{len(kernel.parameters)}];")
    for number, group in enumerate(kernel.groups):
        member_tables(group, number, f"__constant__ {index_type}", out)
    return f"const __grid_constant__ {kernel.name}_operands tf_operands"


def member_tables(group: Group, number: int, declaration: str, out: Writer) -> None:
    """Prints a group's constant tables: each member's first block, unless all have equally many blocks, and each number per member."""
    if len(group.members) == 1:
        return
    if not group.even_blocks:
        constant_table(f"tf_first_{number}", declaration, group.first_blocks, out)
    for n, (name, _) in enumerate(group.numbers):
        constant_table(f"tf_{identifier(name)}_{number}", declaration, [m.numbers[n] for m in group.members], out)


def constant_table(name: str, declaration: str, values: Iterable[int], out: Writer) -> None:
    """Prints an array of numbers."""
    listed = list(values)
    with out.block(f"{declaration} {name}[{len(listed)}] =", ";"):
        for start in range(0, len(listed), NUMBERS_A_LINE):
            out.line(", ".join(map(str, listed[start:start + NUMBERS_A_LINE])) + ",")


def find_member(group: Group, number: int, launched: str, index_type: str, out: Writer) -> None:
    """Prints the lookup of the member that block `launched` belongs to, the block's number within the member, and the member's numbers."""
    place = f"{launched} - {group.first_block}" if group.first_block else launched
    if len(group.members) == 1:
        out.line(f"const {index_type} block = {place};")
        for n, (name, _) in enumerate(group.numbers):
            out.line(f"const {index_type} {identifier(name)} = {group.members[0].numbers[n]};")
        return
    out.line(f"const {index_type} tf_place = {place};")
    if group.even_blocks == 1:
        out.line("const int tf_member = (int)tf_place;")
        out.line(f"const {index_type} block = 0;")
    elif group.even_blocks:
        out.line(f"const int tf_member = (int)(tf_place / {group.even_blocks});")
        out.line(f"const {index_type} block = tf_place % {group.even_blocks};")
    else:
        out.line(f"const int tf_member = tf_member_of<{len(group.members)}>(tf_first_{number}, tf_place);")
        out.line(f"const {index_type} block = tf_place - tf_first_{number}[tf_member];")
    for name, _ in group.numbers:
        out.line(f"const {index_type} {identifier(name)} = tf_{identifier(name)}_{number}[tf_member];")


def operand_place(group: Group, first: int, slot: int) -> str:
    """Subscript of the current member's slot in the table of pointers; `first` is the subscript of the group's first pointer."""
    if len(group.members) == 1:
        return str(first + slot)
    start = f"{first + slot} + " if first + slot else ""
    return f"{start}tf_member * {len(group.slots)}"
