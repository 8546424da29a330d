"""How wide a kernel's index arithmetic must be: 32 bits where every sum that the printers write is proved to fit, else 64.

The one idea: statements are visited as the printers visit them, with the extents that the kernel states for its names. Each index
expression has a range then, and so has every partial sum of its terms. An expression without a known range counts as wide.
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.base.errors import UnsupportedError
from tilefuse.codegen.expression import INT32_MAX, IndexScope
from tilefuse.codegen.kernel import Atomic, For, Group, If, IfValue, Kernel, Let, Load, RoutineCall, Stmt, Store, VectorLoad
from tilefuse.codegen.walk import parts
from tilefuse.ir.affine import Affine

# Blocks of a launch along its only dimension. Source: CUDA C++ Programming Guide, compute capabilities, x-dimension of a grid.
MOST_BLOCKS = 2**31 - 1


def with_index_bits(kernel: Kernel) -> Kernel:
    """The kernel with index arithmetic of 32 bits where all of it is proved to fit, else of 64.

    Exact: 32 is a proof, from the extents that the kernel states for its names. Cost: linear in the kernel's index expressions.
    """
    bits = 32 if fits_32_bits(kernel) else 64
    return kernel if bits == kernel.index_bits else replace(kernel, index_bits=bits)


def check_launch(kernel: Kernel) -> None:
    """Raises: UnsupportedError where a kernel for a GPU has more blocks than a launch can have."""
    if kernel.launch.num_blocks > MOST_BLOCKS:
        raise UnsupportedError(f"kernel {kernel.name} needs {kernel.launch.num_blocks} blocks; a launch has {MOST_BLOCKS} at most",
                               hint="compute the tensor in parts along its largest axis")


def fits_32_bits(kernel: Kernel) -> bool:
    """Whether all index arithmetic of the kernel is proved to fit 32 bits with sign."""
    visitor = _Visitor(kernel)
    visitor.body(kernel.body)
    return visitor.fits


class _Visitor:
    """Visits statements with the extents in force; `fits` says whether all that was seen fits 32 bits."""

    def __init__(self, kernel: Kernel) -> None:
        self.scope = IndexScope(kernel)
        self.sizes = {name: b.num_elements for name, b in kernel.addressed.items()}
        self.fits = True
        self.fitting: set[Affine] = set()

    def body(self, body: tuple[Stmt, ...]) -> None:
        """The statements of one scope."""
        with self.scope.nested():
            for s in body:
                if self.fits:
                    self.statement(s)

    def statement(self, s: Stmt) -> None:
        """One statement, and those inside it."""
        match s:
            case Let(name, value, extent):
                self.index(value)
                self.scope.extents[name] = extent
            case For(var, start, stop, step, inner):
                self.index(start)
                self.index(stop + (step - 1))  # the value that ends the loop
                with self.scope.nested():
                    self.scope.add_loop(var, start, stop)
                    self.body(inner)
            case If(bounds, inner, other):
                self.expression(bounds)
                self.body(inner)
                self.body(other)
            case IfValue(condition, inner):
                self.expression(condition)
                self.body(inner)
            case Group():
                self.fitting.clear()  # other groups may have the same names
                with self.scope.nested():
                    self.scope.enter_group(s)
                    self.body(s.body)
            case RoutineCall(_, arguments):
                self.expression(arguments)
            case _:
                self.expression(s)

    def expression(self, x: object) -> None:
        """The index expressions of a statement with none inside, or of a value."""
        for part in parts(x):
            match part:
                case Affine():
                    self.index(part)
                case Load(buffer, _, index, dynamic) | Store(buffer, index, _, dynamic) | Atomic(_, buffer, index, _, dynamic):
                    self.address(buffer, index, bool(dynamic))
                case VectorLoad(buffer=buffer, index=index, dynamic=dynamic):
                    self.address(buffer, index, bool(dynamic))

    def address(self, buffer: str, index: Affine, dynamic: bool) -> None:
        """An element's place with data-dependent parts, which are never negative: the whole lies in the buffer."""
        span = self.scope.range_of(index)
        if dynamic and (span is None or self.sizes[buffer] - min(span[0], 0) > INT32_MAX):
            self.fits = False

    def index(self, e: Affine) -> None:
        """An index expression: its terms, all sums of some of them, and what it divides."""
        if e in self.fitting:
            return
        self.fitting.add(e)
        self.fits = self.fits and self.scope.sums_fit(e)
        for atom, _ in e.terms:
            if not isinstance(atom, str):
                self.index(atom.of)
                self.fits = self.fits and atom.by <= INT32_MAX
