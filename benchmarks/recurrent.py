"""Recurrent models in plain torch, their steps written out: every compiler sees the same operators, none sees a library's whole LSTM.

Each module's forward returns the loss of a batch.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LstmCell(nn.Module):
    """A cell whose gates come from one product of input and state together. Shapes: [batch, inputs], two of [batch, width]."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(inputs + width, 4 * width)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return lstm_state(self.gates(torch.cat([x, h], 1)), c)


def lstm_state(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The new output and memory from the gates (input, new value, forget with its bias of one, output)."""
    i, g, f, o = gates.chunk(4, 1)
    c = torch.sigmoid(f + 1.0) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


class BidirectionalRnn(nn.Module):
    """Two LSTMs read the rows of an image forwards and backwards; their last states, side by side, are classified.

    Shapes: images [batch, steps, inputs], classes [batch] -> a number.
    """

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.width = width
        self.forwards, self.backwards = LstmCell(inputs, width), LstmCell(inputs, width)
        self.classify = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        steps = x.unbind(1)
        ends = [self.read(self.forwards, steps), self.read(self.backwards, steps[::-1])]
        return F.cross_entropy(self.classify(torch.cat(ends, 1)), classes)

    def read(self, cell: LstmCell, steps: tuple[Tensor, ...]) -> Tensor:
        h = c = steps[0].new_zeros(steps[0].shape[0], self.width)
        for x in steps:
            h, c = cell(x, h, c)
        return h


class DynamicRnn(nn.Module):
    """An LSTM over sequences of different lengths: after a sequence's end its state stays.

    Shapes: [batch, steps, inputs], lengths [batch], classes [batch] -> a number.
    """

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.width = width
        self.cell = LstmCell(inputs, width)
        self.classify = nn.Linear(width, classes)

    def forward(self, x: Tensor, lengths: Tensor, classes: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], self.width)
        for number, step in enumerate(x.unbind(1)):
            runs = (lengths > number)[:, None]
            next_h, next_c = self.cell(step, h, c)
            h, c = torch.where(runs, next_h, h), torch.where(runs, next_c, c)
        return F.cross_entropy(self.classify(h), classes)


class SpeechRecogniser(nn.Module):
    """Stacked LSTM layers over stacked filter banks, each frame classified among the states of an acoustic model.

    The product with the inputs is taken for all frames at once, as libraries do.
    Shapes: frames [steps, batch, inputs], states [steps, batch] -> a number.
    """

    def __init__(self, inputs: int, width: int, layers: int, states: int) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(nn.Linear(width if n else inputs, 4 * width) for n in range(layers))
        self.states = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(layers))
        self.classify = nn.Linear(width, states)
        self.width = width

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        for into, back in zip(self.inputs, self.states):
            h = c = x.new_zeros(x.shape[1], self.width)
            outputs = []
            for gates in into(x).unbind(0):
                h, c = lstm_state(gates + back(h), c)
                outputs.append(h)
            x = torch.stack(outputs)
        return F.cross_entropy(self.classify(x).flatten(0, 1), states.flatten())


class DialogGenerator(nn.Module):
    """A GRU reads an utterance, another writes the answer and looks back at each word by additive attention.

    Attention of this kind has no batched product: a sum over tanh. Shapes: words [batch, steps] of both sides -> a number.
    """

    def __init__(self, words: int, embedding: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, embedding)
        self.read_in, self.read_back = nn.Linear(embedding, 3 * width), nn.Linear(width, 3 * width)
        self.write_in, self.write_back = nn.Linear(embedding + width, 3 * width), nn.Linear(width, 3 * width)
        self.keys, self.query, self.score = nn.Linear(width, width, bias=False), nn.Linear(width, width), nn.Linear(width, 1, bias=False)
        self.classify = nn.Linear(2 * width, words)
        self.width = width

    def forward(self, asked: Tensor, answered: Tensor) -> Tensor:
        h = self.read_in.weight.new_zeros(asked.shape[0], self.width)
        seen = []
        for gates in self.read_in(self.embed(asked)).unbind(1):
            h = gru_state(gates, self.read_back(h), h)
            seen.append(h)
        memory = torch.stack(seen, 1)
        keys = self.keys(memory)
        written = []
        for word in self.embed(answered[:, :-1]).unbind(1):
            scores = (torch.tanh(keys + self.query(h)[:, None]) * self.score.weight[0]).sum(-1)
            context = (torch.softmax(scores, -1)[:, :, None] * memory).sum(1)
            h = gru_state(self.write_in(torch.cat([word, context], 1)), self.write_back(h), h)
            written.append(torch.cat([h, context], 1))
        logits = self.classify(torch.stack(written, 1))
        return F.cross_entropy(logits.flatten(0, 1), answered[:, 1:].flatten())


def gru_state(given: Tensor, back: Tensor, h: Tensor) -> Tensor:
    """The new state of a gated unit from both products (reset, update, new value). Shapes: twice [batch, 3 width], [batch, width]."""
    given_r, given_z, given_n = given.chunk(3, 1)
    back_r, back_z, back_n = back.chunk(3, 1)
    z = torch.sigmoid(given_z + back_z)
    n = torch.tanh(given_n + torch.sigmoid(given_r + back_r) * back_n)
    return n + z * (h - n)
