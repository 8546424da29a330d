"""The quick selection of each suite: every family of cases once, within three minutes on one H200 with all peers.

torch.compile runs in its default mode, which compiles in seconds where a search over templates takes minutes, and all cases share one
measuring process. A run that is slower than expected ends at its budget; its record says which cases it has.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Time that a run may take once it measures: starting and the last peer's answer take up to 30 s more. Units: seconds.
# One H200, four suites at a time on it: patterns 149 s, models 135, stitched 98, workloads 77; calls 157, sizes 160, blas 120, arrays 94;
# compiler 83, search 113.
BUDGET_S = 150.0
INDUCTOR_MODE = "default"

# Suites whose families cost too much to take each once: a case of each kind that differs in what it shows.
# Source: `took_s` of the records in benchmarks/results.
CHOSEN = {
    "models": ("bert-base/inference/f16/64", "resnet50/inference/f16/64", "recommender/inference/f16/1", "lstm-lm/inference/f16/1",
               "conv-vae/inference/f16/64", "bert-base/training/bf16/64"),
    "calls": ("layers-50/inference/f16/1", "bert-base/inference/f16/1", "resnet50/inference/f16/1", "lstm-lm/inference/f16/1",
              "layers-50/training/f32/8"),
    "workloads": ("logistic/training/f32", "word2vec/training/f32", "perceptron/training/f32", "var-encoder/training/f32"),
    "products": ("linear-gelu/f16/8192x4096x1024", "gated-pair/bf16/4096x11008x4096", "linear-residual-layernorm/f16/16384x768x3072",
                 "rmsnorm-linear/bf16/8192x6144x4096", "int8-weight-linear/bf16/16x11008x4096", "mlp/f16/65536x256x4",
                 "rmsnorm-linear-residual/bf16/1x4096x4096", "linear-backward/bf16/8192x4096x1024",
                 "product/bf16/nt/4096x4096x4096", "product/f16/nn/4096x4096x4096", "product/tf32/nn/4096x4096x4096",
                 "product/f32/nn/2048x2048x2048", "few-rows/bf16/nt/16x4096x4096", "batched/bf16/nn/8.8x2048x2048x2048",
                 "odd/bf16/nn/4095x4097x4099", "sum-of-products/bf16/1024x1024x512"),
    "arrays": ("lenet/training/f32/64", "activation/arrays/f32/67108864", "adam/f32/96", "compile/training/1000"),
}


def selected(suite: str, cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The quick ones of a suite's cases: those that are chosen by name, else the first of each family or (BLAS, stitched) of each name."""
    if suite in CHOSEN:
        by_name = {case["name"]: case for case in cases}
        return [by_name[name] for name in CHOSEN[suite] if name in by_name]
    firsts: dict[str, dict[str, Any]] = {}
    for case in cases:
        firsts.setdefault(case["family"] if suite == "patterns" else case["name"].partition("/")[0], case)
    return list(firsts.values())
