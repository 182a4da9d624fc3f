"""Compares tokens per second with transformers: the same GPU, checkpoint, samples and order."""

import importlib.util
import json
import statistics
import sys

from harness import inputs
from harness import program
from harness import results
from harness.bench import RunFailed
from harness.check import Check

STEPS, WARM_UP, GLOBAL_BATCH = 20, 5, 8
PEER = inputs.ROOT / "bench" / "peer_transformers.py"


def settings(bench, preset):
    data = bench.work / "varied-data"
    if not (data / "train.json").exists():
        inputs.write_varied_data(data, STEPS * GLOBAL_BATCH)
    precision = "fp32" if bench.is_cpu else "bf16"
    return {"model.path": bench.checkpoint(preset), "data.train": data / "train.json", "data.num_workers": 4,
            "training.global_batch_size": GLOBAL_BATCH, "training.max_steps": STEPS, "training.learning_rate": "1.0e-4",
            "training.lr_scheduler": "constant", "training.warmup_ratio": 0, "training.weight_decay": 0.1,
            "training.precision": precision, "output.log_samples": True, "output.save_steps": 0, "output.save_total_limit": 1,
            "output.sample_predictions": 0, "output.report": False, "output.tensorboard": False}


def tokens_per_second(lines):
    timed = lines[WARM_UP:]
    return sum(line["tokens"] for line in timed) / sum(line["step_seconds"] for line in timed)


def missing_packages():
    return [name for name in ("torch", "transformers", "PIL") if importlib.util.find_spec(name) is None]


def against_transformers(preset):
    def do(bench):
        folder = bench.work / "speed" / preset
        inputs.clear(folder)
        job = settings(bench, preset)
        run = bench.train(folder, bench.device, job)
        lines = run.lines()
        inputs.clear(run.folder / "checkpoints")
        ours = tokens_per_second(lines)
        figures = {"vlmtrain_tokens_per_second": ours, "vlmtrain_reserved_peak_bytes": max(line["reserved_peak_bytes"] for line in lines)}
        if bench.is_virtual:
            return results.dry("no times on a virtual GPU", **figures)
        if missing := missing_packages():
            return results.skipped(f"vlmtrain: {ours:.0f} tokens/s; this Python has no {', '.join(missing)}")
        peer = transformers_lines(bench, folder, run, job)
        theirs = tokens_per_second(peer)
        apart = abs(peer[0]["loss"] - lines[0]["loss"]) / peer[0]["loss"]
        figures.update(transformers_tokens_per_second=theirs, ratio=ours / theirs, first_loss_apart=apart,
                       transformers_reserved_peak_bytes=max(line.get("reserved_peak_bytes", 0) for line in peer))
        text = (f"{ours:.0f} tokens/s against {theirs:.0f} of transformers: {ours / theirs:.2f}; at most "
                f"{figures['vlmtrain_reserved_peak_bytes'] / 1e9:.2f} and {figures['transformers_reserved_peak_bytes'] / 1e9:.2f} GB; "
                f"first losses {apart:.1e} apart")
        if [line["tokens"] for line in lines] != [line["tokens"] for line in peer] or apart > 2e-2:
            return results.failed(text + "; the two did not do the same work", "bench/peer_transformers.py or the processor of the family", **figures)
        if ours < theirs:
            return results.failed(text, "what the step waits for: data_wait_seconds, launches, src/engine/step/step.cpp", **figures)
        return results.passed(text, **figures)

    return do


def transformers_lines(bench, folder, run, job):
    order = folder / "order.json"
    order.write_text(json.dumps([json.loads(line)["ids"] for line in (run.folder / "samples.jsonl").read_text().splitlines()]))
    metrics = folder / "peer.jsonl"
    command = [sys.executable, PEER, "--checkpoint", job["model.path"], "--data", job["data.train"], "--image-root", job["data.train"].parent,
               "--order", order, "--workers", 4, "--learning-rate", job["training.learning_rate"], "--weight-decay", job["training.weight_decay"],
               "--device", bench.device, "--precision", job["training.precision"], "--metrics", metrics]
    ended = program.run(command, bench.clock, {"HF_HUB_OFFLINE": "1"})
    if ended.code != 0:
        raise RunFailed("bench/peer_transformers.py", ended)
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def generation(bench):
    if bench.is_virtual:
        return results.dry("no times on a virtual GPU")
    data = bench.small_data()
    preset = "smolvlm-tiny" if bench.is_cpu else "smolvlm-256m"
    rates = []
    for _ in range(2):
        words = ["generate", "--checkpoint", bench.checkpoint(preset), "--prompt", "what is shown?", "--image", data / "0.png",
                 "--max-new-tokens", 128, "--device", bench.device, "--precision", "fp32" if bench.is_cpu else "bf16", "--json"]
        ended = bench.run(words)
        if ended.code != 0:
            raise RunFailed("generate", ended)
        rates.append(json.loads(ended.out.strip().splitlines()[-1])["tokens_per_second"])
    return results.measured(f"{statistics.median(rates):.0f} tokens/s, one answer of at most 128 tokens, {preset}", tokens_per_second=rates)


def checks(bench):
    preset = "smolvlm-tiny" if bench.is_cpu else "smolvlm-256m"
    return [Check(f"{preset}: training against transformers", 60, against_transformers(preset)), Check("generation", 20, generation)]

