"""Data sheets, as src/memory/gpu_table.cpp has them."""

from dataclasses import dataclass

TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True)
class Gpu:
    bf16: float  # operations a second
    fp32: float
    bandwidth: float  # bytes a second
    has_hopper_products: bool = False  # of which FlashAttention-2's kernels make no use

    @property
    def kind(self):
        """half rate: tensor cores that do at most twice what the other units do, as cost_recorder.cpp tells them."""
        return "half rate" if self.bf16 <= 2 * self.fp32 else "full rate"


def gpu(bf16, fp32, bandwidth, **others):
    return Gpu(bf16 * TERA, fp32 * TERA, bandwidth * GIGA, **others)


GPUS = {
    "a100-40": gpu(312, 19.5, 1555),
    "a100-80": gpu(312, 19.5, 2039),
    "h100": gpu(989.4, 66.9, 3352, has_hopper_products=True),
    "l40s": gpu(362, 91.6, 864),
    "rtx-pro-6000": gpu(503.8, 125, 1792),
    "rtx4090": gpu(165.2, 82.6, 1008),
    "rtx5090": gpu(209.5, 104.8, 1792),
    "rtx5060ti-16": gpu(47.4, 23.7, 448),
}
