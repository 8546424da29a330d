"""Models of timm and transformers with random weights, where these packages are installed: as exact as eager torch, forward and gradients.

Each is here for what it met first: residual sums in the place of residual sums (tnt), biases whose rows no kernel loads by 16 bytes
(tiny_vit), attention on channels-last images (coatnet, maxvit), one-line windows of single channels (inception_next), gradients of large
ones (convnext).
"""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tilefuse.driver import torch_backend

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
IMAGES = ("tnt_s_legacy_patch16_224", "tiny_vit_5m_224", "coatnet_nano_rw_224", "maxvit_nano_rw_256", "inception_next_tiny",
          "convnext_atto", "swin_tiny_patch4_window7_224", "vgg11_bn")
TRAINED = ("convnext_atto", "coatnet_nano_rw_224", "inception_next_tiny")
SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 500}
TEXTS: dict[str, Callable[[Any], Any]] = {
    "bert": lambda t: t.BertForMaskedLM(t.BertConfig(**SMALL)),
    "gpt2": lambda t: t.GPT2LMHeadModel(t.GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=500, n_positions=64)),
    "llama": lambda t: t.LlamaForCausalLM(t.LlamaConfig(**SMALL, num_key_value_heads=2)),
    "deberta": lambda t: t.DebertaV2Model(t.DebertaV2Config(**SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"])),
    "fnet": lambda t: t.FNetModel(t.FNetConfig(hidden_size=128, num_hidden_layers=2, intermediate_size=256, vocab_size=500)),
    "mamba": lambda t: t.MambaForCausalLM(t.MambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=500, state_size=8)),
}
# Of the size of a result; the models have up to a hundred products of f32.
TOLERANCE, TIMES_EAGER = 1e-5, 8.0


@pytest.fixture(autouse=True)
def exact_arithmetic() -> Any:
    """Without tf32, so that f64 tells who is right."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(3)
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    torch._dynamo.reset()


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm().clamp_min(1e-30))


def close(got: torch.Tensor, eager: torch.Tensor, want: torch.Tensor) -> None:
    assert error(got, want) <= max(TIMES_EAGER * error(eager, want), TOLERANCE)


def image_of(model: Any) -> torch.Tensor:
    return torch.randn(2, *model.default_cfg["input_size"], device="cuda")


@pytest.mark.parametrize("name", IMAGES)
def test_image_models(name: str) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model(name, num_classes=10).eval().cuda()
    x = image_of(model)
    with torch.no_grad():
        want, eager = copy.deepcopy(model).double()(x.double()), model(x)
        close(torch.compile(model, backend=torch_backend.backend, dynamic=False)(x), eager, want)


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_of_image_models(name: str) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model(name, num_classes=10).cuda()
    x = image_of(model)
    twins = [copy.deepcopy(model).double(), copy.deepcopy(model), model]
    called = [twins[0], twins[1], torch.compile(twins[2], backend=torch_backend.backend, dynamic=False)]
    for twin, image in zip(called, (x.double(), x, x), strict=True):
        (twin(image) ** 2).mean().backward()
    found = [torch.cat([p.grad.flatten().double() for p in twin.parameters() if p.grad is not None]) for twin in twins]
    close(found[2], found[1], found[0])


@pytest.mark.parametrize("name", TEXTS)
def test_text_models(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    model = TEXTS[name](transformers).eval().cuda()
    ids = torch.randint(5, 500, (2, 24), device="cuda")
    with torch.no_grad():
        want, eager = copy.deepcopy(model).double()(input_ids=ids)[0], model(input_ids=ids)[0]
        close(torch.compile(model, backend=torch_backend.backend, dynamic=False)(input_ids=ids)[0], eager, want)
