"""Published peaks of real cards, one module a source; bench/published_peaks.py replays them on the virtual GPU."""

SOURCES = [
    "liger_kernel",
    "cut_cross_entropy",
    "efficient_cross_entropy",
    "llm_training_speed",
    "transformers_sdpa",
    "vit_finetuning",
]
