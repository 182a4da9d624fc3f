#!/usr/bin/env python3
"""How true plans are on the GPU of this machine.

Caps the card at several sizes with PyTorch's memory fraction. For each: plans, trains the planned batch 50 steps of the
worst sample, which must neither retry an allocation nor run out of memory, then the next larger micro-batch, which must
do one of both. Prints a Markdown table; `--device virtual:h100` tries the script where there is no GPU.

    python3 scripts/gpu_truth.py --vlmtrain build/release/vlmtrain --preset smolvlm-256m --tokenizer tokenizer.json
"""

import argparse
import json
import os
import random
import struct
import subprocess
import tempfile
import threading
import zlib
from pathlib import Path

STEPS = 50


def write_noise(path, width, height, seed):
    """A PNG of noise: pictures of it are as large as pictures get."""
    pixels = random.Random(seed).randbytes(width * height * 3)
    rows = b"".join(b"\0" + pixels[y * width * 3:(y + 1) * width * 3] for y in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b""))


def write_data(folder, images, words, samples):
    names = []
    for i in range(images):
        names.append(f"noise-{i}.png")
        write_noise(folder / names[-1], 1024, 768, i)
    text = " ".join(["word"] * words)
    records = [{"id": f"worst-{i}", "image": names,
                "conversations": [{"from": "human", "value": "<image>\n" * images + "What is shown?"},
                                  {"from": "gpt", "value": text}]} for i in range(samples)]
    (folder / "train.json").write_text(json.dumps(records))


class GpuMemory:
    """The most device memory that a process held, as NVML says through nvidia-smi; None without it."""

    def __init__(self, process):
        self.process, self.most, self.stop = process, None, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        while not self.stop.wait(0.5):
            try:
                lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
            except (OSError, subprocess.CalledProcessError):
                return
            used = [int(size) for pid, size in (line.split(", ") for line in lines) if int(pid) == self.process.pid]
            self.most = max(used + ([self.most] if self.most else []), default=None)

    def result(self):
        self.stop.set()
        self.thread.join()
        return self.most * 2**20 if self.most else None


def train(arguments, folder, run, overrides, fraction=None):
    """Exit code, plan.json (None if there is none), NVML bytes, the last line of stderr."""
    environment = dict(os.environ)
    if fraction is not None:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = f"per_process_memory_fraction:{fraction:.9f}"
    words = [arguments.vlmtrain, "--config", str(folder / "train.yaml"), "--device", arguments.device, "--quiet",
             f"output.dir={folder / run}"] + overrides
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    memory = GpuMemory(process)
    errors = process.communicate()[1].strip().splitlines()
    plans = list((folder / run).glob("**/plan.json"))
    plan = json.loads(plans[0].read_text()) if plans else None
    return process.returncode, plan, memory.result(), errors[-1] if errors else ""


def percent(measured, planned):
    return f"{100 * (measured / planned - 1):+.2f}"


def gigabytes(size):
    return "-" if size is None else f"{size / 1e9:.3f}"


def examine(arguments, folder, cap):
    code, plan, nvml, error = train(arguments, folder, f"cap-{cap}", [f"memory.limit_gb={cap}"])
    if code != 0:
        return [str(cap), f"exit {code}: {error}"]
    memory, measured = plan["memory"], plan["measured"]
    micro, rest = plan["micro_batch_size"], plan["gradient_accumulation_steps"]
    context = measured["device_used_bytes"] - measured["reserved_peak_bytes"]
    recompute = plan["recompute"]
    # The next larger micro-batch on a card that is capped alike, but not known to the planner, which would refuse it.
    larger = next((size for size in range(micro + 1, micro * rest + 1) if (micro * rest) % size == 0), None)
    verdict = "none"
    if larger is not None:
        reach = plan["card_bytes"] - memory["context_bytes"]
        code, plan2, _, error = train(
            arguments, folder, f"larger-{cap}",
            [f"training.micro_batch_size={larger}",
             f"memory.recompute={recompute['vision_blocks']}+{recompute['language_blocks']}", f"memory.vision_tiles_per_pass={plan['vision_tiles_per_pass']}",
             f"memory.loss_chunk_rows={plan['loss_chunk_rows']}", "memory.mode=aggressive"],
            fraction=reach / arguments.card_bytes)
        retries = plan2["measured"]["allocation_retries"] if plan2 and "measured" in plan2 else None
        outcome = f"exit {code}" if code else f"{retries} retries"
        verdict = f"{larger}: {outcome}"
    return [str(cap), f"{micro} x {rest}", f"{recompute['vision_blocks']}+{recompute['language_blocks']}",
            gigabytes(memory["allocated_peak_bytes"]), percent(measured["allocated_peak_bytes"], memory["allocated_peak_bytes"]),
            gigabytes(memory["reserved_peak_bytes"]), percent(measured["reserved_peak_bytes"], memory["reserved_peak_bytes"]),
            str(measured["allocation_retries"]), gigabytes(context), gigabytes(nvml), verdict]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vlmtrain", required=True)
    parser.add_argument("--preset", default="smolvlm-256m")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json of the preset's model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--caps", default="8,12,16,24,40,48,80", help="GB of 10⁹ bytes")
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--overrides", nargs="*", default=[], help="further key=value, such as lora.rank=16")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([arguments.vlmtrain, "init", "--preset", arguments.preset, "--tokenizer", arguments.tokenizer,
                        "--out", str(folder / "model")], check=True)
        write_data(folder, arguments.images, arguments.words, arguments.global_batch)
        keys = {"model.path": folder / "model", "data.train": folder / "train.json",
                "training.global_batch_size": arguments.global_batch, "training.max_steps": STEPS,
                "training.precision": "bf16", "training.learning_rate": 1e-5, "output.save_steps": 0, "output.keep": 1}
        sections = {}
        for key, value in keys.items():
            section, word = key.split(".")
            sections.setdefault(section, []).append(f"  {word}: {value}")
        for override in arguments.overrides:
            section, word = override.split("=")[0].split(".")
            sections.setdefault(section, []).append(f"  {word}: {override.split('=', 1)[1]}")
        (folder / "train.yaml").write_text("".join(f"{name}:\n" + "\n".join(lines) + "\n" for name, lines in sections.items()))

        # The card's own size, from a plan without a cap.
        code, plan, _, error = train(arguments, folder, "whole", ["training.max_steps=1"])
        if code != 0:
            raise SystemExit(f"the uncapped run ended with {code}: {error}")
        arguments.card_bytes = plan["card_bytes"]
        print(f"{plan['card']}; {arguments.preset}, {arguments.images} images, {plan['tokens_per_sample']} tokens, "
              f"{STEPS} steps of {arguments.global_batch}\n")
        print("| cap GB | plan | recomputed vision+language | planned allocated GB | measured % | planned reserved GB | "
              "measured % | retries | context GB | NVML GB | next larger micro-batch |")
        print("|" + "---|" * 11)
        for cap in arguments.caps.split(","):
            if float(cap) * 1e9 > arguments.card_bytes:
                continue
            print("| " + " | ".join(examine(arguments, folder, cap)) + " |", flush=True)


if __name__ == "__main__":
    main()
