"""Width of a kernel's index arithmetic: 32 bits if every sum that the printers write provably fits, else 64.

A kernel states an extent for each of its names. Each index expression therefore has a range, and so has every partial sum of its terms. An
expression without a known range counts as wide.
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.base.errors import UnsupportedError
from tilefuse.ir.affine import Affine
from tilefuse.kernel.expression import INT32_MAX, IndexScope
from tilefuse.kernel.ir import Atomic, For, Group, Kernel, Let, Load, OfTwo, Store, Touched, VectorLoad
from tilefuse.kernel.pipeline import WARPGROUP, Consume, EachWarpgroup, Pipeline, Produce
from tilefuse.kernel.visit import parts

# Largest number of blocks of a one-dimensional launch. Source: CUDA C++ Programming Guide, compute capabilities, x-dimension of a grid.
MOST_BLOCKS = 2**31 - 1
# Records that contain index arithmetic or state extents.
INDEX_RECORDS = frozenset((Affine, Let, For, Group, Touched, Load, Store, Atomic, VectorLoad, Pipeline, Produce, Consume, EachWarpgroup))


def with_index_bits(kernel: Kernel) -> Kernel:
    """The kernel with 32-bit index arithmetic if all of it provably fits, else with 64-bit index arithmetic.

    Exact: the proof uses the extents that the kernel states for its names. Cost: linear in the kernel's index expressions.
    """
    bits = 32 if fits_32_bits(kernel) else 64
    return kernel if bits == kernel.index_bits else replace(kernel, index_bits=bits)


def check_launch(kernel: Kernel) -> None:
    """Raises: UnsupportedError where a kernel for a GPU has more blocks than a launch can have."""
    if kernel.launch.num_blocks > MOST_BLOCKS:
        raise UnsupportedError(f"kernel {kernel.name} needs {kernel.launch.num_blocks} blocks; a launch has {MOST_BLOCKS} at most",
                               hint="compute the tensor in parts along its largest axis")


def fits_32_bits(kernel: Kernel) -> bool:
    """Whether all index arithmetic of the kernel provably fits signed 32-bit integers."""
    scope = IndexScope(kernel)
    sizes = {name: b.num_elements for name, b in kernel.addressed.items()}
    fitting: set[Affine] = set()
    slots: dict[str, int] = {}
    warpgroups = 1
    if not all(_fits(e, scope) for m in kernel.maps for e in (*m.extents, *m.strides) if isinstance(e, Affine)):
        return False
    # Parts come in the order of the text: a name is stated before its use, and its latest extent is in force.
    for part in parts(kernel.body):
        if type(part) not in INDEX_RECORDS:
            continue
        match part:
            case Affine():
                if part not in fitting and not _fits(part, scope):
                    return False
                fitting.add(part)
            case Let(name, value, extent):
                # The operands of a product of sizes are visited as parts of their own. The name's extent bounds the product.
                if isinstance(value, OfTwo) and extent - 1 > INT32_MAX:
                    return False
                scope.extents[name] = extent
            case For(var, start, stop, step):
                scope.add_loop(var, start, stop)
                if not _fits(stop + step - 1, scope):  # the variable's value when the loop ends
                    return False
            case Group():
                scope.enter_group(part)
                fitting.clear()
            case Pipeline(rings, _, threads):
                slots = {r.name: r.slots for r in rings}
                warpgroups = threads // WARPGROUP
            case EachWarpgroup(group):
                scope.extents[group] = warpgroups
            case Produce(ring, name) | Consume(ring, name):
                scope.extents[name] = slots[ring]
            case Touched(loops=loops):
                scope.extents.update(loops)
            case Load(buffer, _, index, dynamic) | Store(buffer, index, _, dynamic) | Atomic(_, buffer, index, _, dynamic) if dynamic:
                if not _lies_within(sizes[buffer], index, scope):
                    return False
            case VectorLoad(buffer=buffer, index=index, dynamic=dynamic) if dynamic:
                if not _lies_within(sizes[buffer], index, scope):
                    return False
    return True


def _fits(e: Affine, scope: IndexScope) -> bool:
    """Whether the terms of an index expression, all sums of some of them, and its dividends fit 32 bits."""
    return scope.sums_fit(e) and all(isinstance(atom, str) or atom.by <= INT32_MAX and _fits(atom.of, scope) for atom, _ in e.terms)


def _lies_within(num_elements: int, index: Affine, scope: IndexScope) -> bool:
    """Whether the data-dependent parts of an offset fit 32 bits. They are never negative, and the total offset lies in the buffer."""
    span = scope.range_of(index)
    return span is not None and num_elements - min(span[0], 0) <= INT32_MAX
