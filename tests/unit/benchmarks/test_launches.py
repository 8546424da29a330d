"""Kernel counts: which launches are products, what is left out, and how calls are averaged."""
from __future__ import annotations

import pytest

from benchmarks.launches import advances, facts_of, gather, kind_of, launches_of


@pytest.mark.parametrize(("name", "kind"), [
    ("sm90_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3", "product"),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>", "product"),
    ("nvjet_hsh_64x8_64x16_4x1_v_bz_TNT", "product"),
    ("void gemv2T_kernel_val<int, int, float, float>", "product"),
    ("void splitKreduce_kernel<32, 16, int, float>", "product"),
    ("triton_tem_fused_addmm_3", "product"),
    ("triton_poi_fused_addmm_relu_0", "memory"),
    ("triton_per_fused__softmax_convolution_bmm_4", "memory"),
    ("pytorch_flash::flash_fwd_splitkv_kernel", "attention"),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "attention"),
    ("cudnn::ops::nchwToNhwcKernel", "convolution"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::tanh>", "memory"),
    ("Memcpy DtoD (Device -> Device)", "copy"),
    ("Memset (Device)", "copy"),
    ("k_matmul_tanh_0123abcd", "memory"),
])
def test_kind_of_a_kernel(name: str, kind: str) -> None:
    """Loop kernels that only carry a product's name are memory-bound; templates and library kernels are products."""
    assert kind_of(name) == kind


def test_our_kernels_have_the_class_that_the_explanation_tells() -> None:
    """The name does not decide where the explanation is at hand."""
    assert kind_of("k_mul_sum_1", {"k_mul_sum_1": "product"}) == "product"
    assert kind_of("k_gemm_1", {"k_gemm_1": "reduction"}) == "memory"


def test_events_of_several_calls_become_launches_of_one() -> None:
    """Counts and times are a call's; transfers from and to the host are not counted, copies on the device apart."""
    events = [("a", 4.0), ("a", 2.0), ("gemm", 10.0), ("gemm", 8.0), ("Memcpy HtoD (Pageable -> Device)", 50.0),
              ("Memcpy DtoD (Device -> Device)", 1.0), ("Memcpy DtoD (Device -> Device)", 1.0)]
    found = gather(events, rounds=2)
    assert [(x.name, x.count, x.us) for x in found] == [("gemm", 1.0, 9.0), ("a", 1.0, 3.0), ("Memcpy DtoD (Device -> Device)", 1.0, 1.0)]
    facts = facts_of(found)
    assert facts["launched_kernels"] == 2
    assert facts["launched_copies"] == 1
    assert facts["kernel_us"] == pytest.approx(12.0)
    assert facts["memory_share"] == pytest.approx(0.25)


def test_a_kernel_that_begins_early_counts_from_the_end_of_the_one_ahead() -> None:
    """Its wait is not its own time; the times of all add up to what the device took, gaps and transfers from the host left out."""
    events = [("c", 12.0, 15.0), ("a", 0.0, 10.0), ("b", 2.0, 11.0), ("short", 3.0, 9.0), ("Memcpy HtoD (Pageable -> Device)", 0.0, 50.0)]
    assert advances(events) == [("short", 6.0), ("a", 1.0), ("b", 1.0), ("c", 3.0)]
    assert advances([("a", 0.0, 10.0), ("b", 2.0, 11.0), ("c", 12.0, 15.0)]) == [("a", 10.0), ("b", 1.0), ("c", 3.0)]
    assert advances([]) == []


def test_a_host_has_no_kernels_to_count() -> None:
    """No figure is better than a wrong one."""
    torch = pytest.importorskip("torch")
    assert launches_of(lambda: None, torch.device("cpu")) is None
    assert facts_of(None) == {}
