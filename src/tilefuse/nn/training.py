"""One training step as one compiled function: forward, loss, gradients and update, everything that changes updated in place.

    loss = nn.TrainingStep(model, nn.cross_entropy, optim.Adam(1e-3))
    for x, classes in batches: loss(x, classes)
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilefuse.array as ta
from tilefuse.arrays.nodes import user_span
from tilefuse.base.errors import TypeMismatchError
from tilefuse.nn.module import Arrays, Module, apply


class TrainingStep:
    """Calls train the model on a batch and give the loss before the update.

    model      its parameters and statistics are replaced by the new ones after each call (their memory is used again)
    loss       of (what the model gives, targets) -> a scalar
    optimiser  of `tilefuse.optim`
    seed       decides dropout and all other random draws of the model
    options    of `tilefuse.array.compile`: device, fuse, ...

    The step keeps the optimiser's state in `state`, and `compiled` is the compiled function itself.
    """

    def __init__(self, model: Module, loss: Callable[..., Any], optimiser: Any, *, seed: int = 0, **options: Any) -> None:
        if not callable(getattr(optimiser, "init", None)) or not isinstance(model, Module) or not callable(loss):
            raise TypeMismatchError("a training step takes a module, a loss function and an optimiser", where=user_span(),
                                    hint="TrainingStep(model, nn.cross_entropy, optim.Adam(1e-3))")
        self.model = model
        self.state = optimiser.init(model.parameters())
        self.seed = ta.asarray(seed, dtype=ta.int64)

        def step(parameters: Arrays, state: Any, statistics: Arrays, seed: Any, x: Any, target: Any) -> tuple[Any, ...]:
            new_statistics: dict[str, Any] = {}

            def total(parameters: Arrays) -> Any:
                result, after = apply(model, parameters | statistics, x, seed=seed)
                new_statistics.update(after)
                return loss(result, target)

            value, gradients = ta.value_and_grad(total)(parameters)
            parameters, state = optimiser.update(parameters, gradients, state)
            return parameters, state, new_statistics, seed + 1, value

        self.compiled = ta.compile(step, donate=(0, 1, 2, 3), **options)

    def __call__(self, x: Any, target: Any) -> Any:
        parameters, self.state, statistics, self.seed, loss = self.compiled(
            self.model.parameters(), self.state, self.model.statistics(), self.seed, x, target)
        self.model.load(parameters | statistics)
        return loss
