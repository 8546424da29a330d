"""Inference graphs that were traced before are not traced again, and only such as compute the same are taken for them."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tilefuse.driver import torch_backend
from tilefuse.driver.reuse import known_programs
from tilefuse.frontends.torch.fx import import_fx
from tilefuse.runtime.stores.cache import TRACES, CacheWarning, KernelCache
from tilefuse.runtime.stores.cache_file import export_cache, import_cache
from tilefuse.runtime.stores.text_store import TextStore


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch_backend.reset()
    yield
    torch_backend.reset()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, int]]:
    """Compiles a function as a new process would, with the cache of the processes before; its results and how many graphs were traced."""
    traced: list[str] = []

    def counting(gm: torch.fx.GraphModule, name: str = "graph", *names: Any) -> Any:
        traced.append(name)
        return import_fx(gm, name, *names)

    monkeypatch.setattr(torch_backend, "import_fx", counting)
    monkeypatch.setattr(known_programs, "enabled", True)

    def call(function: Callable[..., Any], *inputs: Any, grad: bool = False, **options: Any) -> tuple[Any, int]:
        torch_backend.reset()
        traced.clear()
        compiled = torch.compile(function, backend=torch_backend.backend, dynamic=False,
                                 options={"strict": True, "cache_dir": str(tmp_path), **options})
        with torch.set_grad_enabled(grad):
            return compiled(*inputs), len(traced)

    return call


def kept(tmp_path: Path) -> list[Path]:
    return TextStore(tmp_path, TRACES, "trace 1").paths()


def test_a_module_is_traced_once(run: Callable[..., Any], tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.GELU(), torch.nn.LayerNorm(40)).eval()
    x = torch.randn(5, 24)
    assert run(model, x)[1] == 1 and len(kept(tmp_path)) == 1
    for _ in range(2):
        other = torch.randn(5, 24)
        found, traced = run(model, other)
        with torch.no_grad():
            torch.testing.assert_close(found, model(other))
        assert traced == 0
    part, = torch_backend.compiled_parts("inference")
    assert part.calls == 1


def test_several_results_and_numbers_come_as_they_did(run: Callable[..., Any]) -> None:
    def several(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {"sum": (x + y, x.shape[0]), "soft": torch.softmax(x.transpose(0, 1), -1), "most": x.amax(), "where": y.argmax(-1)}

    x, y = torch.randn(6, 7), torch.randn(6, 7)
    for wanted in (1, 0):
        found, traced = run(several, x, y)
        assert traced == wanted
        torch.testing.assert_close(found, several(x, y))
        assert found["soft"].stride() == several(x, y)["soft"].stride()


@pytest.mark.parametrize("changed", [lambda x: x[:, :4], lambda x: x.double(), lambda x: x.t().contiguous().t(), lambda x: x.abs() > 0])
def test_another_type_of_input_is_traced(run: Callable[..., Any], changed: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum(-1)

    x = torch.randn(6, 8)
    run(function, x)
    other = changed(x)
    found, traced = run(function, other)
    assert traced == 1
    torch.testing.assert_close(found, function(other))


def test_another_number_in_the_graph_is_another_graph(run: Callable[..., Any]) -> None:
    def scaled(by: object) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: torch.nn.functional.leaky_relu(x * by, 0.1)  # type: ignore[operator]

    x = torch.randn(9)
    # 0.1 and its neighbour print alike in few digits; True and 1 are equal.
    for by in (0.1, 0.1 + 2**-56, 1, True, 1.0, 0.0, -0.0, float("inf"), float("nan")):
        found, traced = run(scaled(by), x)
        assert traced == 1, by
        torch.testing.assert_close(found, scaled(by)(x), equal_nan=True, rtol=0, atol=0)
        assert run(scaled(by), x)[1] == 0, by


def test_a_setting_of_torch_that_tracing_sees_traces_again(run: Callable[..., Any]) -> None:
    def function(q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    q = torch.randn(1, 2, 8, 16)
    run(function, q)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert run(function, q)[1] == 1
    assert run(function, q)[1] == 0
    torch.set_float32_matmul_precision("high")
    try:
        assert run(function, q)[1] == 1
    finally:
        torch.set_float32_matmul_precision("highest")


def test_gradients_and_autocast_are_traced_each_time(run: Callable[..., Any], tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 8)
    x = torch.randn(3, 8)
    for _ in range(2):
        assert run(model, x, grad=True)[1] >= 1
        with torch.autocast("cpu", torch.bfloat16):
            found, traced = run(model, x)
            assert traced == 1 and found.dtype == torch.bfloat16
    assert not kept(tmp_path)


def test_inference_mode_takes_part(run: Callable[..., Any]) -> None:
    model = torch.nn.Linear(8, 8)
    x = torch.randn(3, 8)
    with torch.inference_mode():
        for wanted in (1, 0):
            found, traced = run(model, x)
            torch.testing.assert_close(found, model(x))
            assert traced == wanted and found.is_inference()


def test_what_changes_or_returns_its_arguments_is_not_kept(run: Callable[..., Any], tmp_path: Path) -> None:
    def changes(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    def returns_a_window(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[1:], x + 1

    def returns_the_same_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 3
        return y, y.view(-1)

    for function in (changes, returns_a_window, returns_the_same_twice):
        for _ in range(2):
            x = torch.randn(4, 4)
            mine = x.clone()
            found, wanted = run(function, x)[0], function(mine)
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(x, mine)
            if function is returns_a_window:
                assert found[0].data_ptr() == x[1:].data_ptr()
    assert len(kept(tmp_path)) <= 1  # two windows of one result are apart for torch without a gradient; what it says of them decides


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_function_in_the_place_of_torchs_own_is_not_taken_for_it(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)

    x = torch.randn(9)
    run(function, x)
    torch._dynamo.allow_in_graph(doubled)
    monkeypatch.setattr(torch, "relu", doubled)
    found, _ = run(function, x)
    torch.testing.assert_close(found, x * 2)


def test_a_users_operator_is_traced_each_time(run: Callable[..., Any], tmp_path: Path) -> None:
    @torch.library.custom_op("tilefuse_known_traces::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(lambda x: torch.empty_like(x))
    x = torch.randn(9)
    for _ in range(2):
        found, traced = run(lambda x: twice(x) + 1, x)
        assert traced >= 1
        torch.testing.assert_close(found, x * 2 + 1)
    assert not kept(tmp_path)


def test_a_damaged_trace_is_traced_again(run: Callable[..., Any], tmp_path: Path) -> None:
    run(doubled, torch.randn(9))
    path, = kept(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.warns(CacheWarning, match="damaged trace"):
        assert run(doubled, torch.randn(9))[1] == 1
    assert run(doubled, torch.randn(9))[1] == 0


def test_nothing_is_kept_where_plans_are_not(run: Callable[..., Any], tmp_path: Path) -> None:
    for _ in range(2):
        assert run(doubled, torch.randn(9), plan_cache=False)[1] == 1
    assert not kept(tmp_path)


def test_an_exported_cache_carries_traces(run: Callable[..., Any], tmp_path: Path) -> None:
    run(doubled, torch.randn(9))
    export_cache(KernelCache(tmp_path), tmp_path / "cache.zip")
    import_cache(KernelCache(tmp_path / "away"), tmp_path / "cache.zip")
    assert run(doubled, torch.randn(9), cache_dir=str(tmp_path / "away"))[1] == 0
    KernelCache(tmp_path / "away").clear()
    assert not kept(tmp_path / "away")


def test_dropout_in_evaluation_of_a_training_module_stays_random(run: Callable[..., Any]) -> None:
    model = torch.nn.Dropout(0.5).train()
    x = torch.ones(64, 64)
    run(model, x)
    torch_backend.reset()
    first, traced = run(model, x)
    second, _ = run(model, x)
    assert traced == 0 and 0.3 < (first == 0).float().mean() < 0.7 and not torch.equal(first, second)
