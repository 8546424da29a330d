"""CUDA text of one warpgroup instruction, for one number of columns and one pair of types: a function that no support header defines.

Each accumulator register is an operand of its own, so that the function's text depends on the number of columns; a header with all of
them would have 30,000 lines. Source: PTX ISA, wgmma.mma_async.
"""
from __future__ import annotations

import re
import textwrap

from tilefuse.kernel.pipeline import WARPGROUP_INNER_BYTES

# PTX name and bytes of the elements of operands.
_ELEMENTS = {"f16": ("f16", 2), "bf16": ("bf16", 2), "f32": ("tf32", 4), "f8e4m3": ("e4m3", 1), "f8e5m2": ("e5m2", 1),
             "i8": ("s8", 1), "u8": ("u8", 1)}
_NAME = re.compile(r"tf_wgmma_n(\d+)_([a-z0-9]+)_([a-z0-9]+?)(_held)?")
# Length of the text's lines of accumulator registers.
_LINE = 130


def instruction_name(columns: int, left: str, right: str, left_registers: bool) -> str:
    """Name of the function of an instruction; `left` and `right` are data types."""
    return f"tf_wgmma_n{columns}_{left}_{right}{'_held' if left_registers else ''}"


def instruction_text(name: str) -> str | None:
    """Definition of an instruction's function; None for a name of something else."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    columns, left, right, in_registers = int(match[1]), match[2], match[3], bool(match[4])
    (left_type, itemsize), (right_type, _) = _ELEMENTS[left], _ELEMENTS[right]
    inner = WARPGROUP_INNER_BYTES // itemsize
    integer = right in ("i8", "u8")
    count = columns // 2
    sums = ", ".join(f"%{n}" for n in range(count))
    bound = "\n".join(textwrap.wrap(", ".join(f'"+{"r" if integer else "f"}"(sum[{n}])' for n in range(count)), _LINE,
                                    initial_indent=" " * 7, subsequent_indent=" " * 9))
    left_places = [f"%{count + n}" for n in range(4 if in_registers else 1)]
    at = count + len(left_places)
    inputs = [f'"r"(left[{n}])' for n in range(4)] if in_registers else ['"l"(left)']
    inputs += ['"l"(right)', '"r"(keep)']
    flags = [] if integer else ["1", "1"]
    if itemsize == 2:
        turned = ["RIGHT_TURNED"] if in_registers else ["LEFT_TURNED", "RIGHT_TURNED"]
        flags += [f"%{at + 2 + n}" for n in range(len(turned))]
        inputs += [f'"n"({t})' for t in turned]
    shape = f"m64n{columns}k{inner}.{'s32' if integer else 'f32'}.{left_type}.{right_type}"
    operands = f"{{{', '.join(left_places)}}}" if in_registers else left_places[0]
    tail = ", ".join(["p", *flags])
    argument = "const unsigned int (&left)[4]" if in_registers else "unsigned long long left"
    return f"""// One warpgroup: sum[64, {columns}] += left[64, {inner}] * right[{inner}, {columns}]; keep 0: sum = the product.
template <int LEFT_TURNED, int RIGHT_TURNED>
TF_INLINE void {name}({'int' if integer else 'float'}* sum, {argument}, unsigned long long right, int keep) {{
  asm volatile("{{\\n\\t.reg .pred p;\\n\\tsetp.ne.b32 p, %{at + 1}, 0;\\n\\t"
               "wgmma.mma_async.sync.aligned.{shape} "
               "{{{sums}}}, "
               "{operands}, %{at}, {tail};\\n\\t}}"
               :
{bound}
               : {', '.join(inputs)});
}}"""
