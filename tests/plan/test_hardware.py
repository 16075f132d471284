import pytest

from megaxf.plan.hardware import peak_flops


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989.4),
        ("NVIDIA GH200 480GB", 989.4),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("AMD Instinct MI300X", 1307.4),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("NVIDIA RTX A6000", 154.85),
        ("NVIDIA GeForce RTX 4090", 165.2),
    ],
)
def test_dense_bf16_peaks(name, tflops):
    assert peak_flops(name) == tflops * 1e12


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H300",
        "cpu",
        "",
        "Tesla V100-SXM2-32GB",
    ],
)
def test_unknown_is_none_and_never_another_device(name):
    assert peak_flops(name, "bf16") is None


def test_other_precisions():
    assert peak_flops("NVIDIA A100-SXM4-80GB", "tf32") == 156e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "fp32") == 19.5e12
    assert peak_flops("Tesla V100-SXM2-32GB", "fp32") == 15.7e12
    with pytest.raises(ValueError, match="'fp8' is not known; use one of bf16, tf32, fp32"):
        peak_flops("NVIDIA H200", "fp8")
