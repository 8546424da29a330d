"""The process that compiles in the background (see `background`): reads requests, fills the cache, replies "" or a reason.

It replies "" once before the first request, when it can serve. It runs at low priority, and ends when its input does. An error that is no
`CompilerError` ends it; its parent reads the last line of the message.
"""
from __future__ import annotations

import os
import select
import sys
import threading

import torch

from tilefuse.base.errors import CompilerError
from tilefuse.driver.compile import generate
from tilefuse.driver.lowering.product_precision import framework_convolutions, framework_products
from tilefuse.driver.request import traced
from tilefuse.driver.reuse.background import Request, facts_of, receive, send
from tilefuse.driver.reuse.known_seeds import keep_made, look_up
from tilefuse.runtime.compilers.binaries import build_kernels
from tilefuse.runtime.compilers.nvrtc_process import end_with_parent
from tilefuse.runtime.stores.cache import cache_of

# Below the user's own processes. Units: steps of Unix priority
PRIORITY_STEPS = 10
# Time without a request after which torch loads more of its modules. Units: seconds.
QUIET_S = 1.0


def main() -> None:
    """Serves requests until the input ends."""
    os.nice(PRIORITY_STEPS)
    # Replies use a pipe of their own; everything that is printed goes to the errors.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    threading.Thread(target=end_with_parent, daemon=True).start()
    send(replies, "")
    if not select.select([0], [], [], QUIET_S)[0]:
        _load_torch()
    while True:
        try:
            request = receive(sys.stdin.buffer)
        except EOFError:
            return
        send(replies, served(request))


def served(request: Request) -> str:
    """Makes the program of a request, if the cache does not have it; returns the reply."""
    _calculate_as(*request.arithmetic)
    options, facts = request.options, facts_of(request)
    try:
        with traced(options):
            graph, known = request.imported.graph, look_up(request.imported.graph, facts)
            if known.digest != request.found.digest:
                return "the background process would compile another program: settings or files differ"
            if known.program is None:
                generated = generate(graph, **facts, seed=request.found.seed)
                build_kernels(generated.spec.kernels, cache_of(options.cache, options.cache_dir), jobs=options.jobs, cxx=options.cxx)
                keep_made(request.found, generated, graph, facts)
    except CompilerError as error:
        return f"{type(error).__name__} in the background: {str(error).splitlines()[0]}"
    return ""


def _load_torch() -> None:
    """Loads torch's modules for computing result layouts, while no request waits: few need them. Cost: 3 s (sympy, dynamo)."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.no_grad():
        torch.ones(2, 2).mm(torch.ones(2, 2))


def _calculate_as(products: str, convolutions: str) -> None:
    """Sets torch's f32 arithmetic to the parent's: programs depend on it."""
    if framework_products() != products:
        torch.backends.cuda.matmul.allow_tf32 = products == "tf32"
    if framework_convolutions() != convolutions:
        torch.backends.cudnn.allow_tf32 = convolutions == "default"


if __name__ == "__main__":
    main()
