"""Compares LoRA of Qwen2.5-VL-3B with the installed transformers and PEFT: the same GPU, checkpoint, samples and order."""

import importlib.util
import json
import math
import random
import sys
from dataclasses import dataclass

from harness import inputs
from harness import program
from harness import results
from harness.bench import RunFailed
from harness.check import Check

PEER = inputs.ROOT / "bench" / "peer_lora.py"
PACKAGES = ("torch", "transformers", "peft", "PIL")
RANK, WARM_UP = 16, 3
LOSS_TOLERANCE = 2e-2
# In fp32 on the CPU, both compute the same sums in different orders.
CPU_LOSS_TOLERANCE = 1e-4
FIX = "bench/peer_lora.py, or the processor of the family"
# Published tokens per second on one H100; models and texts differ, so they are no bound.
PUBLISHED = [{"who": "Unsloth, measured by Surogate, August 2026", "setting": "Qwen3-8B, text, LoRA 16, packed 2,048, 2 x 4",
              "bf16": 8900, "nf4": 8200}]


@dataclass(frozen=True)
class Work:
    """The training job of both sides."""

    preset: str
    global_batch: int
    micro_batches: str  # micro-batch sizes of the peer; the fastest counts
    sizes: tuple  # sizes of images, one image per sample, in turn
    words: tuple  # minimum, maximum and median tokens of an answer
    steps: int
    workers: int  # loader processes of the peer


GPU_WORK = Work("qwen2.5-vl-3b", 8, "1,4", ((1024, 768), (768, 768), (896, 640), (640, 480)), (20, 600, 110), 8, 4)
CPU_WORK = Work("qwen2.5-vl-tiny", 2, "1,2", ((160, 120), (120, 120)), (4, 40, 12), 5, 0)


def write_data(folder, work):
    """Writes records with one image and an answer of log-normal length."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, (width, height) in enumerate(work.sizes):
        inputs.write_noise(folder / f"{i}.png", width, height, i)
    source = random.Random(11)
    least, most, median = work.words
    records = []
    for i in range(work.steps * work.global_batch):
        words = int(min(most, max(least, source.lognormvariate(math.log(median), 0.9))))
        records.append({"id": f"sample-{i:04d}", "image": [f"{i % len(work.sizes)}.png"],
                        "conversations": [{"from": "human", "value": "<image>\n" + inputs.text(i, 8) + "?"},
                                          {"from": "gpt", "value": inputs.text(1000 + i, words)}]})
    (folder / "train.json").write_text(json.dumps(records))


def settings(bench, work, overrides):
    data = bench.work / f"peer-data-{work.preset}"
    if not (data / "train.json").exists():
        write_data(data, work)
    is_exact = bench.is_cpu
    return {"model.path": bench.checkpoint(work.preset, dtype="float32" if is_exact else "bfloat16"), "data.train": data / "train.json",
            "data.num_workers": 4, "training.global_batch_size": work.global_batch, "training.max_steps": work.steps,
            "training.learning_rate": "1.0e-4", "training.lr_scheduler": "constant", "training.warmup_ratio": 0, "training.weight_decay": 0,
            "training.precision": "fp32" if is_exact else "bf16", "lora.rank": RANK, "output.log_samples": True, "output.save_steps": 0,
            "output.save_total_limit": 1, "output.sample_predictions": 0, "output.report": False, "output.tensorboard": False, **overrides}


def tokens_per_second(lines):
    timed = lines[WARM_UP:]
    return sum(line["tokens"] for line in timed) / sum(line["step_seconds"] for line in timed)


def run_vlmtrain(bench, work, quantization):
    """Returns vlmtrain's run and its settings; runs once for all peers."""
    done = bench.__dict__.setdefault("peer_runs", {})
    if quantization not in done:
        job = settings(bench, work, {} if quantization == "none" else {"model.quantization": quantization})
        folder = bench.work / "peers" / quantization
        inputs.clear(folder)
        run = bench.train(folder, bench.device, job)
        inputs.clear(run.folder / "checkpoints")
        done[quantization] = run, job
    return done[quantization]


def missing_packages(bench, quantization, liger):
    """Returns the packages that this Python and gpu-queue/python lack."""
    required = PACKAGES + (("bitsandbytes",) if quantization != "none" else ()) + (("liger_kernel",) if liger else ())
    carried = bench.find_carried("python")
    return [name for name in required if importlib.util.find_spec(name) is None and not (carried and (carried / name).exists())]


def run_peer(bench, work, run, job, quantization, liger):
    order = run.folder / "order.json"
    order.write_text(json.dumps([json.loads(line)["ids"] for line in (run.folder / "samples.jsonl").read_text().splitlines()]))
    data = job["data.train"]
    command = [sys.executable, PEER, "--checkpoint", job["model.path"], "--data", data, "--image-root", data.parent, "--order", order,
               "--from-step", WARM_UP, "--micro-batches", work.micro_batches, "--rank", RANK, "--quantization", quantization,
               "--workers", work.workers, "--learning-rate", job["training.learning_rate"], "--device", bench.device,
               "--precision", job["training.precision"]]
    carried = bench.find_carried("python")
    command += ["--liger"] if liger else []
    command += ["--threads", 1] if bench.is_cpu else []
    ended = program.run(command, bench.clock, {"HF_HUB_OFFLINE": "1", **({"PYTHONPATH": str(carried)} if carried else {})})
    if ended.code != 0:
        raise RunFailed("bench/peer_lora.py", ended)
    return json.loads(ended.out.strip().splitlines()[-1])


def differences(lines, plan, peer, tolerance):
    """Returns the signs that the two sides did not do the same work."""
    problems = []
    apart = abs(peer["first_loss"] - lines[0]["loss"]) / lines[0]["loss"]
    if not apart <= tolerance:
        problems.append(f"first losses {lines[0]['loss']:.5f} and {peer['first_loss']:.5f}")
    mine = [line["tokens"] for line in lines[:1] + lines[WARM_UP:]]
    theirs = [peer["first_tokens"], *(line["tokens"] for line in peer["lines"])]
    if mine != theirs:
        problems.append(f"tokens of steps {mine} and {theirs}")
    if [line["label_tokens"] for line in lines[WARM_UP:]] != [line["label_tokens"] for line in peer["lines"]]:
        problems.append("label tokens differ")
    if plan["trained_parameters"] != peer["trained_parameters"]:
        problems.append(f"{plan['trained_parameters']} and {peer['trained_parameters']} parameters trained")
    return problems


def gigabytes(size):
    return f"{size / 1e9:.1f} GB" if size else "-"


def against(quantization="none", liger=False):
    who = "transformers, PEFT and Liger" if liger else "transformers and PEFT" + (" on bitsandbytes' NF4" if quantization != "none" else "")

    def do(bench):
        work = CPU_WORK if bench.is_cpu or bench.is_virtual else GPU_WORK
        if liger and (bench.is_cpu or bench.is_virtual):
            return results.skipped("Liger's kernels need a GPU")
        run, job = run_vlmtrain(bench, work, quantization)
        lines, plan = run.lines(), run.plan()
        ours = tokens_per_second(lines)
        if bench.is_virtual:
            return results.dry("no times on a virtual GPU")
        figures = {"vlmtrain_tokens_per_second": ours, "vlmtrain_reserved_peak_bytes": max(line["reserved_peak_bytes"] for line in lines),
                   "vlmtrain_micro_batch": plan["micro_batch_size"], "published": PUBLISHED}
        if missing := missing_packages(bench, quantization, liger):
            return results.skipped(f"vlmtrain: {ours:.0f} tokens/s; neither this Python nor gpu-queue/python has {', '.join(missing)}")
        peer = run_peer(bench, work, run, job, quantization, liger)
        theirs, apart = peer["tokens_per_second"], abs(peer["first_loss"] - lines[0]["loss"]) / lines[0]["loss"]
        figures.update(peer=peer, peer_tokens_per_second=theirs, ratio=ours / theirs, first_loss_apart=apart)
        text = (f"{ours:.0f} tokens/s against {theirs:.0f} of {who}: {ours / theirs:.2f}; at most "
                f"{gigabytes(figures['vlmtrain_reserved_peak_bytes'])} and {gigabytes(peer.get('reserved_peak_bytes'))}; first losses "
                f"{apart:.1e} apart; micro-batches of {plan['micro_batch_size']} and {peer['micro_batch']}, SDPA's {peer['attention']} attention")
        if "bf16_adapters_tokens_per_second" in peer:
            text += f"; {peer['bf16_adapters_tokens_per_second']:.0f} with adapters in bf16"
        # bitsandbytes computes NF4's outputs from its own absolute maxima.
        tolerance = CPU_LOSS_TOLERANCE if bench.is_cpu and quantization == "none" else LOSS_TOLERANCE
        if problems := differences(lines, plan, peer, tolerance):
            return results.failed(f"{text}; the two did not do the same work: {'; '.join(problems)}", FIX, **figures)
        if bench.is_cpu:
            return results.dry(f"first losses {apart:.1e} apart; the same tokens, labels and {plan['trained_parameters']} trained "
                               "parameters; speed is compared on a GPU only")
        if ours < theirs:
            return results.failed(text, "what the step waits for: data_wait_seconds, launches, src/engine/step/step.cpp", **figures)
        return results.passed(text, **figures)

    return do


def checks(bench):
    preset = (CPU_WORK if bench.is_cpu or bench.is_virtual else GPU_WORK).preset
    return [Check(f"{preset}, LoRA 16: against transformers and PEFT", 180, against()),
            Check(f"{preset}, LoRA 16 on NF4: against transformers, PEFT and bitsandbytes", 175, against("nf4")),
            Check(f"{preset}, LoRA 16: against transformers, PEFT and Liger", 150, against(liger=True))]
