"""Earlier plans of graphs that are equal up to sizes: planning another size starts from one of them.

    graph text without its numbers + what decides a program besides  ->  key  ->  seeds, one a plan that was made from nothing
    digest of the program + its seed                                 ->  digest of the program that starts from the seed

A program depends on its seed, so the seed is part of its digest. Plans that started from a seed are no seeds themselves, and a stored seed
is never replaced: a size keeps the seed of its first program.
"""
from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilefuse.base.options import Options
from tilefuse.driver.reuse.known_programs import find_program, is_keepable, keep_program, program_digest, told_in_numbers, told_in_words
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import print_graph
from tilefuse.plan.seeded import Seed, parse_seed, seed_of
from tilefuse.runtime.stores.cache import SEEDS, cache_of
from tilefuse.runtime.stores.program_store import StoredProgram
from tilefuse.runtime.stores.text_store import TextStore

# Maximum number of seeds of one key. Where no seed fits, a plan is made without one, so there is about one seed for each distinct plan.
MOST_SEEDS = 8

# A number that is no part of a name, a type or a function.
_NUMBER = re.compile(r"(?<![\w.%$])\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Found:
    """Facts about a program that are known before it is compiled.

    digest: of the program made without a seed. key: of its seeds; "" where none are used or stored. seed: the one to start from.
    """

    digest: str
    key: str = ""
    seed: Seed | None = None
    program: StoredProgram | None = None


def look_up(graph: Graph, facts: Mapping[str, Any]) -> Found:
    """The program of these arguments of `compile_graph` if it is stored, or its seed.

    facts: all but the graph, as `program_digest` takes them.
    """
    options: Options = facts["options"]
    text = print_graph(graph)
    digest = program_digest(graph, **facts, text=text)
    known = find_program(digest, options)
    if known is not None or not uses_seeds(options):
        return Found(digest, program=known)
    key = seed_key(graph, facts, text)
    seeds = sorted(_seeds(key, options), key=lambda s: _distance(s, graph))
    for seed in seeds:
        known = find_program(seeded_digest(digest, seed), options)
        if known is not None:
            return Found(digest, key, seed, known)
    return Found(digest, key, next(iter(seeds), None))


def keep_made(found: Found, made: Any, graph: Graph, facts: Mapping[str, Any]) -> None:
    """Stores the result of `generate` for a graph from `found.seed`, and its decisions if it was planned without a seed."""
    started = made.plan.start is not None
    digest = seeded_digest(found.digest, found.seed) if started and found.seed is not None else found.digest
    keep_program(digest, made, facts["constants"], facts["options"])
    seed = seed_of(made.plan) if found.key else None
    if seed is not None:
        _keep_seed(found.key, replace(seed, sizes=_sizes(graph)), facts["options"])


def uses_seeds(options: Options) -> bool:
    """Whether plans start from earlier ones and are stored for later ones: not where the options contain the plan."""
    return options.reuse_plans and is_keepable(options) and not options.plan and not options.template


def seed_key(graph: Graph, facts: Mapping[str, Any], text: str = "") -> str:
    """The key of the seeds for graphs like this one: equal for graphs equal up to sizes, other numbers and their name.

    Legality, tiles and prices are computed again, so numbers that are no sizes may differ. text: the graph's, if it is already printed.
    """
    _, _, nameless = (text or print_graph(graph)).partition("(")
    sized = told_in_numbers(nameless, facts["input_layouts"], facts["fallbacks"], facts["result_layouts"])
    key_facts = [_NUMBER.sub("N", repr(sized)), told_in_words(graph, facts["device"], facts["options"]),
                 [sorted(facts[name]) for name in ("free_results", "static", "given_up", "overwritable")]]
    return hashlib.sha256(repr(key_facts).encode()).hexdigest()


def seeded_digest(digest: str, seed: Seed) -> str:
    """The digest of a program that starts from a seed. digest: of the program made without one."""
    return hashlib.sha256(f"{digest} {seed.text()}".encode()).hexdigest()


def _sizes(graph: Graph) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((i.name, i.type.shape) for i in graph.inputs)


def _distance(seed: Seed, graph: Graph) -> float:
    """Distance between a seed's sizes and a graph's: the sum of the logarithms of their ratios, where extent 0 counts as one."""
    pairs = [(a, b) for (_, there), (_, here) in zip(seed.sizes, _sizes(graph)) for a, b in zip(there, here)]
    return sum(abs(math.log(max(a, 1) / max(b, 1))) for a, b in pairs if a != b)


def _seeds(key: str, options: Options) -> Sequence[Seed]:
    return _store(options).get(key, _read) or ()


def _keep_seed(key: str, seed: Seed, options: Options) -> None:
    seeds = _seeds(key, options)
    if len(seeds) < MOST_SEEDS and all(seed.sizes != other.sizes for other in seeds):
        _store(options).put(key, json.dumps([s.text() for s in (*seeds, seed)]))


def _read(text: str) -> list[Seed]:
    return [parse_seed(row) for row in json.loads(text)]


def _store(options: Options) -> TextStore:
    return TextStore(cache_of(options.cache, options.cache_dir).folder, SEEDS, "seed 1")
