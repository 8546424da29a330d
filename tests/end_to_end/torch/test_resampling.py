"""Images of bytes resampled as eager does, value for value: in every mode, smaller and larger, in both layouts, with antialiasing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tilefuse
from tilefuse.driver.torch_backend import backend, compiled_parts

pytestmark = pytest.mark.usefixtures("fresh")

MODES = [("nearest", False, None), ("nearest-exact", False, None), *(("bilinear", antialias, corners) for antialias in (False, True)
                                                                     for corners in (False, True)), ("bicubic", False, False),
         ("bicubic", False, True), ("bicubic", True, False)]


@pytest.mark.parametrize(("mode", "antialias", "corners"), MODES)
def test_bytes_are_eagers(mode: str, antialias: bool, corners: bool | None) -> None:
    x = torch.randint(0, 256, (2, 3, 20, 26), dtype=torch.uint8)

    def resampled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        how = {"mode": mode, "antialias": antialias, "align_corners": corners}
        return tuple(F.interpolate(x, size=size, **how) for size in ((7, 9), (23, 31), (20, 13)))

    compiled = torch.compile(resampled, backend=backend)
    for image in (x, x.to(memory_format=torch.channels_last)):
        for found, wanted in zip(compiled(image), resampled(image), strict=True):
            assert torch.equal(found, wanted)


def test_a_model_as_a_whole_gives_eagers_bytes() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.interpolate(x, scale_factor=1.5, mode="bilinear").float() / 255

    x = torch.randint(0, 256, (1, 3, 20, 26), dtype=torch.uint8)
    found = tilefuse.compile(Model(), (x,), device="host")(x)
    torch.testing.assert_close(found, Model()(x))


def test_floats_are_still_compiled() -> None:
    x = torch.rand(1, 3, 8, 8)
    compiled = torch.compile(lambda x: F.interpolate(x, size=(5, 7), mode="bilinear") * 2, backend=backend)
    torch.testing.assert_close(compiled(x), F.interpolate(x, size=(5, 7), mode="bilinear") * 2)
    assert not compiled_parts()[-1].imported.fallbacks
