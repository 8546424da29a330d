"""End of the process with recorded graphs. No GPU: stand-ins for torch's objects."""
from __future__ import annotations

import gc
import weakref

from tilefuse.runtime.calls import graphs


class Graph:
    def __init__(self, fails: bool) -> None:
        self.fails, self.num_resets = fails, 0

    def reset(self) -> None:
        self.num_resets += 1
        if self.fails:
            raise RuntimeError("CUDA error: device-side assert triggered")


def test_graphs_that_live_to_the_end_are_destroyed_while_torch_works() -> None:
    """Each once, also behind one that fails."""
    alive = [Graph(True), Graph(False)]
    graphs._ALIVE.update(alive)
    graphs.destroy_graphs()
    graphs.destroy_graphs()
    assert [g.num_resets for g in alive] == [1, 1]


def test_memory_that_is_kept_is_never_destroyed() -> None:
    """The destructor of torch's memory pool may end the process with an abort when modules are destroyed."""
    kept, other = Graph(False), Graph(False)
    seen = weakref.ref(graphs.keep_to_the_end(kept)), weakref.ref(other)
    del kept, other
    gc.collect()
    assert seen[0]() is not None and seen[1]() is None
