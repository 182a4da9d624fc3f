"""Values of data sheets, equal to those of src/memory/gpu_table.cpp."""

from dataclasses import dataclass

TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True)
class Gpu:
    bf16: float  # operations a second
    fp32: float
    bandwidth: float  # bytes a second
    has_hopper_products: bool = False  # unused by FlashAttention-2's kernels

    @property
    def kind(self):
        """Returns the kind of a GPU. half rate: tensor cores at most twice as fast as the other units, as in cost_recorder.cpp."""
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
