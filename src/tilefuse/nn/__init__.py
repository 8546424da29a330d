"""Neural networks of symbolic arrays: layers, losses, initialisers and training steps. See docs/training.md."""
from __future__ import annotations

from tilefuse.arrays.functions.neural import (
    convolution,
    convolution_transpose,
    elu,
    embedding,
    gelu,
    group_norm,
    layer_norm,
    leaky_relu,
    linear,
    max_pool,
    mean_pool,
    one_hot,
    relu,
    sigmoid,
    silu,
    softplus,
)
from tilefuse.nn import initialise
from tilefuse.nn.attention import MultiheadAttention
from tilefuse.nn.convolutions import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
from tilefuse.nn.layers import (
    GELU,
    AvgPool2d,
    Dropout,
    Embedding,
    Flatten,
    LeakyReLU,
    Linear,
    MaxPool2d,
    ReLU,
    Sigmoid,
    SiLU,
    Tanh,
)
from tilefuse.nn.losses import binary_cross_entropy_with_logits, cross_entropy, l1, mse
from tilefuse.nn.module import Module, Parameter, Sequential, Statistic, apply
from tilefuse.nn.norms import BatchNorm, BatchNorm2d, GroupNorm, LayerNorm
from tilefuse.nn.recurrent import GRUCell, LSTMCell, RNNCell
from tilefuse.nn.training import TrainingStep

__all__ = [
    "GELU", "AvgPool2d", "BatchNorm", "BatchNorm2d", "Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d", "Dropout", "Embedding",
    "Flatten", "GRUCell", "GroupNorm", "LSTMCell", "LayerNorm", "LeakyReLU", "Linear", "MaxPool2d", "Module", "MultiheadAttention",
    "Parameter", "RNNCell", "ReLU", "Sequential", "SiLU", "Sigmoid", "Statistic", "Tanh", "TrainingStep", "apply",
    "binary_cross_entropy_with_logits", "convolution", "convolution_transpose", "cross_entropy", "elu", "embedding", "gelu", "group_norm",
    "initialise", "l1", "layer_norm", "leaky_relu", "linear", "max_pool", "mean_pool", "mse", "one_hot", "relu", "sigmoid", "silu",
    "softplus",
]
