"""Training: vlmtrain against transformers and PEFT, on the same samples in the same order."""

import json
import sys

import results
from bench import ROOT, read_lines

# Rounding errors grow from step to step. With ten times these rates one step's burst of the gradient made two right runs part.
LEARNING_RATES = {"full": 1e-6, "lora": 5e-5}
GLOBAL_BATCH, WEIGHT_DECAY, RANK = 2, 0.1, 8
# A wrong gradient shows in the first steps. Differences are in units of the mean loss.
FIRST_STEPS, MOST_APART_AT_FIRST = 5, 1e-4
MOST_APART = 1e-3


def make_adapter(bench, model):
    """An untrained adapter of PEFT on all Linears, so that both sides start with the same values."""
    folder = bench.work / f"{model}-adapter"
    if not folder.exists():
        import peft
        import torch
        from transformers import AutoModelForImageTextToText

        torch.manual_seed(0)
        base = AutoModelForImageTextToText.from_pretrained(bench.checkpoint(model), dtype=torch.float32)
        config = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear")
        peft.get_peft_model(base, config).save_pretrained(folder)
    return folder


def train_vlmtrain(bench, model, kind, steps, precision):
    name = f"{model}-{kind}-{precision}"
    settings = {
        "training.max_steps": steps, "training.learning_rate": LEARNING_RATES[kind], "training.weight_decay": WEIGHT_DECAY,
        "training.global_batch_size": GLOBAL_BATCH, "training.max_grad_norm": 1.0, "training.precision": precision,
        "output.log_samples": True,
    }  # fmt: skip
    if kind == "lora":
        settings["model.adapter"] = make_adapter(bench, model)
    return bench.train(model, name, settings)


def train_peer(bench, model, kind, run, precision):
    """Returns the lines of its metrics."""
    order, metrics = run / "order.json", run / "peer.jsonl"
    order.write_text(json.dumps([line["ids"] for line in read_lines(run / "samples.jsonl")]))
    command = [sys.executable, ROOT / "bench" / "peer_transformers.py", "--checkpoint", bench.checkpoint(model),
               "--data", bench.work / "train.json", "--image-root", bench.image_root, "--order", order, "--metrics", metrics,
               "--learning-rate", LEARNING_RATES[kind], "--weight-decay", WEIGHT_DECAY, "--max-grad-norm", 1.0, "--warmup", 0,
               "--threads", bench.threads, "--device", bench.device, "--precision", precision]
    if kind == "lora":
        command += ["--adapter", make_adapter(bench, model)]
    bench.run(command)
    return read_lines(metrics)


def check(bench, model, kind, steps, precision="fp32"):
    run = train_vlmtrain(bench, model, kind, steps, precision)
    ours = read_lines(run / "metrics.jsonl")
    if bench.is_virtual:
        return results.measured(f"{len(ours)} steps on a virtual GPU, which computes no values")
    return compare(ours, train_peer(bench, model, kind, run, precision))


def compare(ours, peer):
    """Compares the metrics of both sides, step by step."""
    if [line["tokens"] for line in ours] != [line["tokens"] for line in peer]:
        return results.judged(False, "the two sides did not train on the same tokens")
    losses, expected = [line["loss"] for line in ours], [line["loss"] for line in peer]
    mean = sum(expected) / len(expected)
    apart = [abs(a - b) / mean for a, b in zip(losses, expected, strict=True)]
    at_first, worst = max(apart[:FIRST_STEPS]), max(apart)
    speeds = [sum(line["tokens"] for line in lines[1:]) / sum(line["step_seconds"] for line in lines[1:]) for lines in (ours, peer)]
    text = (f"{len(losses)} steps, loss {losses[0]:.4f} to {losses[-1]:.4f}; difference in units of the mean loss at most {at_first:.1e} "
            f"in the first {FIRST_STEPS} steps (bound {MOST_APART_AT_FIRST:.0e}), {worst:.1e} in all (bound {MOST_APART:.0e})")
    return results.judged(at_first <= MOST_APART_AT_FIRST and worst <= MOST_APART, text, vlmtrain=losses, transformers=expected,
                          grad_norms=[[line["grad_norm"] for line in lines] for lines in (ours, peer)], largest_difference=worst,
                          largest_difference_at_first=at_first, tokens_per_second=speeds)
