"""Cases for which two trees generate the same code: digests that a step without a device wrote, a JSON object a line.

    {"suite": "blas", "case": "scal/f32/65536", "side": "before", "tree": digest of the tree, "machine_code": false, "code": digest,
     "launches": digest of all but sources, "sources": [digest of each kernel's source]}

A line counts only for the state of the tree that it was written for. Equal digests of sources decide. Where they differ and launches are
the same, equal digests of machine code do.
"""
from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Suites whose cases are planned without a device.
PLANNED_SUITES = ("patterns", "blas", "arrays", "stitched")
# Status of a case that is not timed, because both trees generate the same code for it.
EQUAL = "equal code"

# Modules of a tree's benchmarks that say what these cases are.
CASE_MODULES = ("case", "peers", "patterns", "image_patterns", "blas", "cublas", "arrays", "array_networks", "stitched", "recurrent",
                "precision")

Name = tuple[str, str]


def tree_digest(root: Path) -> str:
    """A digest of the compiler and of the cases in a tree. Cost: linear in the bytes of its files."""
    digest = hashlib.sha256()
    files = [p for p in (root / "src").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    for path in sorted([*files, *(root / "benchmarks" / f"{name}.py" for name in CASE_MODULES)]):
        digest.update(f"{path.relative_to(root)}\n".encode() + (path.read_bytes() if path.exists() else b""))
    return digest.hexdigest()[:24]


class Codes:
    """Digests of code by case, side and state of that side's tree. `path` receives a line an answer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.code: dict[tuple[Name, str, str, bool], str] = {}
        self.facts: dict[tuple[Name, str, str], tuple[str, list[str]]] = {}

    @classmethod
    def load(cls, path: Path) -> Codes:
        """What earlier runs wrote; no file means none."""
        codes = cls(path)
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            entry = json.loads(line)
            codes._add((entry["suite"], entry["case"]), entry["side"], entry["tree"], entry["machine_code"], entry)
        return codes

    def keep(self, name: Name, side: str, tree: str, machine_code: bool, answer: Mapping[str, Any]) -> None:
        """Stores the answer of one side. A failure is stored as an empty digest, which equals no other, with its reason."""
        code = answer.get("code", "") if answer["status"] == "ok" else ""
        facts = {k: answer[k] for k in ("launches", "sources") if code and k in answer}
        line = {"suite": name[0], "case": name[1], "side": side, "tree": tree, "machine_code": machine_code, "code": code, **facts}
        self._add(name, side, tree, machine_code, line)
        line |= {} if code else {"reason": f"{answer['status']}: {answer.get('reason', '')}"[:300]}
        with self.path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")

    def _add(self, name: Name, side: str, tree: str, machine_code: bool, entry: Mapping[str, Any]) -> None:
        self.code[name, side, tree, machine_code] = entry["code"]
        if "launches" in entry:
            self.facts[name, side, tree] = entry["launches"], entry["sources"]

    def may_be_equal(self, name: Name, tree_by_side: Mapping[str, str]) -> bool:
        """Whether machine code decides: sources differ, while kernels are launched in the same way on the same memory."""
        facts = [self.facts.get((name, side, tree)) for side, tree in tree_by_side.items()]
        return not self.is_equal(name, tree_by_side) and None not in facts and len({f[0] for f in facts if f is not None}) == 1

    def shared_sources(self, name: Name, tree_by_side: Mapping[str, str]) -> list[str]:
        """Sources that both sides have: these need no machine code to be compared."""
        sources = [set(self.facts[name, side, tree][1]) for side, tree in tree_by_side.items()]
        return sorted(set.intersection(*sources))

    def has(self, name: Name, side: str, tree: str, machine_code: bool) -> bool:
        """Whether a side has answered for this state of its tree."""
        return (name, side, tree, machine_code) in self.code

    def is_equal(self, name: Name, tree_by_side: Mapping[str, str]) -> bool:
        """Whether both sides generate the same code, by sources or by machine code."""
        pairs = ({self.code.get((name, side, tree, kind), "") for side, tree in tree_by_side.items()} for kind in (False, True))
        return any(len(pair) == 1 and "" not in pair for pair in pairs)

    def table(self, names: Sequence[Name], tree_by_side: Mapping[str, str]) -> str:
        """A line a suite, then the cases whose code differs."""
        lines = [f"{'suite':<12}{'cases':>6}{'equal code':>12}{'differ':>8}{'not planned':>13}"]
        planned = [n for n in names if n[0] in PLANNED_SUITES]
        equal = {n for n in planned if self.is_equal(n, tree_by_side)}
        failed = {n for n in planned if not all(self.code.get((n, side, tree, False)) for side, tree in tree_by_side.items())}
        for suite in dict.fromkeys(n[0] for n in planned):
            of_suite = [n for n in planned if n[0] == suite]
            counts = len(of_suite), len(equal & set(of_suite)), len(set(of_suite) - equal - failed), len(failed & set(of_suite))
            lines.append(f"{suite:<12}{counts[0]:>6}{counts[1]:>12}{counts[2]:>8}{counts[3]:>13}")
        return "\n".join([*lines, "", "code differs or is unknown", *(f"  {'/'.join(n)}" for n in sorted(set(planned) - equal))])
