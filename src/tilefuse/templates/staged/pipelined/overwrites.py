"""Results in the memory of a boundary value: a product and its residual, which nothing reads behind them.

    y[i, j] = p[i, j] + r[i, j]        y in r's memory: the block whose tile has y[i, j] alone reads r[i, j], and stores behind its reads
"""
from __future__ import annotations

from tilefuse.ir.scalar import Lookup, walk
from tilefuse.templates.staged.pipelined.elements import boundary_reads
from tilefuse.templates.staged.pipelined.joined import needed_by_products
from tilefuse.templates.staged.pipelined.plan import ProductPlan


def reads_end_before_stores(plan: ProductPlan, value: str, target: str) -> bool:
    """Whether a kernel reads of `target` only the element that it overwrites with one of `value`, in the tile that has both.

    A tile's copies of a boundary value and its loads come before its stores, and tiles have no element in common. A second result could be
    computed behind the stores of the first. Results that threads store are left where they are: loads of other elements would wait for
    these stores.
    """
    form = plan.form
    own = form.maps.get(value) if value in {t.name for t in plan.copied_results} else None
    if own is None or form.beside.get(target) != own or form.tile_results != (value,):
        return False
    products = frozenset(n.name for n in form.nodes)
    if target in needed_by_products(form.graph) or any(
            isinstance(e, Lookup) and e.value == target for n in form.graph.nodes if n.body is not None for e in walk(n.body)):
        return False
    # Sums of columns are computed behind each element's store, from what is loaded by then. Rows are reduced before all stores.
    before = boundary_reads(form.graph, {value: form.points[value], **form.reduced.points}, products, form.extents)
    return target in before
