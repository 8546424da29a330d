"""A character-level recurrent network of symbolic arrays, trained on a text file; then it writes some text of its own.

    python examples/array_char_rnn.py [--text FILE] [--steps N]

The text is the repository's README unless another file is named. The steps of the recurrence are unrolled by an ordinary Python loop.
"""
from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from tilefuse import array as ta
from tilefuse import nn, optim
from tilefuse.nn.initialise import generator

README = Path(__file__).resolve().parents[1] / "README.md"
WIDTH, LENGTH, BATCH, SEED = 64, 12, 32, 11


class CharacterNetwork(nn.Module):
    """Embedding, LSTM cell, linear layer. Shapes: characters [N, length] -> logits [N, characters, length]"""

    def __init__(self, characters: int, seed: int = SEED) -> None:
        super().__init__()
        draws = generator(seed)
        self.embed = nn.Embedding(characters, WIDTH, seed=draws)
        self.cell = nn.LSTMCell(WIDTH, WIDTH, seed=draws)
        self.classify = nn.Linear(WIDTH, characters, seed=draws)

    def forward(self, text: Any) -> Any:
        x = self.embed(text)
        h = c = self.cell.zeros(text.shape[0])
        states = []
        for place in range(text.shape[1]):
            h, c = self.cell(x[:, place], h, c)
            states.append(h)
        return ta.permute_dims(self.classify(ta.stack(states, axis=1)), (0, 2, 1))

    def step(self, character: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
        """Logits of the next character, and the state behind this one. Shapes: [1] -> [1, characters]"""
        h, c = self.cell(self.embed(character), h, c)
        return self.classify(h), h, c


def samples(text: np.ndarray, draws: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A batch of stretches of the text, and the characters that follow each of theirs."""
    starts = draws.integers(0, len(text) - LENGTH - 1, BATCH)
    places = starts[:, None] + np.arange(LENGTH)
    return text[places], text[places + 1]


def write(model: CharacterNetwork, first: int, count: int) -> list[int]:
    """Characters that the network draws one after the other, each from the probabilities it gives."""

    def advance(parameters: Any, character: Any, h: Any, c: Any) -> tuple[Any, ...]:
        class Step(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.network = model

            def forward(self, *state: Any) -> Any:
                return self.network.step(*state)

        (logits, h, c), _ = nn.apply(Step(), {f"network.{k}": v for k, v in parameters.items()}, character, h, c)
        return ta.softmax(logits, axis=1), h, c

    compiled = ta.compile(advance)
    draws = np.random.default_rng(SEED)
    h = c = model.cell.zeros(1)
    written = [first]
    for _ in range(count):
        probabilities, h, c = compiled(model.parameters(), np.array(written[-1:]), h, c)
        shares = probabilities.numpy()[0].astype(np.float64)
        written.append(int(draws.choice(len(shares), p=shares / shares.sum())))
    return written


def main() -> None:
    """Train and write; exit status 1 where the loss does not fall to two thirds of what guessing gives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=README)
    parser.add_argument("--steps", type=int, default=240)
    options = parser.parse_args()
    characters = sorted(set(options.text.read_text(encoding="utf-8")))
    number = {c: n for n, c in enumerate(characters)}
    text = np.array([number[c] for c in options.text.read_text(encoding="utf-8")])
    model = CharacterNetwork(len(characters))
    step = nn.TrainingStep(model, nn.cross_entropy, optim.AdamW(1e-2, weight_decay=1e-4), seed=SEED)
    draws = np.random.default_rng(SEED)
    losses = []
    for n in range(options.steps):
        losses.append(float(step(*samples(text, draws))))
        if n % 60 == 0:
            print(f"step {n}: loss {losses[-1]:.3f}")
    last = float(np.mean(losses[-20:]))
    print(f"loss {last:.3f}; guessing gives {np.log(len(characters)):.3f}")
    print("".join(characters[n] for n in write(model, number["t"], 120)))
    if last > 2 / 3 * np.log(len(characters)):
        raise SystemExit("the network learns too little")


if __name__ == "__main__":
    main()
