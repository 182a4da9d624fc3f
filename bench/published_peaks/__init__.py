"""Published memory peaks of real GPUs, one module per source; bench/published_peaks.py replays them on the virtual GPU."""

SOURCES = [
    "liger_kernel",
    "cut_cross_entropy",
    "efficient_cross_entropy",
    "llm_training_speed",
    "transformers_sdpa",
    "vit_finetuning",
]

# The virtual GPU's libraries that a process preloads (docs/explanation/virtual-gpu.md).
STAND_INS = ["libcuda.so.1", "libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libnvidia-ml.so.1"]
