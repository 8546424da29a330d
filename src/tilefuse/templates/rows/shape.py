"""A row as its choosers see it: axes in memory order, vectors, bytes that stay on chip; and the row kernels that begin from it."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.domain.resolved import Domain, Touch
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.rows import RowFigures
from tilefuse.templates.rows.modes import Held, RowMode, Rows
from tilefuse.templates.rows.reads import column_touches, fetched_touches
from tilefuse.templates.rows.starts import num_vectors


@dataclass(frozen=True, slots=True)
class RowShape:
    """Facts about the rows of a domain on a device.

    fetched: operands with an element for each of a row. columns: operands that all rows share, such as weights.
    Units: vector in elements; vectors of a row, partial ones among them; kept_bytes of an element that stay on chip between walks, at
    least 1.
    """

    domain: Domain
    device: DeviceSpec
    kept_order: tuple[str, ...]
    reduced_order: tuple[str, ...]
    vector: int
    vectors: int
    kept_bytes: int
    fetched: tuple[Touch, ...]
    columns: tuple[Touch, ...]

    @classmethod
    def of(cls, domain: Domain, device: DeviceSpec, kept_order: tuple[str, ...], reduced_order: tuple[str, ...], vector: int,
           kept_bytes: int) -> RowShape:
        """The rows of a domain in vectors of `vector` elements."""
        return cls(domain, device, kept_order, reduced_order, vector, num_vectors(domain, vector), max(kept_bytes, 1),
                   tuple(fetched_touches(domain)), tuple(column_touches(domain)))

    @property
    def fitted(self) -> RowFigures:
        """The device's fitted figures of row kernels."""
        return self.device.fitted.rows

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector that stay on chip between walks."""
        return self.kept_bytes * self.vector

    @property
    def row_bytes(self) -> int:
        """Bytes of a row that stay on chip between walks."""
        return self.vectors * self.vector_bytes

    @property
    def has_several_axes(self) -> bool:
        """Whether a row is no single run of an axis, as a channel of images is not."""
        return len([a for a in self.reduced_order if self.domain.extents[a] > 1]) > 1

    @property
    def column_bytes(self) -> int:
        """Bytes that all rows share, for each element of a row."""
        return sum(t.dtype.itemsize for t in self.columns)

    def kernel(self, threads: int, chunks: int, mode: RowMode, *, rows: int = 1, cluster: int = 1, resident: int = 0) -> Rows:
        """A kernel of these rows with two accumulators a thread."""
        return Rows(self.kept_order, self.reduced_order, self.vector, threads, rows, chunks, min(self.vector, 2), mode, cluster, resident)

    def held(self, threads: int, *, rows: int = 1, cluster: int = 1, resident: int = 0) -> Rows:
        """A kernel whose threads hold these rows in registers."""
        share = -(-self.vectors // cluster)
        return self.kernel(threads, -(-share // threads), Held(), rows=rows, cluster=cluster, resident=resident)
