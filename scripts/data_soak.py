#!/usr/bin/env python3
"""Trains on random data sets with injected faults, each run uninterrupted and again stopped at random steps.

    scripts/data_soak.py build/release/vlmtrain [--runs 20] [--seed 1] [--keep FOLDER]

A run has random sources (JSON, JSON Lines, tars; with weights, repeats or neither), packs, a curriculum, a number of worker
threads, and samples that are valid or have one of the faults of FAULTS. It checks for each run:

- the ledger: used + dropped + failed + not reached = all samples, and the dropped samples are the faulty ones;
- each step has exactly the global batch size (without packs);
- a run stopped at random steps and resumed with other numbers of workers has bit-identical losses, samples and ledger.

Needs Pillow. Exit code 1 if a check fails.
"""

import argparse
import io
import json
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from pathlib import Path

from PIL import Image

WORDS = "what is in the picture left right red blue a lesion none of these large small above below yes no".split()
# Faults of a sample, and whether the sample is usable.
FAULTS = {
    "no such file": False,
    "cut off": False,
    "not a picture": False,
    "empty file": False,
    "a folder": False,
    "no answer": False,
    "too many pixels": False,
    "late": False,  # valid header, damaged pixels: detected when the sample is decoded
    "odd name": False,  # not UTF-8, so invalid JSON; identified by its position
    "too long": True,  # shrunk, or dropped if the text itself is too long
}


def image_bytes(rng: random.Random) -> bytes:
    image = Image.new("RGB", (rng.randrange(40, 200), rng.randrange(40, 200)), tuple(rng.randrange(256) for _ in range(3)))
    out = io.BytesIO()
    image.save(out, rng.choice(["PNG", "JPEG"]))
    return out.getvalue()


def png_that_says(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("L", (8, 8)).save(out, "PNG")
    data = bytearray(out.getvalue())
    data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    data[29:33] = zlib.crc32(bytes(data[12:29])).to_bytes(4, "big")
    return bytes(data)


def png_of_spoilt_pixels() -> bytes:
    out = io.BytesIO()
    Image.effect_noise((120, 120), 60).convert("RGB").save(out, "PNG")
    data = bytearray(out.getvalue())
    for place in range(len(data) // 2, len(data) // 2 + 64):
        data[place] ^= 0xFF
    return bytes(data)


class DataSet:
    """Sources in a folder, and the ids that must be dropped."""

    def __init__(self, folder: Path, rng: random.Random):
        self.folder = folder
        self.rng = rng
        self.bad: set[str] = set()
        self.samples = 0
        self.sources = []
        shares = rng.choice(["none", "weight", "repeat"])
        for number in range(rng.randrange(1, 4)):
            source = {"path": str(self.write(number, rng.randrange(8, 40)))}
            if shares == "weight":
                source["weight"] = rng.choice([1, 2, 5])
            if shares == "repeat":
                source["repeat"] = rng.choice([1, 2])
            self.sources.append(source)

    def write(self, number: int, count: int) -> Path:
        kind = self.rng.choice(["json", "jsonl", "tar"])
        samples = [self.sample(number, i, kind) for i in range(count)]
        self.samples += count
        if kind == "tar":
            path = self.folder / f"source{number}.tar"
            with tarfile.open(path, "w") as tar:
                for record, content in samples:
                    name = record["id"]
                    for suffix, data in (("jpg", content), ("json", json.dumps(record).encode())):
                        info = tarfile.TarInfo(f"{name}.{suffix}")
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))
            return path
        path = self.folder / f"source{number}.{kind}"
        # Names that are not UTF-8 are written as raw bytes.
        texts = [json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogateescape") for record, _ in samples]
        path.write_bytes(b"[" + b",\n".join(texts) + b"]" if kind == "json" else b"\n".join(texts) + b"\n")
        return path

    def sample(self, source: int, place: int, kind: str):
        rng = self.rng
        name = f"s{source}-{place}"
        fault = rng.choice(list(FAULTS)) if rng.random() < 0.2 else None
        if kind == "tar" and fault in ("no such file", "a folder", "odd name"):
            fault = "not a picture"
        answer = " ".join(rng.choices(WORDS, k=rng.randrange(1, 12)))
        question = " ".join(rng.choices(WORDS, k=rng.randrange(2, 20)))
        content = image_bytes(rng)
        if fault == "cut off":
            content = content[:20]
        elif fault == "not a picture":
            content = b"no picture at all"
        elif fault == "empty file":
            content = b""
        elif fault == "too many pixels":
            content = png_that_says(60_000, 60_000)
        elif fault == "late":
            content = png_of_spoilt_pixels()
        elif fault == "too long":
            question = " ".join(rng.choices(WORDS, k=3000))
            fault = "too long text"
        if fault == "no answer":
            answer = ""
        if fault and not FAULTS.get(fault, False):
            self.bad.add(f"source{source}:{place}" if fault == "odd name" else name)
        record = {"id": name, "conversations": [
            {"from": "human", "value": f"<image>\n{question}"}, {"from": "gpt", "value": answer}]}
        if kind == "tar":
            return record, content
        file = f"{name}\udcff.png" if fault == "odd name" else f"{name}.png"
        path = self.folder / "images" / file
        if fault == "a folder":
            path.mkdir()
        elif fault != "no such file":
            path.write_bytes(content)
        record["image"] = file
        return record, None


def run(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600)


def stopped_after(step: int, metrics: Path, command: list[str], how: signal.Signals) -> int:
    """Starts a run and sends it a signal after at least that many steps."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        if metrics.exists() and metrics.read_text().count('"loss"') >= step:
            process.send_signal(how)
            break
        time.sleep(0.005)
    return process.wait(timeout=600)


def find_steps(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def what_counts(step: dict) -> dict:
    keys = ("step", "loss", "grad_norm", "samples", "packs", "tokens", "label_tokens", "epoch", "learning_rate")
    return {key: step[key] for key in keys if key in step}


def read_ledger(folder: Path) -> dict:
    ledger = json.loads((folder / "ledger.json").read_text())
    ledger.pop("dataset")
    return ledger


def check_run(vlmtrain: str, folder: Path, model: Path, rng: random.Random) -> list[str]:
    (folder / "images").mkdir(parents=True)
    data = DataSet(folder, rng)
    if len(data.bad) >= data.samples // 2:
        return []
    batch = rng.randrange(2, 7)
    steps = rng.randrange(6, 16)
    packing = rng.random() < 0.4
    config = {
        "model": {"path": str(model)},
        "data": {"train": data.sources, "image_root": str(folder / "images"), "max_length": 900,
                 "on_bad_sample": "skip", "num_workers": rng.randrange(1, 5)},
        "training": {"global_batch_size": batch, "max_steps": steps, "precision": "fp32",
                     "learning_rate": 1e-3, "seed": rng.randrange(1000)},
        "output": {"save_steps": 1, "keep": 2},
    }
    if packing:
        config["data"] |= {"packing": True, "pack_max_tokens": 900, "pack_max_images": rng.choice([3, 8])}
    if rng.random() < 0.3:
        config["data"]["curriculum"] = "length"
    file = folder / "train.yaml"
    file.write_text(json.dumps(config, ensure_ascii=False))

    def train(out: str, *more: str) -> subprocess.CompletedProcess:
        return run([vlmtrain, "--config", str(file), f"output.dir={folder / out}", *more])

    wrong = []
    whole = train("whole")
    if whole.returncode != 0:
        return [f"exit {whole.returncode}: {whole.stderr[-400:]}"]
    ledger = read_ledger(folder / "whole")
    if ledger["used"] + ledger["dropped"] + ledger["failed"] + ledger["not_reached"] != data.samples:
        wrong.append(f"the ledger does not sum up to {data.samples}: {ledger}")
    dropped = {problem["id"] for problem in ledger["problems"]}
    late_or_long = {name for name in dropped ^ data.bad}
    for name in late_or_long:
        if name in data.bad:  # a faulty sample that was not dropped has not been reached
            reached = ledger["not_reached"] > 0
            if not reached:
                wrong.append(f"{name} is faulty and was used")
        else:
            reason = next(problem["reason"] for problem in ledger["problems"] if problem["id"] == name)
            if "long" not in reason and "pack" not in reason:
                wrong.append(f"{name} is valid and was dropped: {reason}")
    done = find_steps(folder / "whole")
    if [step["step"] for step in done] != list(range(1, steps + 1)):
        wrong.append(f"steps {[step['step'] for step in done]} of {steps}")
    if not packing and any(step["samples"] != batch for step in done):
        wrong.append(f"batches of {[step['samples'] for step in done]} and not {batch}")

    stops = sorted(rng.sample(range(1, steps), k=2))
    for stop in stops:
        command = [vlmtrain, "--config", str(file), f"output.dir={folder / 'parts'}", f"data.num_workers={rng.randrange(1, 5)}"]
        code = stopped_after(stop, folder / "parts" / "metrics.jsonl", command, rng.choice([signal.SIGTERM, signal.SIGKILL]))
        if code not in (0, 75, -signal.SIGKILL):
            return wrong + [f"stopped after {stop}: exit {code}"]
    last = train("parts", f"data.num_workers={rng.randrange(1, 5)}")
    if last.returncode != 0:
        return wrong + [f"resumed after {stops}: exit {last.returncode}: {last.stderr[-400:]}"]
    parts = find_steps(folder / "parts")
    if [what_counts(step) for step in done] != [what_counts(step) for step in parts]:
        pairs = zip(done, parts)
        first = next((a["step"] for a, b in pairs if what_counts(a) != what_counts(b)), "number of steps")
        wrong.append(f"stopped after {stops}: different from step {first} on")
    if read_ledger(folder / "parts") != ledger:
        wrong.append(f"stopped after {stops}: different ledger")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vlmtrain")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the runs' files")
    arguments = parser.parse_args()
    base = arguments.keep or Path(tempfile.mkdtemp())
    base.mkdir(parents=True, exist_ok=True)
    model = base / "model"
    if not model.exists():
        subprocess.run([arguments.vlmtrain, "init", "--preset", "smolvlm-tiny", "--out", str(model), "--seed", "1"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    failed = 0
    for number in range(arguments.runs):
        rng = random.Random(arguments.seed * 1000 + number)
        folder = base / f"run{number}"
        shutil.rmtree(folder, ignore_errors=True)
        wrong = check_run(arguments.vlmtrain, folder, model, rng)
        failed += bool(wrong)
        print(f"run {number}: {'; '.join(wrong) or 'right'}", flush=True)
    print(f"{arguments.runs - failed} of {arguments.runs} runs are right")
    if not arguments.keep:
        shutil.rmtree(base)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
