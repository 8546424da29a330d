"""Networks of symbolic arrays trained on scikit-learn's digits: logistic regression, a perceptron, LeNet, a small ResNet.

    python examples/array_digits.py                     all four
    python examples/array_digits.py --only lenet        one of them

1797 real images of 8 x 8 pixels; a fifth is kept for testing. Everything follows from one seed, so a second run prints the same figures.
"""
from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from tilefuse import array as ta
from tilefuse import nn, optim
from tilefuse.nn.initialise import generator

BATCH = 64
SEED = 7
# Epochs, rate of Adam, and the least share of test images that must be known in the end.
COURSES = {"logistic": (12, 2e-2, 0.94), "perceptron": (12, 5e-3, 0.95), "lenet": (14, 3e-3, 0.97), "resnet": (6, 3e-3, 0.97)}


class LeNet(nn.Module):
    """Two convolutions with pooling, two linear layers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draws = generator(seed)
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, seed=draws)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, seed=draws)
        self.full1 = nn.Linear(128, 64, seed=draws)
        self.full2 = nn.Linear(64, 10, seed=draws)

    def forward(self, x: Any) -> Any:
        x = nn.max_pool(nn.relu(self.conv1(x)), 2)
        x = nn.max_pool(nn.relu(self.conv2(x)), 2)
        return self.full2(nn.relu(self.full1(ta.reshape(x, (x.shape[0], 128)))))


class Residual(nn.Module):
    """x plus two convolutions of x, each with a batch norm."""

    def __init__(self, channels: int, seed: Any) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False, seed=seed), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False, seed=seed), nn.BatchNorm2d(channels)

    def forward(self, x: Any) -> Any:
        y = nn.relu(self.norm1(self.conv1(x)))
        return nn.relu(x + self.norm2(self.conv2(y)))


class SmallResNet(nn.Module):
    """A convolution, two residual blocks, the mean over positions, a linear layer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draws = generator(seed)
        self.conv, self.norm = nn.Conv2d(1, 16, 3, padding=1, bias=False, seed=draws), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(Residual(16, draws), Residual(16, draws))
        self.classify = nn.Linear(16 * 16, 10, seed=draws)

    def forward(self, x: Any) -> Any:
        x = self.blocks(nn.relu(self.norm(self.conv(x))))
        return self.classify(ta.reshape(nn.mean_pool(x, 2), (x.shape[0], 16 * 16)))


def network(name: str) -> nn.Module:
    """A network with its first weights."""
    draws = generator(SEED)
    match name:
        case "logistic":
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 10, seed=draws))
        case "perceptron":
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 64, seed=draws), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10, seed=draws))
        case "lenet":
            return LeNet(SEED)
    return SmallResNet(SEED)


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test images in [0, 1] as [N, 1, 8, 8], and their classes."""
    found = load_digits()
    images = (found.images[:, None] / 16.0).astype(np.float32)
    order = np.random.default_rng(SEED).permutation(len(images))
    test, training = order[:len(order) // 5], order[len(order) // 5:]
    return images[training], found.target[training], images[test], found.target[test]


def batches(images: np.ndarray, classes: np.ndarray, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The images of an epoch in full batches, in an order of its own."""
    order = np.random.default_rng((SEED, epoch)).permutation(len(images))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        chosen = order[start:start + BATCH]
        yield images[chosen], classes[chosen]


def train(name: str, epochs: int, rate: float) -> float:
    """Trains a network and gives the share of test images that it knows."""
    images, classes, test_images, test_classes = digits()
    model = network(name)
    started = time.perf_counter()
    step = nn.TrainingStep(model, nn.cross_entropy, optim.Adam(rate), seed=SEED)
    for epoch in range(epochs):
        for batch in batches(images, classes, epoch):
            loss = step(*batch)
        if epoch in (0, epochs - 1):
            print(f"{name}: epoch {epoch + 1} loss {float(loss):.4f}")
    model.eval()
    predict = ta.compile(lambda arrays, x: ta.argmax(nn.apply(model, arrays, x)[0], axis=1))
    found = predict(model.parameters() | model.statistics(), test_images).numpy()
    accuracy = float((found == test_classes).mean())
    print(f"{name}: {accuracy:.4f} of {len(test_classes)} test images, {time.perf_counter() - started:.1f} s with compiling")
    return accuracy


def main() -> None:
    """Train the networks; exit status 1 where one learns too little."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(COURSES), help="train this network only")
    parser.add_argument("--epochs", type=int, help="instead of the few that suffice")
    options = parser.parse_args()
    for name, (epochs, rate, least) in COURSES.items():
        if options.only in (None, name) and train(name, options.epochs or epochs, rate) < least:
            raise SystemExit(f"{name} knows less than {least:.0%} of the test images")


if __name__ == "__main__":
    main()
