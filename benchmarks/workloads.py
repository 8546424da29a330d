"""The ten workloads of FusionStitching's Table 1 with sizes of today's use: a Transformer's inference and nine training steps.

A training step is one function of state and batch: forward, backward and the optimizer's update in place, so that a compiler may see the
whole step. The paper names applications of its authors' company and small TensorFlow examples; sizes of the latter are those examples',
of the former what such models have in the literature.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import feedforward, recurrent
from benchmarks.case import DTYPES, Tensors
from benchmarks.optimisers import Optimiser, State, adam, momentum, rmsprop, sgd

Batch = Callable[[torch.device, torch.Generator], Tensors]


@dataclass(frozen=True)
class Task:
    """A workload at one size.

    state   fresh parameters and slots in single precision, on the host
    batch   one batch of inputs
    step    outputs of a step; changes the state in place where it trains
    scored  outputs in the reference's precision for given outputs (greedy choices may differ in the last bit); None: `step`'s own
    """

    state: Callable[[], State]
    batch: Batch
    step: Callable[..., Tensors]
    scored: Callable[..., Tensors] | None = None


@dataclass(frozen=True)
class Workload:
    """One row of the table: what it is, its sizes in words, and how to make it (`tiny` asks for a small version).

    usual_s  about how long torch.compile searches on an H200, in seconds: with several devices the longest go first. The figures of
             the recurrent networks are guesses, because no search over them has ended yet
    """

    name: str
    kind: str
    described: str
    sizes: str
    make: Callable[[bool], Task]
    dtype: str = "f32"
    usual_s: float = 10.0


def listed() -> list[dict[str, Any]]:
    """All cases: name workload/mode/dtype."""
    return [{"name": name_of(w), "family": w.kind, "dtype": w.dtype, "rank": 0, "usual_s": w.usual_s} for w in WORKLOADS]


def name_of(workload: Workload) -> str:
    """The case's name in records."""
    return f"{workload.name}/{'inference' if workload.name == 'nmt' else 'training'}/{workload.dtype}"


def by_name(name: str) -> Workload:
    """The workload of a case. Raises: KeyError for another name."""
    return {name_of(w): w for w in WORKLOADS}[name]


def parameters_of(module: nn.Module) -> list[Tensor]:
    """The module's weights as plain tensors."""
    return [p.detach().clone() for p in module.parameters()]


def training(module: nn.Module, batch: Batch, optimiser: Optimiser) -> Task:
    """A step of a module whose forward gives the loss."""
    names = [name for name, _ in module.named_parameters()]

    def state() -> State:
        parameters = parameters_of(module)
        return [parameters, *optimiser.slots(parameters)]

    def step(state: State, *inputs: Tensor) -> Tensors:
        def loss_of(parameters: list[Tensor]) -> Tensor:
            loss: Tensor = torch.func.functional_call(module, dict(zip(names, parameters)), inputs)
            return loss

        gradients, loss = torch.func.grad_and_value(loss_of)(state[0])
        optimiser.update(state, gradients)
        return (loss,)

    return Task(state, batch, step)


# -- inputs ------------------------------------------------------------------------------------------------------------------

def _classes(most: int, *shape: int) -> Batch:
    def make(device: torch.device, generator: torch.Generator) -> Tensors:
        return (torch.randint(0, most, shape, device=device, generator=generator),)

    return make


def _normal(*shape: int) -> Batch:
    return lambda device, generator: (torch.randn(shape, device=device, generator=generator),)


def _pixels(*shape: int) -> Batch:
    return lambda device, generator: (torch.rand(shape, device=device, generator=generator),)


def _together(*parts: Batch) -> Batch:
    return lambda device, generator: tuple(t for part in parts for t in part(device, generator))


# -- the ten -----------------------------------------------------------------------------------------------------------------

def _nmt(tiny: bool) -> Task:
    words, batch, length = (50, 2, 5) if tiny else (32000, 8, 32)
    size = {"width": 32, "heads": 2, "inner": 64, "layers": 1, "steps": 2} if tiny else \
        {"width": 512, "heads": 8, "inner": 2048, "layers": 6, "steps": 4}
    module = feedforward.Translator(words, length=length, **size)
    names = [name for name, _ in module.named_parameters()]

    def step(state: State, *inputs: Tensor) -> Tensors:
        found: Tensors = torch.func.functional_call(module, dict(zip(names, state[0])), inputs)
        return found

    def scored(state: State, inputs: Tensors, outputs: Tensors) -> Tensors:
        """Logits for the tokens that were chosen; a token counts as right if its logit is within a hundredth of the largest."""
        _, logits = step(state, *inputs, outputs[0])
        chosen = logits.gather(2, outputs[0][:, :, None])[:, :, 0]
        near = logits.amax(-1) - chosen <= 0.01 * logits.abs().amax()
        return torch.where(near, outputs[0], logits.argmax(-1)), logits

    return Task(lambda: [parameters_of(module)], _classes(words, batch, length), step, scored)


def _multi_interest(tiny: bool) -> Task:
    items, width, length, batch, features = (60, 8, 6, 4, 5) if tiny else (100_000, 32, 64, 1024, 128)
    module = feedforward.MultiInterest(items, width, length, 4, features)
    return training(module, _together(_classes(items, batch, length), _classes(items, batch), _normal(batch, features)), adam(1e-3))


def _speech(tiny: bool) -> Task:
    inputs, width, layers, states, steps, batch = (12, 8, 2, 10, 3, 4) if tiny else (440, 512, 2, 3000, 20, 32)
    module = recurrent.SpeechRecogniser(inputs, width, layers, states)
    return training(module, _together(_normal(steps, batch, inputs), _classes(states, steps, batch)), momentum(1e-2))


def _dialog(tiny: bool) -> Task:
    words, embedding, width, steps, batch = (40, 8, 8, 3, 4) if tiny else (8000, 128, 256, 12, 64)
    module = recurrent.DialogGenerator(words, embedding, width)
    return training(module, _together(_classes(words, batch, steps), _classes(words, batch, steps + 1)), adam(1e-3))


def _logistic(tiny: bool) -> Task:
    pixels, classes, batch = (20, 4, 8) if tiny else (784, 10, 100)
    return training(feedforward.Logistic(pixels, classes), _together(_pixels(batch, pixels), _classes(classes, batch)), sgd(0.01))


def _word2vec(tiny: bool) -> Task:
    """Only the rows that a batch looks up are differentiated and changed, as sparse gradients do; equal rows are added up."""
    words, width, samples, batch = (50, 8, 6, 8) if tiny else (50_000, 200, 64, 128)
    rate = 0.1

    def state() -> State:
        return [[torch.rand(words, width) * 2 - 1, torch.randn(words, width) * width ** -0.5, torch.zeros(words)]]

    def step(state: State, centre: Tensor, context: Tensor, others: Tensor) -> Tensors:
        embedded, weight, bias = state[0]
        rows = (embedded[centre], weight[context], bias[context], weight[others], bias[others])
        gradients, loss = torch.func.grad_and_value(feedforward.sampled_loss, argnums=(0, 1, 2, 3, 4))(*rows)
        for table, places, gradient in zip((embedded, weight, bias, weight, bias), (centre, context, context, others, others), gradients):
            table.index_add_(0, places, gradient, alpha=-rate)
        return (loss,)

    return Task(state, _together(_classes(words, batch), _classes(words, batch), _classes(words, samples)), step)


def _bi_rnn(tiny: bool) -> Task:
    steps, inputs, width, classes, batch = (3, 5, 8, 4, 4) if tiny else (28, 28, 128, 10, 128)
    module = recurrent.BidirectionalRnn(inputs, width, classes)
    return training(module, _together(_pixels(batch, steps, inputs), _classes(classes, batch)), sgd(1e-3))


def _dyn_rnn(tiny: bool) -> Task:
    steps, width, classes, batch = (3, 8, 2, 4) if tiny else (20, 64, 2, 128)

    def lengths(device: torch.device, generator: torch.Generator) -> Tensors:
        return (torch.randint(1, steps + 1, (batch,), device=device, generator=generator),)

    module = recurrent.DynamicRnn(1, width, classes)
    return training(module, _together(_pixels(batch, steps, 1), lengths, _classes(classes, batch)), sgd(0.01))


def _perceptron(tiny: bool) -> Task:
    pixels, width, classes, batch = (20, 16, 4, 8) if tiny else (784, 256, 10, 100)
    return training(feedforward.Perceptron(pixels, width, classes), _together(_pixels(batch, pixels), _classes(classes, batch)), adam(1e-3))


def _var_encoder(tiny: bool) -> Task:
    pixels, width, latent, batch = (20, 16, 2, 8) if tiny else (784, 512, 2, 64)
    return training(feedforward.VariationalEncoder(pixels, width, latent), _together(_pixels(batch, pixels), _normal(batch, latent)),
                    rmsprop(1e-3))


WORKLOADS = (
    Workload("nmt", "application", "translation, greedy inference", "Transformer base (6 + 6 layers, width 512, 8 heads, 32000 words), "
             "batch 8, 32 words read, 4 words written with kept keys and values", _nmt, "f16", 90),
    Workload("multi-interests", "application", "recommender, training step (Adam)", "100000 items of width 32, 64 clicks a user, "
             "4 interests, batch 1024, softmax within the batch", _multi_interest, usual_s=170),
    Workload("speech", "application", "speech recogniser, training step (momentum)", "2 LSTM layers of width 512 over 440 inputs, "
             "3000 states, 20 frames, batch 32", _speech, usual_s=400),
    Workload("dialog", "application", "dialog generator, training step (Adam)", "GRU encoder and decoder of width 256 with additive "
             "attention, 8000 words, 12 + 12 words, batch 64", _dialog, usual_s=400),
    Workload("logistic", "micro-benchmark", "logistic regression (gradient descent)", "784 pixels, 10 classes, batch 100", _logistic),
    Workload("word2vec", "micro-benchmark", "skip-gram with sampled words (sparse gradient descent)", "50000 words of width 200, "
             "64 samples, batch 128", _word2vec, usual_s=45),
    Workload("bi-rnn", "micro-benchmark", "bidirectional LSTM (gradient descent)", "28 steps of 28 inputs, width 128, batch 128", _bi_rnn,
             usual_s=300),
    Workload("dyn-rnn", "micro-benchmark", "LSTM over sequences of different lengths (gradient descent)", "up to 20 steps, width 64, "
             "batch 128", _dyn_rnn, usual_s=300),
    Workload("perceptron", "micro-benchmark", "multilayer perceptron (Adam)", "784-256-256-10, batch 100", _perceptron, usual_s=20),
    Workload("var-encoder", "micro-benchmark", "variational autoencoder (RMSProp)", "784-512-2-512-784, batch 64", _var_encoder,
             usual_s=30),
)


def state_on(state: State, device: torch.device, dtype: torch.dtype) -> State:
    """A copy of the state on a device, floating point in `dtype`."""
    return [[t.to(device, dtype if t.dtype.is_floating_point else t.dtype, copy=True) for t in group] for group in state]


def batch_as(batch: Tensors, dtype: torch.dtype) -> Tensors:
    """The batch with floating point in `dtype`."""
    return tuple(t.to(dtype) if t.dtype.is_floating_point else t for t in batch)


def dtype_of(workload: Workload) -> torch.dtype:
    """The storage type of a workload's weights."""
    return DTYPES[workload.dtype]
