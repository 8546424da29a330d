"""Tile programs and kernels of common workloads, as they were last looked at: a change shows what it does to them.

    <workload>/tile.txt      the tile program for each device
    <workload>/kernel.cu     the kernel for an H200, without the support code
    <workload>/tree.txt      its tree of stages, where it has one

`pytest tests/golden --update` rewrites them.
"""
from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.workloads import WORKLOADS, cuda_source, kernel_text, tile_program
from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import print_tile
from tilefuse.driver.explain.tiles import tree_data
from tilefuse.ir.text import print_graph
from tilefuse.runtime.stage_tree import tree_lines
from tilefuse.target.catalog import A100
from tilefuse.target.device import H200
from tilefuse.templates.registry import kernel_template

FOLDER = Path(__file__).parent


def texts_of(name: str) -> dict[str, str]:
    """The kept texts of a workload by file name."""
    tiles = [print_graph(WORKLOADS[name].graph)]
    texts: dict[str, str] = {}
    for device in (H200, A100):
        program = tile_program(name, device)
        if isinstance(program, Rejected):
            tiles.append(f"rejected on {device.arch}: {program.reason.value}: {program.detail}\n")
            continue
        tiles.append(print_tile(program, device))
        if device is H200:
            texts["kernel.cu"] = kernel_text(cuda_source(program, device))
            tree = tree_data(kernel_template(program.choice).stage_tree(program), {})
            texts |= {} if tree is None else {"tree.txt": "\n".join(tree_lines(tree)) + "\n"}
    return texts | {"tile.txt": "\n".join(tiles)}


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_kernel_is_as_last_looked_at(name: str, request: pytest.FixtureRequest) -> None:
    """Every kept text is what is printed now, and nothing else is kept."""
    folder, texts = FOLDER / name, texts_of(name)
    if request.config.getoption("--update"):
        folder.mkdir(exist_ok=True)
        for file in folder.iterdir():
            if file.name not in texts:
                file.unlink()
        for file_name, text in texts.items():
            (folder / file_name).write_text(text, encoding="utf-8")
    kept = {f.name: f.read_text(encoding="utf-8") for f in folder.iterdir()} if folder.is_dir() else {}
    assert sorted(kept) == sorted(texts), "run pytest tests/golden --update and look at what changed"
    for file_name, text in texts.items():
        assert kept[file_name] == text, f"{name}/{file_name} changed; look at the difference after pytest tests/golden --update"


def test_every_folder_is_a_workload() -> None:
    """No folder outlives its workload."""
    assert {f.name for f in FOLDER.iterdir() if f.is_dir() and f.name != "__pycache__"} == set(WORKLOADS)
