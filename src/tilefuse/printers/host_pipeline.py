"""Prints pipelines for the host: one tree, in order. A filling of a slot and its use are loops over the threads of their role.

    Produce(ab, slot)         { const int slot = tf_ab.filled % 4;  for thread of the producers: ...;  tf_ab.full(); }
    Consume(ab, slot)    ->   { const int slot = tf_ab.used % 4;    for thread of the consumers: ...;  tf_ab.release(0); }

`check.py` replaces the hooks by the checked ring of `support/checked_ring.h`.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tilefuse.kernel.ir import Kernel, Stmt
from tilefuse.kernel.pipeline import WARPGROUP, Consume, EachWarpgroup, Pipeline, Produce, ReleaseSlots, Ring
from tilefuse.kernel.visit import statements
from tilefuse.kernel.writer import identifier
from tilefuse.printers.threads import ThreadPrinter


def ring_name(ring: str) -> str:
    """Stem of the printed identifiers of a ring. No composer uses a name that starts with tf_."""
    return f"tf_{identifier(ring)}"


class PipelinePrinter(ThreadPrinter):
    """Prints pipelines through hooks that print the state of rings."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.rings: dict[str, Ring] = {}
        self.consumers = 0  # consumer threads of the pipeline
        self.rings_by_rank = False  # whether the pipeline stands outside the loops over the ranks of a cluster

    def pipelined(self, s: Pipeline[Stmt] | Produce[Stmt] | Consume[Stmt] | EachWarpgroup[Stmt] | ReleaseSlots,
                  recurse: Callable[[tuple[Stmt, ...]], None], over_ranks: bool) -> None:
        """Prints a statement of a pipeline.

        recurse: prints statements that all threads of the role run. over_ranks: all blocks of the cluster run this statement together.
        """
        match s:
            case Pipeline():
                self.rings_by_rank, self.consumers = over_ranks, s.consumer_threads
                with self.out.block(""), self._role(s.consumer_threads, ""):
                    for ring in s.rings:
                        self.rings[ring.name] = ring
                        self.ring_begin(ring)
                    end = [self.ring_call(ring.name, "finish") for ring in s.rings]
                    recurse(s.body)
                    self._of_ranks(over_ranks, end)
            case Produce(ring, name, body, threads):
                with self.out.block(""), self._role(threads, str(self.consumers)):
                    end = [self.ring_call(ring, "full")]
                    self._of_ranks(over_ranks, [self.ring_call(ring, "fill")])
                    self._slot(name, ring, "filled", over_ranks)
                    recurse(body)
                    self._of_ranks(over_ranks, end)
            case Consume(ring, name, body, held_slots):
                with self.out.block(""), self._role(self.running, self.first_thread):
                    end = [self.ring_call(ring, "leave"), self.ring_call(ring, "release", str(held_slots))]
                    self._of_ranks(over_ranks, [self.ring_call(ring, "use")])
                    self._slot(name, ring, "used", over_ranks)
                    recurse(body)
                    self._of_ranks(over_ranks, end)
            case EachWarpgroup(name, body, after, bounds):
                warpgroups, var = self.consumers // WARPGROUP, identifier(name)
                settled = [self.ring_call(ring, "settled") for ring in sorted({u.ring for u in statements(body) if isinstance(u, Consume)})]
                with self.out.block(f"for ({self.scope.index_type} {var} = 0; {var} < {warpgroups}; ++{var})"), \
                        self._role(WARPGROUP, f"{WARPGROUP} * {var}"):
                    self.scope.extents[name] = warpgroups
                    with self.out.block(f"if ({self.scope.condition(bounds)})") if bounds else contextlib.nullcontext(), \
                            self.scope.assuming(bounds):
                        recurse((*body, *after))
                        self._of_ranks(over_ranks, settled)
            case ReleaseSlots(ring):
                self._of_ranks(over_ranks, [self.ring_call(ring, "release", "0")])

    @contextlib.contextmanager
    def _role(self, threads: int, first: str) -> Iterator[None]:
        """The threads of one role run the statements inside. first: text of the first one's number in the block, "" for 0."""
        role = self.running, self.first_thread
        self.running, self.first_thread = threads, first
        with self._names():
            self.scope.extents["thread"] = threads
            yield
        self.running, self.first_thread = role

    def _of_ranks(self, over_ranks: bool, lines: list[str]) -> None:
        """Prints lines for this block, or for every block of the cluster."""
        with self.out.block(f"for (int rank = 0; rank < {self.cluster}; ++rank)") if over_ranks else contextlib.nullcontext():
            for line in lines:
                self.out.line(line)

    def _slot(self, name: str, ring: str, count: str, over_ranks: bool) -> None:
        """Names the number of a slot, which is the same in all blocks of a cluster that run the statement together."""
        place = "[0]" if over_ranks else self._rank()
        index, slots = self.scope.index_type, self.rings[ring].slots
        self.out.line(f"const {index} {identifier(name)} = ({index})({ring_name(ring)}{place}.{count} % {slots});")
        self.scope.extents[name] = slots

    def _rank(self) -> str:
        return "[rank]" if self.rings_by_rank else ""

    def ring_begin(self, ring: Ring) -> None:
        """Prints the state of a ring: how many fillings and uses it has had."""
        self.out.line(f"tf_slots {ring_name(ring.name)}{f'[{self.cluster}]' if self.rings_by_rank else ''};")

    def ring_call(self, ring: str, method: str, argument: str = "") -> str:
        """Text of a change of a ring's state."""
        return f"{ring_name(ring)}{self._rank()}.{method}({argument});"
