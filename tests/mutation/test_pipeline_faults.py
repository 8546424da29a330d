"""Plants faults in pipelines: each must show, and those of their order by the finding that names the broken rule."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.mutation.faults import silent_faults
from tests.unit.printers.copied_products import CopiedProduct
from tests.unit.printers.pipeline_kernels import TiledProduct
from tests.unit.printers.test_pipeline import TOLERANCE
from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tilefuse.ir.affine import axis
from tilefuse.ir.dtype import F16
from tilefuse.ir.scalar import const
from tilefuse.kernel.ir import Barrier, Kernel, Stmt, Store
from tilefuse.kernel.pipeline import Consume, Produce, ReleaseSlots, WarpgroupProduct, WarpgroupWait
from tilefuse.kernel.tensor_map import ProxyFence, TensorStore
from tilefuse.kernel.visit import statements

pytestmark = [pytest.mark.skipif(compiler() is None, reason="no C++ compiler"), pytest.mark.slow]

# Three tiles of k, one product in flight behind the next, fewer slots than tiles.
PRODUCT = TiledProduct(k=48, tile_k=16, swizzle=32, m=64, n=32, block_m=64, block_n=32, warpgroups=1, held_slots=1, slots=2, producers=32)
COPIED = CopiedProduct(k=40, tile_k=16, swizzle=32, m=64, n=32, block_m=64, block_n=32, warpgroups=1, held_slots=1, slots=2)
STORED = CopiedProduct(k=40, tile_k=16, swizzle=32, m=128, n=32, block_m=64, block_n=32, warpgroups=1, slots=2, stored=True, blocks=1)
IN_TURN = CopiedProduct(k=40, tile_k=16, swizzle=32, m=192, n=32, block_m=64, block_n=32, warpgroups=2, held_slots=1, slots=2, stored=True,
                        blocks=1, in_turn=True)
IN_CLUSTERS = CopiedProduct(k=40, tile_k=16, swizzle=32, m=64, n=64, block_m=64, block_n=32, warpgroups=1, slots=2, cluster=2)
SHARED_ROW = replace(PRODUCT, bias=True)
STAGED = replace(PRODUCT, staged=True, held_slots=0)
IN_REGISTERS = replace(PRODUCT, left_registers=True, held_slots=0)

Change = Callable[[Stmt], tuple[Stmt, ...] | None]


def changed(body: tuple[Stmt, ...], change: Change) -> tuple[Stmt, ...]:
    """The body with each statement replaced for which `change` gives statements."""
    result: list[Stmt] = []
    for s in body:
        new = change(s)
        if new is None:
            inner = {name: changed(getattr(s, name), change) for name in ("body", "after", "otherwise") if hasattr(s, name)}
            new = (replace(s, **inner),) if inner else (s,)
        result += new
    return tuple(result)


def _of(kind: type, make: Callable[[Stmt], tuple[Stmt, ...]], number: int | None = None) -> Callable[[Kernel], Kernel]:
    """Changes every statement of a kind, or the one with this number in the order of the text."""
    def mutant(kernel: Kernel) -> Kernel:
        targets = [s for s in statements(kernel.body) if isinstance(s, kind)]
        chosen = targets if number is None else [targets[number]]
        return replace(kernel, body=changed(kernel.body, lambda s: make(s) if any(s is t for t in chosen) else None))
    return mutant


def _products_after(s: Stmt) -> tuple[Stmt, ...]:
    """The use of a slot, with its product after the release."""
    assert isinstance(s, Consume)
    product = next(inner for inner in s.body if isinstance(inner, WarpgroupProduct))
    at = replace(product, left_index=product.left_index - axis("slot") * product.left_index.coefficient("slot"),
                 right_index=product.right_index - axis("slot") * product.right_index.coefficient("slot"))
    return (replace(s, body=(), held_slots=0), at, WarpgroupWait(0))


def _shifted(s: Stmt) -> tuple[Stmt, ...]:
    assert isinstance(s, Store)
    return (replace(s, index=s.index + 256),)


def _store_of(s: Stmt) -> Stmt:
    """A consumer's store into its own slot."""
    assert isinstance(s, Consume)
    return Store("as", axis("slot") * 1024 + axis("thread") * 8, const(0, F16))


def _one_stage(kernel: Kernel) -> Kernel:
    """Both warpgroups write their results to the first one's stage."""
    def moved(s: Stmt) -> tuple[Stmt, ...] | None:
        if isinstance(s, (Store, TensorStore)) and s.buffer == "results":
            return (replace(s, index=s.index - axis("group") * s.index.coefficient("group")),)
        return None
    return replace(kernel, body=changed(kernel.body, moved))


FAULTS: dict[str, tuple[TiledProduct, Callable[[Kernel], Kernel], str]] = {
    "use before any filling": (PRODUCT, _of(Produce, lambda s: ()), "slot used before it is full"),
    "more fillings than slots": (PRODUCT, _of(Consume, lambda s: (replace(s, held_slots=2),)), "slot filled before it is released"),
    "two fillings and one use": (PRODUCT, _of(Produce, lambda s: (s, s)), "filled slots that are never used"),
    "no wait before sums are read": (PRODUCT, _of(WarpgroupWait, lambda s: (), 1), "read of a register before its product has finished"),
    "a wait too short before sums are read": (PRODUCT, _of(WarpgroupWait, lambda s: (WarpgroupWait(1),), 1),
                                              "read of a register before its product has finished"),
    "no wait before the slot is released": (PRODUCT, _of(WarpgroupWait, lambda s: (), 0),
                                            "slot released while a product in flight reads it"),
    "a wait too short before the slot is released": (PRODUCT, _of(WarpgroupWait, lambda s: (WarpgroupWait(2),), 0),
                                                     "slot released while a product in flight reads it"),
    "slot released one use too early": (PRODUCT, _of(Consume, lambda s: (replace(s, held_slots=0),)),
                                        "slot released while a product in flight reads it"),
    "slot read outside its use": (PRODUCT, _of(Consume, _products_after), "slot of a ring read outside its Consume"),
    "write into the next slot": (PRODUCT, _of(Store, _shifted, 0), "slot of a ring written outside its Produce and its Consume"),
    "write behind the buffer": (PRODUCT, _of(Store, lambda s: (replace(s, index=s.index + 2048),), 0), "out of bounds"),
    "write by consumers without a fence": (PRODUCT, _of(Consume, lambda s: (replace(s, body=(_store_of(s), *s.body)),)),
                                           "product of elements that a thread stored without a fence"),
    "write by consumers behind the product": (PRODUCT, _of(Consume, lambda s: (replace(s, body=(*s.body, _store_of(s))),)),
                                              "slot released with elements that a thread stored without a fence"),
    "write by consumers that nobody meets": (PRODUCT, _of(Consume, lambda s: (replace(s, body=(_store_of(s), ProxyFence(), *s.body)),)),
                                             "race, read and write"),
    "part of a slot not filled": (PRODUCT, _of(Store, lambda s: (), 1), "read of unwritten memory"),
    "product in flight at the end": (replace(PRODUCT, k=16), _of(WarpgroupWait, lambda s: ()),
                                     "product in flight at the end of its pipeline"),
    "left operand set while it is read": (IN_REGISTERS, _of(WarpgroupWait, lambda s: (WarpgroupWait(1),), 0),
                                          "register set before its product has finished"),
    "no fence before the product": (STAGED, _of(ProxyFence, lambda s: ()), "product of elements that a thread stored without a fence"),
    "no barrier before the product": (STAGED, _of(Barrier, lambda s: (), 0), "race, read and write"),
    "no barrier after the product": (STAGED, _of(Barrier, lambda s: (), 1), "race, read and write"),
    "no wait before the operand is overwritten": (STAGED, _of(WarpgroupWait, lambda s: ()),
                                                  "write to memory that a product in flight reads"),
    "slots held behind the turn": (IN_TURN, _of(ReleaseSlots, lambda s: ()), "slots that a warpgroup still holds at the end of its turn"),
    "two warpgroups in one stage": (IN_TURN, _one_stage, "race, two writes"),
    "no barrier among consumers": (SHARED_ROW, _of(Barrier, lambda s: ()), "race, read and write"),
}


def _called(function: Callable[..., int], product: TiledProduct, kernel: Kernel) -> tuple[bool, int, str]:
    """Whether the result is right, the number of findings, and their text."""
    arrays = product.inputs(np.random.default_rng(7))
    memory, status, report = call(function, kernel, arrays)
    wanted = product.expected(arrays)
    # Written so that a NaN shows.
    is_right = bool(np.abs(memory["c"].reshape(wanted.shape) - wanted).max() <= TOLERANCE * np.abs(wanted).max())
    return is_right, status, report


def test_findings_name_the_fault(tmp_path: Path) -> None:
    """Every fault of order is found by the rule that it breaks, also where the host's result happens to be right."""
    kernels = [change(product.kernel()) for product, change, _ in FAULTS.values()]
    library = build_together([(k, True) for k in kernels], tmp_path, CHECKED_FLAGS)
    for n, (name, (product, _, message)) in enumerate(FAULTS.items()):
        _, status, report = _called(getattr(library, f"{kernels[n].name}_{n}"), product, kernels[n])
        assert status > 0 and message in report, (name, report)


@pytest.mark.parametrize("product", [PRODUCT, SHARED_ROW, STAGED, IN_REGISTERS, COPIED, IN_CLUSTERS, STORED, IN_TURN],
                         ids=["ring", "shared row", "staged", "left in registers", "tensor copies", "multicast", "tensor stores",
                              "ping-pong"])
def test_every_planted_fault_shows(product: TiledProduct, tmp_path: Path) -> None:
    """No mutant passes silently; the unchanged kernel does.

    Some are no faults: a main loop one step longer where boxes beyond k arrive as 0, a tile more where stores end at the tensor's edge, a
    loop one step longer whose turns are all beyond the tiles.
    """
    silent, planted = silent_faults(product.kernel(), lambda f, k: (found := _called(f, product, k))[1] != 0 or not found[0], tmp_path)
    clipped = 1 + product.stored + product.in_turn if isinstance(product, CopiedProduct) else 0
    longer = [fault for fault in silent if fault.endswith(("one step more", "widen above 0") if product.in_turn else "one step more")]
    silent = [fault for fault in silent if fault not in longer[:clipped]]
    assert not silent, f"{len(silent)} of {planted} mutants pass silently: {silent}"
    assert planted >= 10
