#!/usr/bin/env python3
"""Writes run_cf49f4c/: three runs that vlmtrain of commit cf49f4c began, each stopped half way, and the losses that followed.

    python3 tests/e2e/data/make_run_cf49f4c.py VLMTRAIN_AT_CF49F4C

`old_runs_test.cpp` resumes, reports, evaluates and merges them with today's build. The model is a smolvlm-tiny of width 16:
all three runs with their optimizer states fit in one megabyte. Every program runs with the environment in `reproducible.env`: one
thread and no instructions that only some processors have, so that losses are the same bits everywhere.
"""

import json
import math
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "scripts" / "gpu_queue" / "harness"))

import inputs  # noqa: E402

SEED = 43
STEPS = 24
STOPPED_AFTER = 10  # lines of metrics.jsonl; a run ends with the step that it is in
ENVIRONMENT = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41", "OMP_NUM_THREADS": "1",
               "OMP_WAIT_POLICY": "passive"}
TRAINING = {
    "model.path": "../model", "data.train": "../data/train.json",
    "data.image_root": "../data", "data.chat_template_date": "2026-01-01",
    "training.global_batch_size": 4, "training.micro_batch_size": 2, "training.max_steps": STEPS, "training.learning_rate": 5e-3,
    "training.weight_decay": 0.1, "training.warmup_ratio": 0.25, "training.seed": SEED, "training.precision": "bf16",
    "memory.recompute": "none", "memory.limit_gb": 4, "memory.twin": "true",
    "output.dir": "run", "output.save_steps": 0, "output.keep": 1, "output.log_samples": "true", "output.report": "false",
}
RUNS = {
    "full": {},  # weights in bf16, master weights and moments in fp32
    "lora_nf4": {"lora.rank": 4, "lora.alpha": 8, "lora.dropout": 0.1, "model.quantization": "nf4"},
    "two_ranks": {"distributed.sharding": "optimizer", "training.optimizer_states": "bf16"},
}
LAUNCH = {"two_ranks": ["--launch", "2"]}
TEXT = {"hidden_size": 16, "intermediate_size": 32, "head_dim": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
VISION = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 1, "num_hidden_layers": 1}


def bfloat16(source, count, deviation):
    """Returns `count` normally distributed numbers in bfloat16, rounded toward zero."""
    return b"".join(struct.pack("<f", source.gauss(0, deviation))[2:] for _ in range(count))


def write_model(vlmtrain, model):
    """Writes a smolvlm-tiny with narrower layers: same tensor names and tokenizer, new weights."""
    subprocess.run([vlmtrain, "init", "--preset", "smolvlm-tiny", "--out", model], check=True, capture_output=True)
    config = json.loads((model / "config.json").read_text())
    config["dtype"] = "bfloat16"
    wide_text, wide_vision = dict(config["text_config"]), dict(config["vision_config"])
    config["text_config"].update(TEXT)
    config["vision_config"].update(VISION)
    (model / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")

    data = (model / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header, source, offset, tensors = {}, random.Random(SEED), 0, []
    kv_rows = wide_text["num_key_value_heads"] * wide_text["head_dim"]
    patches = wide_text["hidden_size"] * config["scale_factor"] ** 2
    for name, entry in json.loads(data[8:8 + length]).items():
        vision = ".vision_model." in name
        wide, narrow = (wide_vision, VISION) if vision else (wide_text, TEXT)
        layer = re.search(r"layers\.(\d+)\.", name)
        if name == "__metadata__" or layer and int(layer[1]) >= narrow["num_hidden_layers"]:
            continue
        sizes = {wide["hidden_size"]: narrow["hidden_size"], wide["intermediate_size"]: narrow["intermediate_size"]}
        if not vision:
            sizes |= {kv_rows: TEXT["num_key_value_heads"] * TEXT["head_dim"],
                      patches: VISION["hidden_size"] * config["scale_factor"] ** 2}
        keep = (0,) if "position_embedding" in name else ()  # as many positions as patches
        shape = [size if axis in keep else sizes.get(size, size) for axis, size in enumerate(entry["shape"])]
        count = math.prod(shape)
        is_norm = "norm" in name and name.endswith("weight")
        tensor = struct.pack("<f", 1.0)[2:] * count if is_norm else bfloat16(source, count, 0.1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + len(tensor)]}
        offset += len(tensor)
        tensors.append(tensor)
    encoded = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    encoded += b" " * (-len(encoded) % 8)
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + b"".join(tensors))


def write_data(folder):
    """Writes 16 training and 4 held-out conversations with no, one or two small images."""
    folder.mkdir()
    for i, (width, height) in enumerate(((32, 32), (24, 40))):
        inputs.write_waves(folder / f"{i}.png", width, height, i)
    for name, count in (("train", 16), ("held_out", 4)):
        records = []
        for i in range(count):
            images = [f"{(i + k) % 2}.png" for k in range(i % 3)]
            records.append({"id": f"{name}-{i}", "image": images, "conversations": [
                {"from": "human", "value": "<image>\n" * len(images) + inputs.text(i + 50 * len(name), 3) + "?"},
                {"from": "gpt", "value": inputs.text(1000 + i + 50 * len(name), 2 + i % 5)}]})
        (folder / f"{name}.json").write_text(json.dumps(records, indent=1) + "\n")


def read_metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def main():
    vlmtrain = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        fixture = Path(folder) / "run_cf49f4c"
        write_fixture(vlmtrain, fixture)
        adapter = next(fixture.rglob("adapter_config.json"))  # names its base by an absolute path
        adapter.write_text(adapter.read_text().replace(str(fixture), "/home/user"))
        shutil.rmtree(HERE / fixture.name, ignore_errors=True)
        shutil.copytree(fixture, HERE / fixture.name, symlinks=True)


def write_fixture(vlmtrain, fixture):
    fixture.mkdir()
    (fixture / "reproducible.env").write_text(
        "# Sums of the same bits on every x86-64 processor, for make_run_cf49f4c.py and old_runs_test.cpp.\n"
        + "".join(f"{name}={value}\n" for name, value in ENVIRONMENT.items()))
    environment = {**os.environ, **ENVIRONMENT}
    environment["PATH"] = f"{vlmtrain.parent}:{environment['PATH']}"  # environment.json of a run holds the command as it was typed
    write_model(vlmtrain, fixture / "model")
    write_data(fixture / "data")
    expected = {}
    for name, settings in RUNS.items():
        folder = fixture / name
        folder.mkdir()
        inputs.write_config(folder / "train.yaml", {**TRAINING, **settings})
        command = [vlmtrain.name, "--config", "train.yaml", "--device", "cpu", "--quiet", *LAUNCH.get(name, [])]
        process = subprocess.Popen(command, cwd=folder, env=environment)
        metrics = folder / "run" / "metrics.jsonl"
        while process.poll() is None and (not metrics.exists() or metrics.read_bytes().count(b"\n") < STOPPED_AFTER):
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        if process.wait() != 75:
            sys.exit(f"{name}: exit code {process.returncode} instead of 75")
        stopped_at = len(read_metrics(folder / "run"))
        resumed = fixture / f"{name}-resumed"
        shutil.copytree(folder, resumed, symlinks=True)
        subprocess.run(command, cwd=resumed, env=environment, check=True)
        steps = read_metrics(resumed / "run")
        checkpoint = f"run/checkpoints/step-{STEPS}"
        evaluated = subprocess.run([vlmtrain, "eval", "--config", "train.yaml", "--checkpoint", checkpoint, "--device", "cpu", "--json",
                                    "data.eval=../data/held_out.json"],
                                   cwd=resumed, env=environment, check=True, capture_output=True, text=True)
        expected[name] = {"stopped_at": stopped_at, "losses": [step["loss"] for step in steps],
                          "gradient_norms": [step["grad_norm"] for step in steps],
                          "eval_loss": json.loads(evaluated.stdout)["loss"]}
        shutil.rmtree(resumed)
    (fixture / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
