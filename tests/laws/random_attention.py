"""Random variants of attention: functions of scores, masks, groups of heads, widths, lengths, pages and dropouts, and tiles for them."""
from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.unit.templates.staged.walked.variants import Variant
from tilefuse.ir.dtype import BF16, F16
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.split.parts import parts_are_filled

BIASES = ("dense", "of_heads", "of_batch", "of_columns", "of_rows", "hidden", "padding", "lengths")
MASKS = ("causal", "added_triangle", "window", "around", "prefix", "documents", "lengths_and_rows", "behind", "first_and_window",
         "ends_and_window")
FUNCTIONS = ("slopes", "cap", "temperature")


def random_variant(random: Random) -> Variant:
    """Up to three functions of scores, in any order, each once."""
    scores = random.sample((*BIASES, *MASKS, *MASKS, *FUNCTIONS), random.choice((1, 2, 2, 3)))
    heads = random.choice((1, 2, 4))
    group = random.choice([n for n in (1, 1, 2, 4) if n <= heads])
    of = Variant(
        tuple(dict.fromkeys(scores)), batch=random.choice((1, 2)), heads=heads, group=group,
        rows=random.choice((1, 7, 64, 65, 130, 150)), keys=random.choice((2, 40, 64, 97, 130, 160)), inner=8 * random.randint(1, 9),
        width=8 * random.randint(1, 9), dtype=random.choice((F16, BF16)), window=random.choice((1, 3, 20, 50, 64)),
        safe=random.random() < 0.5, logs=random.choice(("", "", "written", "operator")))
    # Copies bring groups of 8 rows of a page.
    page = random.choice((0, 8, 16, 24, 40, 64))
    of = replace(of, page=page, keys=-(-of.keys // 8) * 8) if page else of
    of = replace(of, drop=random.choice((0.0, 0.0, 0.1, 0.5)))
    return replace(of, scores=("divided", *of.scores)) if random.random() < 0.3 else of


def random_tiles(random: Random, of: Variant, num_biases: int) -> PipelinedWalk:
    """Tiles that need not fit."""
    leads, columns = of.batch * of.heads, random.choice((16, 32, 48, 64))
    tiles = PipelinedWalk(columns, random.choice((1, 1, 2)), random.choice((1, 2)), random.choice((2, 3)),
                          random.choice([n for n in range(1, leads + 1) if leads % n == 0]), random.choice((1, 2, 3, 5)),
                          bias_slots=random.choice((0, 2)) if num_biases else 0)
    turns = -(-of.keys // columns)
    parts = random.choice([1, 1, *(n for n in range(2, turns + 1) if parts_are_filled(turns, n))])
    heads = random.choice([n for n in range(1, of.group + 1) if n == 1 or of.group % n == 0 and of.rows * n <= tiles.rows])
    return replace(tiles, parts=parts, heads=heads, bias_slots=tiles.bias_slots if heads == 1 else 0)
