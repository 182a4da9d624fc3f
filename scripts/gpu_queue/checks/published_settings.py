"""Published settings for text models on one H100, run with Qwen2.5-VL's text model of the same sizes and lengths."""

import json
from dataclasses import dataclass

from harness import inputs
from harness import results
from harness.check import Check

STEPS, WARM_UP = 6, 2
# Tokens of Qwen's template with the question, and of each "word" that follows, with the tokenizers of inputs.write_tokenizer.
TEMPLATE_TOKENS, WORD_TOKENS = 26, 2
DRY_PRESET, DRY_SEQUENCE = "qwen2.5-vl-tiny", 1024


@dataclass(frozen=True)
class Setting:
    """A published setting, the job that is run, and their differences."""

    title: str
    preset: str
    sequence: int
    global_batch: int
    overrides: dict
    published_tokens_per_second: int  # on one H100
    source: str
    differs: str
    seconds: float


SETTINGS = [
    Setting("NeMo Automodel: 7B LoRA 16, 4,096 tokens, micro-batch 2", "qwen2.5-vl-7b", 4096, 8,
            {"lora.rank": 16, "training.micro_batch_size": 2}, 14110, "NeMo Automodel's performance summary, Qwen2.5-7B, mock data",
            "8 samples per step; text model of Qwen2.5-VL-7B, whose sizes are Qwen2.5-7B's, with an idle tower without adapters; "
            "random weights", 90),
    Setting("LLMQ: 3B in full, 1,024 tokens", "qwen2.5-vl-3b", 1024, 64, {"training.optimizer_states": "bf16"}, 30900,
            "LLMQ, May 2026, Qwen2.5-3B, bf16 weights and moments, 524,288 tokens per step",
            "65,536 tokens per step, so an update is shared by an eighth of the tokens; fp32 master weights and gradients, bf16 moments; "
            "text model of Qwen2.5-VL-3B, whose sizes are Qwen2.5-3B's, with an idle frozen tower; random weights", 75),
]


def write_records(path, sequence, samples):
    """Writes text-only records of exactly `sequence` tokens each."""
    words = (sequence - TEMPLATE_TOKENS) // WORD_TOKENS
    path.parent.mkdir(parents=True, exist_ok=True)
    turns = [{"from": "human", "value": "What is shown?"}, {"from": "gpt", "value": " ".join(["word"] * words)}]
    path.write_text(json.dumps([{"id": f"text-{i}", "conversations": turns} for i in range(samples)]))


def make_settings(bench, setting, preset, sequence):
    data = bench.work / f"texts-{sequence}-{setting.global_batch}" / "train.json"
    if not data.exists():
        write_records(data, sequence, setting.global_batch)
    checkpoint = bench.checkpoint(preset, dtype="float32" if bench.is_virtual else "bfloat16")
    return {"model.path": checkpoint, "model.freeze_vision_tower": True, "model.freeze_projector": True, "data.train": data,
            "training.precision": "bf16", "training.global_batch_size": setting.global_batch, "training.max_steps": STEPS,
            "training.learning_rate": "1.0e-5", "output.save_steps": 0, "output.save_total_limit": 1, "output.sample_predictions": 0, "output.report": False,
            "output.tensorboard": False, **setting.overrides}


def run_setting(setting):
    def do(bench):
        if bench.is_cpu:
            return results.skipped("a GPU's speed; --dry uses a virtual one")
        preset, sequence = (DRY_PRESET, DRY_SEQUENCE) if bench.is_virtual else (setting.preset, setting.sequence)
        folder = bench.work / "published" / setting.preset
        inputs.clear(folder)
        run = bench.train(folder, bench.device, make_settings(bench, setting, preset, sequence))
        lines, plan = run.lines(), run.plan()
        expected = sequence * setting.global_batch
        if any(line["tokens"] != expected for line in lines):
            return results.failed(f"{lines[0]['tokens']} tokens per step instead of {expected}",
                                  "TEMPLATE_TOKENS in scripts/gpu_queue/checks/published_settings.py")
        recompute = plan["recompute"]
        choices = f"micro-batches of {plan['micro_batch_size']}, {recompute['language_blocks']} blocks recomputed"
        if bench.is_virtual:
            return results.dry(f"{preset}, {len(lines)} steps of {setting.global_batch} texts of {sequence} tokens, {choices}; "
                               "no times on a virtual GPU")
        timed = lines[WARM_UP:]
        speed = sum(line["tokens"] for line in timed) / sum(line["step_seconds"] for line in timed)
        published = setting.published_tokens_per_second
        figures = {"tokens_per_second": speed, "published_tokens_per_second": published, "published": setting.source,
                   "differs": setting.differs, "ratio": speed / published, "micro_batch": plan["micro_batch_size"], "recompute": recompute,
                   "reserved_peak_bytes": max(line["reserved_peak_bytes"] for line in lines),
                   "predicted_tokens_per_second": plan["tokens_per_second"], "trained_parameters": plan["trained_parameters"]}
        text = (f"{speed:.0f} tokens/s on {plan['gpu']}, {figures['ratio']:.2f} of {published}, published for one H100 ({setting.source}); "
                f"{choices}, {figures['reserved_peak_bytes'] / 1e9:.1f} GB; differences: {setting.differs}")
        return results.measured(text, **figures)

    return do


def checks(_):
    return [Check(setting.title, setting.seconds, run_setting(setting)) for setting in SETTINGS]
