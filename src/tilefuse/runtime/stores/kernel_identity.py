"""Identity of a kernel's machine code: its source up to the names of its own values and comments.

    // nodes: %scores            float scores = tf_exp(x[i]);      ->      float @0 = tf_exp(@1[@2]);
    // nodes: %y_7               float y_7 = tf_exp(input_3[j]);   ->      the same

A subgraph that occurs in another model under other names is then not compiled again. Only names that the printer reported as values of the
kernel function are replaced; support text, types and all other names stay. A missing name only costs a miss.
"""
from __future__ import annotations

import re

from tilefuse.runtime.spec import KernelCode

_COMMENT = re.compile(r"//[^\n]*")
# The text of an assertion is part of the code.
_QUOTED = re.compile(r'("[^"\n]*")')
# Members (`threadIdx.x`, `p->at`) and names of a namespace (`std::atan2`) are never values.
_WORD = re.compile(r"(?<![\w.])(?<!->)(?<!::)[A-Za-z_]\w*")
KERNEL_BEGINS = 'extern "C"'


def kernel_identity(kernel: KernelCode) -> str:
    """Equal for kernels that are equal up to the names of values and comments; the source itself where its names are unknown.

    Cost: linear in the source.
    """
    if not kernel.names:
        return kernel.source
    support, begin, function = kernel.source.partition(KERNEL_BEGINS)
    own = {*kernel.names, kernel.entry}
    numbers: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        word = match.group()
        # "@" occurs in no identifier, so a number cannot collide with another name.
        return numbers.setdefault(word, f"@{len(numbers)}") if word in own else word

    pieces = _QUOTED.split(_COMMENT.sub("", function))
    pieces[::2] = (_WORD.sub(numbered, piece) for piece in pieces[::2])
    return _COMMENT.sub("", support) + begin + "".join(pieces)


def entry_field(kernel: KernelCode) -> str:
    """The symbol as a field of the key: empty where names do not count, because a cache entry stores its own."""
    return "" if kernel.names else kernel.entry
