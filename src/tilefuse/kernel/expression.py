"""C++ text of index expressions and scalar expressions, shared by the printers.

An `IndexScope` knows the extents of the names in force and the guards that hold. A division of a provably non-negative value prints as the
cheaper truncating one. A division of a value that fits 32 bits prints as a 32-bit one. Statements are not printed here.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

from tilefuse.base.errors import InternalError
from tilefuse.ir import ops
from tilefuse.ir.affine import Affine, Atom, FloorDiv, Mod, bounds, render, simplify
from tilefuse.ir.dtype import DTYPES, F32, I64, DType
from tilefuse.ir.scalar import NUMPY_DTYPES, Bound, Call, Const, Guard, Index, const
from tilefuse.ir.short_forms import ShortForm, short_form
from tilefuse.kernel.ir import Group, InRange, Kernel, KExpr, Load, OfTwo, Reg
from tilefuse.kernel.writer import identifier

INT32_MAX = 2**31 - 1

# Functions of f32 that occur in kernels but not in graphs; `{n}` is argument n. The fused multiply-adds are one step of a product with the
# matrix unit's rounding; only the host prints them, since a whole product is one statement on a GPU. `tf32_rest` is the part of
# an operand that such a product does not read. The last is a term of a sum of exponentials.
KERNEL_FUNCTIONS = {"split_fma": "tf_split_fma({0}, {1}, {2})", "tf32_fma": "tf_tf32_fma({0}, {1}, {2})",
                    "tf32_low_fma": "tf_tf32_low_fma({0}, {1}, {2})", "tf32_rest": "tf_tf32_rest({0})",
                    "exp_of_difference": "tf_exp_of_difference({0})", "power_of_difference": "tf_power_of_difference({0})"}


def const_text(c: Const) -> str:
    """C++ text of a constant, equal bit for bit (any NaN for NaN). Negative numbers are in parentheses."""
    name = c.dtype.name
    if name == "bool":
        return c.text
    if c.dtype.is_integer:
        return _integer_text(int(c.text), name)
    if name in ("f32", "f64"):
        if c.text in ("nan", "inf", "-inf"):
            stem = f"tf_{c.text.lstrip('-')}_{name}()"
            return f"(-{stem})" if c.text.startswith("-") else stem
        text = c.text + ("f" if name == "f32" else "")
        return f"({text})" if text.startswith("-") else text
    narrow = np.array(float(c.text)).astype(NUMPY_DTYPES[name])
    bits = int(narrow.view(np.uint16 if c.dtype.bits == 16 else np.uint8))
    return f"{ops.C_TYPES[name]}::of_bits(0x{bits:0{c.dtype.bits // 4}x})"


def _integer_text(value: int, name: str) -> str:
    suffix = {"i32": "", "u32": "u", "i64": "ll", "u64": "ull"}.get(name)
    if suffix is None:
        return f"({ops.C_TYPES[name]}){value}" if value >= 0 else f"({ops.C_TYPES[name]})({value})"
    if name in ("i32", "i64") and value == -(1 << (DTYPES[name].bits - 1)):
        return f"({value + 1}{suffix} - 1)"  # the magnitude alone does not fit the type
    return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"


class IndexScope:
    """Prints index expressions, using the extents of the index names in force and the guards that hold."""

    def __init__(self, kernel: Kernel) -> None:
        self.index_bits = kernel.index_bits
        self.extents: dict[str, int] = {
            "thread": kernel.launch.num_threads, "block": max(kernel.launch.num_blocks, 1), "rank": kernel.launch.cluster,
            "cluster": max(kernel.launch.num_blocks // kernel.launch.cluster, 1)}
        self.extents |= {s.name: s.most + 1 for s in kernel.sizes}
        self.facts: list[Bound] = []

    @property
    def index_type(self) -> str:
        """C++ type of index variables."""
        return "int" if self.index_bits == 32 else "long long"

    @contextlib.contextmanager
    def assuming(self, facts: tuple[Bound, ...]) -> Iterator[None]:
        """Inside the context, all of `facts` hold."""
        self.facts.extend(facts)
        yield
        del self.facts[len(self.facts) - len(facts):]

    @contextlib.contextmanager
    def nested(self) -> Iterator[None]:
        """A scope for names: those added inside end with the context."""
        saved = dict(self.extents)
        yield
        self.extents = saved

    def enter_group(self, group: Group) -> None:
        """Adds a group's names: "block" now counts a member's blocks, and the group's numbers have extents."""
        self.extents["block"] = self.extents["tf_task"] = max(m.num_blocks for m in group.members)
        self.extents.update(group.numbers)

    def add_loop(self, var: str, start: Affine, stop: Affine) -> None:
        """Records the extent of a loop variable whose start is provably non-negative and whose end is known."""
        low, high = self.range_of(start), self.range_of(stop)
        if low is not None and high is not None and low[0] >= 0:
            self.extents[var] = max(high[1], 1)
        else:
            self.extents.pop(var, None)

    def range_of(self, e: Affine) -> tuple[int, int] | None:
        """Smallest and largest value of `e` by extents alone; None if unknown."""
        return bounds(e, self.extents)

    def at_least(self, e: Affine, low: int) -> bool:
        """Whether the extents or a guard in force prove `e` >= `low`."""
        span = self.range_of(e)
        if span is not None and span[0] >= low:
            return True
        return any((rest := self.range_of(e - fact.index)) is not None and rest[0] + fact.low >= low for fact in self.facts)

    def below(self, e: Affine, high: int) -> bool:
        """Whether the extents or a guard in force prove `e` < `high`."""
        span = self.range_of(e)
        if span is not None and span[1] < high:
            return True
        return any((rest := self.range_of(e - fact.index)) is not None and rest[1] + fact.high - 1 < high for fact in self.facts)

    def text(self, e: Affine) -> str:
        """C++ text of `e`, without outer parentheses. Exact: no intermediate value overflows its C++ type."""
        if self.index_bits == 64 and any(self._is_narrow_atom(atom) for atom, _ in e.terms):
            narrow = Affine(tuple(t for t in e.terms if self._is_narrow_atom(t[0])), e.const)
            if not self.sums_fit(narrow):
                return render(e, self._wide_atom)
        return render(e, self._atom)

    def value_text(self, value: Affine | OfTwo) -> str:
        """C++ text of the value of a `Let`."""
        if isinstance(value, Affine):
            return self.text(value)
        left, right = self.operand(value.left), self.operand(value.right)
        if value.function in ("least", "greatest"):
            return f"{left} {'<' if value.function == 'least' else '>'} {right} ? {left} : {right}"
        if value.function == "product":
            # Two 32-bit operands may have a 64-bit product.
            return f"{'(long long)' if self.index_bits == 64 else ''}{left} * {right}"
        # Neither operand is negative. An unsigned division takes fewer instructions, and a 32-bit one far fewer.
        spans = [self.range_of(e) for e in (value.left, value.right)]
        narrow = all(span is not None and span[1] <= INT32_MAX for span in spans)
        unsigned = f"(unsigned {'int' if narrow else 'long long'})"
        return f"({self.index_type})({unsigned}{left} {'/' if value.function == 'quotient' else '%'} {unsigned}{right})"

    def sums_fit(self, e: Affine) -> bool:
        """Whether each term of `e`, and the sum of any of them, provably fits a signed 32-bit integer."""
        low, high = min(e.const, 0), max(e.const, 0)
        for atom, c in e.terms:
            extent = self.extents.get(atom) if isinstance(atom, str) else None
            span = (0, (extent - 1) * c) if extent is not None else self.range_of(Affine(((atom, c),)))
            if span is None:
                return False
            low, high = low + min(*span, 0), high + max(*span, 0)
        return low >= -INT32_MAX and high <= INT32_MAX

    def _is_narrow_atom(self, atom: Atom) -> bool:
        """Whether an atom has a 32-bit type in a kernel with 64-bit index variables."""
        if isinstance(atom, str):
            return False
        if atom.by & (atom.by - 1):
            return self._divides_in_32_bits(atom.of, atom.by)
        return all(self._is_narrow_atom(inner) for inner, _ in atom.of.terms) and self.sums_fit(atom.of)

    def _wide_atom(self, atom: Atom) -> str:
        return f"(long long){self._atom(atom)}" if self._is_narrow_atom(atom) else self._atom(atom)

    def _divides_in_32_bits(self, of: Affine, by: int) -> bool:
        """Whether a division in a kernel with 64-bit index variables fits 32 bits, where it is several times cheaper."""
        span = self.range_of(of)
        return by <= INT32_MAX and span is not None and span[0] >= -INT32_MAX and span[1] <= INT32_MAX

    def operand(self, e: Affine) -> str:
        """C++ text of `e` as an operand: in parentheses unless it is a single name or a non-negative number."""
        text = self.text(e)
        plain = (e.is_const and e.const >= 0) or (not e.const and len(e.terms) == 1 and e.terms[0][1] == 1)
        return text if plain else f"({text})"

    def _atom(self, atom: Atom) -> str:
        match atom:
            case str():
                return identifier(atom)
            case FloorDiv(of, by):
                if by & (by - 1) == 0:
                    return f"({'(long long)' if by > INT32_MAX else ''}{self.operand(of)} >> {by.bit_length() - 1})"
                return self._quotient(of, by, "div", "floordiv")
            case Mod(of, by):
                if by & (by - 1) == 0:
                    return f"({self.operand(of)} & {by - 1})"
                return self._quotient(of, by, "rem", "floormod")
        raise InternalError(f"not an index atom: {atom!r}")

    def _quotient(self, of: Affine, by: int, cheap: str, floored: str) -> str:
        function = cheap if self.at_least(of, 0) else floored
        narrow = self.index_bits == 64 and self._divides_in_32_bits(of, by)
        argument = f"(int){self.operand(of)}" if narrow else self.text(of)
        return f"tf_{'wide' if by > INT32_MAX else 'index'}_{function}({argument}, {by})"

    def condition(self, facts: tuple[Bound, ...]) -> str:
        """C++ text of the conjunction of bounds without the comparisons that always hold; "true" if none remains."""
        parts: list[str] = []
        for b in facts:
            text = self.text(b.index)
            if not self.at_least(b.index, b.low):
                parts.append(self._difference(b) or f"{text} >= {b.low}")
            if not self.below(b.index, b.high):
                parts.append(f"{text} < {b.high}")
        return " && ".join(parts) if parts else "true"


    def _difference(self, b: Bound) -> str:
        """`a < b` for the bound b - a >= 1; "" for any other."""
        above = Affine(tuple(t for t in b.index.terms if t[1] > 0))
        below = above - b.index
        if b.low != 1 or b.index.const or not above.terms or not below.terms:
            return ""
        return f"{self.text(below)} < {self.text(above)}"


class ExpressionPrinter:
    """Prints kernel expressions for one target ("cuda" or "host"). Callables print loads, registers and checked subscripts."""

    def __init__(self, scope: IndexScope, target: str, load: Callable[[Load], str], register: Callable[[Reg], str],
                 checked: Callable[[InRange, str], str], narrow: bool = False) -> None:
        self.checked = checked
        self.narrow = narrow
        self.scope = scope
        self.target = target
        self.load = load
        self.register = register

    def text(self, e: KExpr) -> str:
        """C++ text of `e`, safe as an operand of any operator."""
        return self.typed(e)[0]

    def typed(self, e: KExpr) -> tuple[str, DType]:
        """C++ text and data type of `e`, from one visit of the tree."""
        match e:
            case Const():
                return const_text(e), e.dtype
            case Index(affine):
                return f"(long long)({self.scope.text(affine)})", I64
            case Reg():
                return self.register(e), e.dtype
            case Load():
                return self.load(e), e.dtype
            case InRange(index):
                return self.checked(e, self.text(index)), I64
            case Call():
                return self._call(e)
            case Guard(facts, then, otherwise):
                with self.scope.assuming(facts):
                    inside, dtype = self.typed(then)
                return f"({self.scope.condition(facts)} ? {inside} : {self.text(otherwise)})", dtype
        raise InternalError(f"not a kernel expression: {e!r}")

    def _call(self, e: Call[KExpr]) -> tuple[str, DType]:
        if self.narrow and (form := short_form(e)) is not None:
            return self._short(form), F32
        typed = [self.typed(a) for a in e.args]
        texts = [text for text, _ in typed]
        if e.fn.startswith("random_") and isinstance(e.args[1], Index):
            texts[1] = self._counter(e.args[1].affine)
        dtype = typed[1][1] if e.fn == "select" else typed[0][1]
        if e.fn in KERNEL_FUNCTIONS:
            return KERNEL_FUNCTIONS[e.fn].format(*texts), F32
        if e.fn in DTYPES:
            return ops.conversion_text(dtype, DTYPES[e.fn]).format(*texts), DTYPES[e.fn]
        op = ops.SCALAR_OPS[e.fn]
        if self.narrow and e.fn in ops.NARROW_CUDA and "f32" in (dtype.name, op.result):
            return ops.NARROW_CUDA[e.fn].format(*texts), F32
        by_dtype = op.cuda if self.target == "cuda" else op.host
        return by_dtype[dtype.name].format(*texts), dtype if op.result == "same" else DTYPES[op.result]

    def _short(self, form: ShortForm) -> str:
        """Text of a short form."""
        numbers = ", ".join(const_text(const(n, F32)) for n in form.constants)
        text = (ops.NARROW_ONE_PLUS | ops.NARROW_SCALED)[form.fn].format(self.text(form.argument), numbers)
        return f"({' * '.join((*map(self.text, form.others), text))})" if form.others else text

    def _counter(self, counter: Affine) -> str:
        """The two arguments of a random function: the number of a block of four random numbers, and the place in it.

        The division happens here: compilers would not see that the lanes of a vector share a block."""
        together = ops.RANDOM_NUMBERS_A_CALL
        block, place = (simplify(e, self.scope.extents) for e in (counter // together, counter % together))
        span = self.scope.range_of(block)
        unsigned = span is not None and span[0] >= 0 and span[1] < 2**32
        return f"({'unsigned int' if unsigned else 'long long'})({self.scope.text(block)}), {self.scope.text(place)}"

    def address(self, index: Affine, dynamic: tuple[tuple[KExpr, int], ...]) -> str:
        """C++ text of an element offset: the sum of its affine part and its data-dependent parts."""
        parts = [] if dynamic and index == Affine() else [self.scope.text(index)]
        for e, stride in dynamic:
            text, dtype = self.typed(e)
            if dtype.name != ("i64" if self.scope.index_bits == 64 else "i32"):
                text = f"({self.scope.index_type}){text}"
            parts.append(text if stride == 1 else f"{text} * {stride}")
        return " + ".join(parts)

