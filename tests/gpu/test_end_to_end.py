"""The end-to-end lists on a CUDA device: torch operators, ONNX node cases and light models, training, the benchmark's models."""
from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F

from tests.end_to_end.torch.merged_cases import batch_name, batches, failures

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@pytest.fixture(autouse=True)
def exact_products() -> Any:
    """Products in f32, so that results compare with the host's."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("batch", batches(all_dtypes=True), ids=batch_name)
def test_torch_operators(batch: Sequence[tuple[str, int]]) -> None:
    """Every lowered operator in every dtype of its case."""
    wrong = failures(batch, "cuda")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["light_squeezenet", "light_resnet50", "light_shufflenet"])
def test_light_models(name: str) -> None:
    """The onnx package's models with drawn weights, against the host executor's results."""
    import tilefuse
    from tests.end_to_end.onnx.models import drawn_weights

    model = drawn_weights(onnx.load(str(LIGHT / f"{name}.onnx")), seed=0)
    image = torch.from_numpy(np.random.default_rng(1).standard_normal((1, 3, 224, 224), dtype=np.float32))
    here = tilefuse.compile(model, device="host")(image)[0]
    there = tilefuse.compile(model, device="cuda")(image.cuda())[0].cpu()
    bound = 2.0**-24 * 4608**0.5 * 170 * float(here.abs().max())
    torch.testing.assert_close(there, here, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [33, 1024, 8192, 65536, 262144])
def test_long_rows(length: int, dtype: torch.dtype) -> None:
    """Softmax, layer norm with its backward, argmax and cumsum over rows from registers to clusters, against double precision."""
    import tilefuse

    def rows(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x, -1), F.layer_norm(x, x.shape[-1:], w), x.amax(-1), torch.logsumexp(x.float(), -1), x.sum(0)

    generator = torch.Generator("cuda").manual_seed(length)
    x = torch.randn((7, length), device="cuda", generator=generator).to(dtype)
    w = torch.randn(length, device="cuda", generator=generator).to(dtype)
    made = tilefuse.compile(rows, (x, w))(x, w)
    again = tilefuse.compile(rows, (x, w))(x, w)
    unit = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    wanted = rows(x.double(), w.double())
    for a, b, ref in zip(made, again, wanted, strict=True):
        error = (a.double() - ref).norm() / ref.norm()
        assert error < 8 * unit + 512 * 2.0**-24, f"relative error {error.item():.3g}"
        assert torch.equal(a, b), "two runs on the same data differ"


@pytest.mark.parametrize("model", ["bert-base", "vit-b", "resnet50", "recommender", "lstm-lm", "conv-vae"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_models_through_torch_compile(model: str, mode: str) -> None:
    """Small versions of the benchmark's models in bf16: inference and a training step, also of those that the benchmark does not train."""
    from benchmarks.models import measure_model

    record = measure_model(f"{model}/{mode}/bf16/1", "tilefuse", torch.device("cuda"), inductor_mode="default", tiny=True)
    assert record["status"] == "ok", record


def test_a_model_seen_before_is_not_traced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled as by a second process: AOTAutograd is left out, and the results are the same."""
    from tilefuse.driver import torch_backend
    from tilefuse.driver.reuse import known_programs

    monkeypatch.setattr(known_programs, "enabled", True)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda().half().eval()
    x = torch.randn(2, 16, 64, device="cuda", dtype=torch.half)
    found = []
    for _ in range(2):
        torch_backend.reset()
        compiled = torch.compile(layer, backend=torch_backend.backend, options={"strict": True, "cache_dir": str(tmp_path)})
        with torch.no_grad():
            found.append(compiled(x))
        monkeypatch.setattr(torch_backend, "import_fx", lambda *_: pytest.fail("traced again"))
    assert torch.equal(*found)
    with torch.no_grad():
        wanted = copy.deepcopy(layer).double()(x.double())
    assert (found[0].double() - wanted).norm() <= 4 * 2**-11 * wanted.norm()  # some roundings to f16 one after the other


def test_training_follows_eager() -> None:
    """Five steps of gradient descent with batch norm, dropout off and a softmax loss: losses agree."""
    from tilefuse.driver import torch_backend

    torch_backend.reset()
    torch.manual_seed(0)
    eager = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Flatten(),
                                torch.nn.Linear(16 * 36, 10)).cuda()
    ours = copy.deepcopy(eager)
    compiled = torch.compile(ours, backend=torch_backend.backend, options={"strict": True})
    x, target = torch.randn(32, 3, 8, 8, device="cuda"), torch.randint(0, 10, (32,), device="cuda")
    for _ in range(5):
        losses = []
        for module, run in ((eager, eager), (ours, compiled)):
            module.zero_grad()
            loss = F.cross_entropy(run(x), target)
            loss.backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter -= 0.1 * parameter.grad
            losses.append(loss.item())
        assert abs(losses[0] - losses[1]) < 1e-3 * max(1.0, abs(losses[0])), losses
