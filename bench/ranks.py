#!/usr/bin/env python3
"""Compares several ranks with one process on the CPU: the tables of docs/benchmarks/ranks.md.

    bench/ranks.py numbers [--steps 20] [--sharding full]    losses, gradient norms and weights on 1, 2, 3 and 4 ranks
    bench/ranks.py lost [--killed 30] [--stopped 10] [--missing 5] [--seed 1] [--sharding full] [--on-another-number]
    bench/ranks.py traffic                        bytes on the wire by sharding (as root: in a private network namespace)
    bench/ranks.py overlap [--pairs 5]            step times, and bytes on the wire (as root: in a private network namespace)
    bench/ranks.py refused                        exit codes and messages

Each command takes --vlmtrain build/release/vlmtrain and --work DIR (default: a temporary folder) and prints a Markdown table.
The model is a small random one of `vlmtrain init`. The records of tests/parity/data/mixed_batch are repeated; they differ in
length, images and label tokens. Every rank has one thread. Needs only Python 3.11.
"""

import argparse
import array
import json
import math
import os
import random
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "tests/parity/data/mixed_batch"
SECONDS_TO_END = 30
GIVE_UP_SECONDS = 90


class Workplace:
    """A folder with models, data and runs, in which vlmtrain is started."""

    def __init__(self, program, folder):
        self.program = program.resolve()
        self.folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "images").exists():
            shutil.copytree(RECORDS / "images", self.folder / "images")
        samples = json.loads((RECORDS / "conversations.json").read_text())
        words = [sample for sample in samples if "image" not in sample]
        images = [sample for sample in samples if "image" in sample]
        self.write_records("mixed", (samples[i % len(samples)] for i in range(59)))
        self.write_records("alike", (images[0] for _ in range(60)))
        self.write_records("few_pictures", ((images[i % len(images)] if i % 12 == 0 else words[0]) for i in range(60)))

    def write_records(self, name, samples):
        """Writes records in which every third sample is a caption, so that the samples of a task differ."""
        records = [{**sample, "id": f"sample-{i}", "task": "caption" if i % 3 == 0 else "question"}
                   for i, sample in enumerate(samples)]  # fmt: skip
        (self.folder / f"{name}.json").write_text(json.dumps(records))

    def model(self, preset="smolvlm-tiny"):
        folder = self.folder / preset
        if not folder.exists():
            self.check(["init", "--preset", preset, "--out", folder, "--seed", "1"])
        return folder

    def large_model(self):
        """Returns a SmolVLM whose gradients fill several buckets. It has no weights, so they are initialized at random."""
        folder = self.folder / "large"
        if folder.exists():
            return folder
        shutil.copytree(self.model(), folder)
        config = json.loads((folder / "config.json").read_text())
        config["text_config"].update(hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12,
                                     num_key_value_heads=12, head_dim=64)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
        return folder

    def arguments(self, run, settings):
        defaults = {
            "model.path": self.folder / "smolvlm-tiny", "data.train": self.folder / "mixed.json",
            "data.image_root": self.folder / "images", "data.num_workers": 1, "training.global_batch_size": 12,
            "training.learning_rate": "1.0e-4", "training.precision": "fp32", "training.warmup_ratio": 0, "output.dir": run,
            "output.save_steps": 0, "output.sample_predictions": 0, "output.report": "false", "output.tensorboard": "false",
            "output.dtype": "fp32",
        }  # fmt: skip
        config = self.folder / "empty.yaml"
        if not config.exists():
            config.write_text("training:\n  seed: 1\n")
        return ["--config", config, "--device", "cpu", *(f"{key}={value}" for key, value in {**defaults, **settings}.items())]

    @staticmethod
    def environment(more=()):
        return {**os.environ, "OMP_NUM_THREADS": "1", "VLMTRAIN_PAST_RUNS": "off", **dict(more)}

    def start(self, arguments, log, more=(), before=()):
        with open(log, "wb") as file:
            return subprocess.Popen([*before, self.program, *arguments], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                    cwd=self.folder, env=self.environment(more))  # fmt: skip

    def check(self, arguments, before=()):
        log = self.folder / "last.log"
        if code := self.start(arguments, log, before=before).wait():
            sys.exit(f"vlmtrain {' '.join(map(str, arguments))} ended with {code}:\n{log.read_text()[-3000:]}")
        return log.read_text()

    def train(self, name, ranks, settings, before=()):
        """Trains in a new run folder; returns the folder and the log."""
        run = self.folder / name
        shutil.rmtree(run, ignore_errors=True)
        launch = ["--nproc-per-node", str(ranks)] if ranks > 1 else []
        return run, self.check([*self.arguments(run, settings), *launch], before)

    def start_rank(self, rank, world_size, port, run, settings):
        """Starts one of several ranks without a launcher."""
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return self.start(self.arguments(run, settings), self.read_log(rank), {key: str(value) for key, value in place.items()}.items())

    def read_log(self, rank):
        return self.folder / f"by-hand-{rank}.log"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def find_steps(run):
    """Returns the steps of complete lines; a run may be writing the next line."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")] if path.exists() else []


def find_numbers(run):
    return [(step["step"], step["loss"], step["grad_norm"]) for step in find_steps(run)]


def find_tensors(run):
    """Returns the weights of a run's last checkpoint, all fp32."""
    checkpoint = max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    tensors = {}
    for path in checkpoint.glob("*.safetensors"):
        data = path.read_bytes()
        start = 8 + struct.unpack_from("<Q", data)[0]
        for name, entry in json.loads(data[8:start]).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            assert entry["dtype"] == "F32", name
            tensors[name] = array.array("f", data[start + begin : start + end])
    return tensors


def largest(expected, actual, key):
    """Returns the largest relative difference over the steps; NaN if the numbers of steps differ."""
    if len(expected) != len(actual):
        return math.nan
    return max(abs(a[key] - b[key]) / abs(a[key]) for a, b in zip(expected, actual, strict=True) if a[key] and math.isfinite(a[key]))


def weights_apart(expected, actual):
    """Returns relative norms of differences: over all tensors; of the tensor that differs most, and its name; and of the key
    biases, whose gradient is zero except for rounding, because softmax ignores a constant added to all scores of a row."""
    of_all, difference, worst, of_keys = 0.0, 0.0, (0.0, "none"), 0.0
    for name, values in expected.items():
        apart, norm = math.dist(values, actual[name]), math.hypot(*values)
        difference, of_all = math.hypot(difference, apart), math.hypot(of_all, norm)
        if norm > 0 and name.endswith("k_proj.bias"):
            of_keys = max(of_keys, apart / norm)
        elif norm > 0:
            worst = max(worst, (apart / norm, name))
    return difference / of_all, *worst, of_keys


# --- numbers ---------------------------------------------------------------------------------------------------------

LORA = {"lora.rank": 4, "training.learning_rate": "1.0e-3"}
VARIANTS = {
    "mixed batches": {},
    "the same, learning rate 1e-3": {"training.learning_rate": "1.0e-3"},
    "the same, learning rate 1e-5": {"training.learning_rate": "1.0e-5"},
    "the same, AdamW's epsilon 1e-3, learning rate 1e-3": {"training.learning_rate": "1.0e-3", "training.adam_epsilon": "1.0e-3"},
    "a rank without images": {"data.train": "few_pictures.json"},
    "micro-batches of 1": {"training.micro_batch_size": 1},
    "LoRA, dropout 0.2": {**LORA, "lora.dropout": 0.2},
    "NF4": {**LORA, "model.quantization": "nf4"},
    "tasks, GradNorm": {"training.task_weighting": "gradnorm", "training.gradnorm_learning_rate": 0.5},
    "tasks, PCGrad": {"training.gradient_conflicts": "pcgrad"},
    "packs": {"data.packing": "true", "data.pack_max_tokens": 400},
    "vision tower frozen": {"model.freeze_vision_tower": "true"},
    "language model frozen": {"model.freeze_language_model": "true"},
    "LLaVA": {"model.path": "llava-tiny"},
    "Qwen2.5-VL": {"model.path": "qwen2.5-vl-tiny"},
    "fp16, loss scale": {"training.precision": "fp16"},
    "bf16": {"training.precision": "bf16"},
}  # fmt: skip


def row_of_numbers(place, name, settings, steps, sharding):
    settings = {**settings, "training.max_steps": steps}
    one, _ = place.train("one", 1, settings)
    expected, weights = find_steps(one), find_tensors(one)

    several = {**settings, "distributed.sharding": sharding}

    def difference(run):
        actual = find_steps(run)
        return (largest(expected, actual, "loss"), largest(expected, actual, "grad_norm"), *weights_apart(weights, find_tensors(run)))

    otherwise = 2 if settings.get("training.micro_batch_size") != 2 else 4
    floor = difference(place.train("otherwise", 1, {**settings, "training.micro_batch_size": otherwise})[0])
    runs = {ranks: place.train(f"on-{ranks}", ranks, several)[0] for ranks in (2, 3, 4)}
    parts = [difference(run) for run in runs.values()]
    again, _ = place.train("again", 3, several)
    equal = find_numbers(runs[3]) == find_numbers(again) and find_tensors(runs[3]) == find_tensors(again)

    def column(index):
        return " / ".join(f"{part[index]:.1e}" for part in [*parts, floor])

    tensor = max(parts, key=lambda part: part[3])[4].removeprefix("model.")
    without = sum(step["images"] < 4 for step in expected)
    print(f"| {name} | {column(0)} | {column(1)} | {column(2)} | {column(3)} | `{tensor}` | {column(5)} | {without} "
          f"| {'yes' if equal else 'NO'} |", flush=True)  # fmt: skip


def numbers(place, arguments):
    for preset in ("smolvlm-tiny", "llava-tiny", "qwen2.5-vl-tiny"):
        place.model(preset)
    print(f"{arguments.steps} steps; on 2 / 3 / 4 ranks / in one process with another split into micro-batches, against one process:\n\n"
          "| run | losses | gradient norms | all weights | the tensor that differs most | which | biases of keys "
          "| steps with fewer than 4 images | 3 ranks again: equal to the bit |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for name, settings in VARIANTS.items():
        if arguments.sharding != "none" and "PCGrad" in name:
            continue  # refused
        if not arguments.only or any(word in name for word in arguments.only):
            row_of_numbers(place, name, settings, arguments.steps, arguments.sharding)


# --- lost ------------------------------------------------------------------------------------------------------------

# In a ring of four, one rank is not a neighbor of rank 0.
WORLD_SIZE = 4
# Relative difference of losses on another number of ranks, at the learning rate of these runs.
ROUNDING = 5e-6


class Trial:
    """A run that loses one rank; then the same command again."""

    def __init__(self, place, settings, undisturbed):
        self.place, self.settings, self.undisturbed = place, settings, undisturbed
        self.apart = 0.0
        self.run = place.folder / "lost"
        self.silent = {"its log": 0, "its standard error": 0}

    def start(self, ranks, world_size=WORLD_SIZE):
        port = free_port()
        return {rank: self.place.start_rank(rank, world_size, port, self.run, self.settings) for rank in ranks}

    def read_words(self, rank):
        """Returns the last lines of its standard streams."""
        return "\n".join(self.place.read_log(rank).read_text(errors="replace").splitlines()[-4:])

    def lose(self, kind, rank, after_steps, delay_seconds):
        """Loses a rank; returns the seconds until the others end, the number of steps before the loss, and the errors."""
        shutil.rmtree(self.run, ignore_errors=True)
        begin = time.monotonic()
        processes = self.start(other for other in range(WORLD_SIZE) if kind != "missing" or other != rank)
        if kind != "missing":
            while len(find_steps(self.run)) < after_steps and processes[rank].poll() is None:
                time.sleep(0.01)
            time.sleep(delay_seconds)
            if processes[rank].poll() is not None:
                raise RuntimeError(f"rank {rank} had ended before it was lost:\n{self.read_words(rank)}")
            steps = len(find_steps(self.run))
            processes[rank].send_signal(signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
            begin = time.monotonic()
        else:
            steps = 0
        wrong = []
        for other, process in processes.items():
            if other == rank:
                continue
            try:
                code = process.wait(GIVE_UP_SECONDS - (time.monotonic() - begin))
            except subprocess.TimeoutExpired:
                wrong.append(f"rank {other} keeps running")
                continue
            if code not in self.find_codes(rank, steps):
                wrong.append(f"rank {other} exit {code}")
            log = self.run / f"rank-{other}.log"
            in_log = log.exists() and self.names(log.read_text(errors="replace"), rank)
            in_streams = self.names(self.read_words(other), rank)
            self.silent["its log"] += log.exists() and not in_log
            self.silent["its standard error"] += not in_streams
            if not in_log and not in_streams:
                wrong.append(f"rank {other} does not name rank {rank}: {self.read_words(other)[-300:]}")
        seconds = time.monotonic() - begin
        if seconds > SECONDS_TO_END:
            wrong.append(f"{seconds:.0f} s")
        if kind == "stopped":
            processes[rank].send_signal(signal.SIGCONT)
        if kind != "missing":
            began_to_end = time.monotonic()
            try:
                processes[rank].wait(GIVE_UP_SECONDS)
            except subprocess.TimeoutExpired:
                wrong.append(f"rank {rank} does not end")
            if kind == "stopped" and time.monotonic() - began_to_end > SECONDS_TO_END:
                wrong.append(f"rank {rank} takes {time.monotonic() - began_to_end:.0f} s to end after SIGCONT")
        for process in processes.values():
            process.kill()
            process.wait()
        return seconds, steps, wrong

    @staticmethod
    def find_codes(rank, steps):
        """Returns the expected exit codes. Without rank 0 nobody listens, which a user's wrong address looks like."""
        return (2, 5) if rank == 0 and steps == 0 else (5,)

    @staticmethod
    def names(words, rank):
        """`rank 1: process …`, `… did not connect to … within 25 s: 1; …`, `rank 0 at …`"""
        last = words.splitlines()[-4:]
        phrases = [f"rank {rank}: process "] + ["rank 0 at "] * (rank == 0)
        return any(any(phrase in line for phrase in phrases) or "did not connect" in line and line.split(" s: ")[-1].startswith(f"{rank};")
                   for line in last)  # fmt: skip

    def again(self, world_size):
        """Runs the command again on as many ranks or another number; returns the errors and the checkpoints before it."""
        from_step = [path.name for path in (self.run / "checkpoints").glob("step-*")] if (self.run / "checkpoints").exists() else []
        codes = [process.wait() for process in self.start(range(world_size), world_size).values()]
        if any(codes):
            return [f"again: exit {codes}: …{self.read_words(0)}"], from_step
        if world_size == WORLD_SIZE:
            return ([] if find_numbers(self.run) == self.undisturbed else ["again: other losses"]), from_step
        apart = largest(self.undisturbed_steps, find_steps(self.run), "loss")
        self.apart = max(self.apart, apart)
        return ([] if apart < ROUNDING else [f"again: losses {apart:.1e} apart"]), from_step


def lost(place, arguments):
    settings = {"model.path": RECORDS / "checkpoint", "training.max_steps": arguments.steps, "output.save_steps": 7,
                "distributed.sharding": arguments.sharding}  # fmt: skip
    trial = Trial(place, settings, None)
    shutil.rmtree(trial.run, ignore_errors=True)
    begin = time.monotonic()
    codes = [process.wait() for process in trial.start(range(WORLD_SIZE)).values()]
    whole_seconds = time.monotonic() - begin
    assert not any(codes), (codes, trial.read_words(0))
    trial.undisturbed, trial.undisturbed_steps = find_numbers(trial.run), find_steps(trial.run)
    print(f"An undisturbed run of {arguments.steps} steps on {WORLD_SIZE} ranks: {whole_seconds:.1f} s", flush=True)
    rng = random.Random(arguments.seed)
    rows, faults = [], []
    for kind, count in (("killed", arguments.killed), ("stopped", arguments.stopped), ("missing", arguments.missing)):
        ends, steps, right, same, of_rank_0 = [], [], 0, 0, 0
        for number in range(count):
            # Rank 0 holds the store and writes, so at least a third of the trials lose it.
            rank = rng.choice(range(WORLD_SIZE)) if number >= WORLD_SIZE else number
            # One of five trials loses a rank before the first step: during startup, rendezvous or loading.
            at_start = rng.random() < 0.2
            point = (0, rng.uniform(0, 3)) if at_start else (rng.randint(1, arguments.steps - 4), rng.uniform(0, 0.2))
            seconds, done, wrong = trial.lose(kind, rank, *point)
            ranks_again = rng.choice([1, 2, 3]) if arguments.on_another_number else WORLD_SIZE
            wrong_again, checkpoints = trial.again(ranks_again)
            ends.append(seconds)
            steps.append(done)
            right += not wrong
            same += not wrong_again
            of_rank_0 += rank == 0
            faults += [f"{kind} {number}: rank {rank} after {done} steps: {text}" for text in wrong + wrong_again]
            print(f"{kind} {number}: rank {rank} after {done} steps, {seconds:.1f} s; again on {ranks_again} from {checkpoints or 'the start'}; "
                  f"{wrong + wrong_again or 'right'}", file=sys.stderr, flush=True)  # fmt: skip
        if count:
            rows.append(f"| {kind} | {count} ({of_rank_0} of rank 0) | {min(steps)} to {max(steps)} | {min(ends):.1f} / "
                        f"{statistics.median(ends):.1f} / {max(ends):.1f} | {right} of {count} | {same} of {count} |")  # fmt: skip
    print("\n| a rank is | times | after steps | seconds until the others have ended: min / median / max | ended right "
          "| again: losses of an undisturbed run |\n|---|---|---|---|---|---|")  # fmt: skip
    print("\n".join(rows))
    if arguments.on_another_number:
        print(f"\nAgain on another number of ranks: losses {trial.apart:.1e} apart at most")
    print(f"\nRanks that do not name the lost one in {', '.join(f'{where}: {count}' for where, count in trial.silent.items())}")
    for fault in faults:
        print(f"- {' '.join(fault.split())}")


# --- overlap ---------------------------------------------------------------------------------------------------------

STEPS_TO_WARM_UP = 2


def median_step(run):
    return statistics.median(step["step_seconds"] for step in find_steps(run)[STEPS_TO_WARM_UP:])


def bytes_on_the_wire(place, settings, few, many):
    """Returns the bytes a step of all ranks together, from the counter of a network namespace without other traffic."""
    if os.geteuid() != 0:
        return None
    totals = []
    for steps in (few, many):
        script = 'ip link set lo up && "$@"; code=$?; cp /proc/net/dev network.txt; exit $code'
        place.train("counted", 2, {**settings, "training.max_steps": steps}, ["unshare", "--net", "bash", "-c", script, "bash"])
        line = next(line for line in (place.folder / "network.txt").read_text().splitlines() if line.strip().startswith("lo:"))
        totals.append(int(line.split(":")[1].split()[0]))
    return (totals[1] - totals[0]) / (many - few)


def overlap(place, arguments):
    print("| model | gradients, MB | samples a rank | one rank, s | two single ranks at once, s | 2 ranks, s | ratio to one rank | ratio to two "
          "single ranks | log line | on the wire a rank and step, MB: sent, minimum |\n|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for name, model, own, cut, steps in (("tiny", place.model(), 6, 6, 23), ("large", place.large_model(), 4, 4, 8), ("large", place.large_model(), 8, 4, 8)):
        # Samples of one size; otherwise ranks wait for the one with the larger samples.
        settings = {"model.path": model, "data.train": place.folder / "alike.json", "training.max_steps": steps, "training.micro_batch_size": cut, "training.learning_rate": "1.0e-5",
                    "model.allow_missing": "[model, lm_head]" if name == "large" else "[]"}  # fmt: skip
        on_one = {**settings, "training.global_batch_size": own}
        on_two = {**settings, "training.global_batch_size": 2 * own}
        times = {"alone": [], "beside": [], "ranks": []}
        for _ in range(arguments.pairs):
            run, _ = place.train("alone", 1, on_one)
            times["alone"].append(median_step(run))
            pair = []
            for side in ("left", "right"):
                run = place.folder / side
                shutil.rmtree(run, ignore_errors=True)
                pair.append((run, place.start(place.arguments(run, on_one), place.folder / f"{side}.log")))
            assert not any([process.wait() for _, process in pair])
            times["beside"].append(statistics.mean(median_step(run) for run, _ in pair))
            run, log = place.train("ranks", 2, on_two)
            times["ranks"].append(median_step(run))
        gradients = sum(4 * len(values) for values in find_tensors(place.folder / "ranks").values())
        sent = bytes_on_the_wire(place, on_two, 3, 6)
        alone, next_to, ranks = (statistics.median(times[kind]) for kind in ("alone", "beside", "ranks"))
        ratios = [statistics.median(b / a for a, b in zip(times[kind], times["ranks"], strict=True)) for kind in ("alone", "beside")]
        summary = next((line.partition("ranks reduced ")[2] for line in log.splitlines() if "ranks reduced" in line), "?")
        wire = "not counted" if sent is None else f"{sent / 2 / 1e6:.2f}, {2 * (2 - 1) / 2 * gradients / 1e6:.2f}"
        print(f"| {name} | {gradients / 1e6:.1f} | {own} in micro-batches of {cut} | {alone:.3f} | {next_to:.3f} | {ranks:.3f} | {ratios[0]:.2f} "
              f"| {ratios[1]:.2f} | {summary} | {wire} |", flush=True)  # fmt: skip


# --- traffic ---------------------------------------------------------------------------------------------------------


def traffic(place, arguments):
    print("| sharding | micro-batches | on the wire a rank and step, MB | the minimum: (n - 1) / n of the blocks' bytes, times (2 of others') | MB "
          "| excess | log line |\n|---|---|---|---|---|---|---|")  # fmt: skip
    for sharding in ("none", "optimizer", "full"):
        for cut in (4, 2) if sharding == "full" else (4,):
            settings = {"model.path": place.large_model(), "data.train": place.folder / "alike.json", "training.micro_batch_size": cut,
                        "training.global_batch_size": 8, "training.max_steps": 3, "training.learning_rate": "1.0e-5",
                        "model.allow_missing": "[model, lm_head]", "distributed.sharding": sharding}  # fmt: skip
            run, log = place.train("traffic", 2, settings)
            weights = {name: 4 * len(values) for name, values in find_tensors(run).items()}
            blocks = sum(size for name, size in weights.items() if ".layers." in name)
            # Sums are a reduce-scatter and a gather; with `full` a micro-batch gathers blocks twice and reduce-scatters their gradients.
            times = 2 if sharding != "full" else 3 * (4 // cut)
            least = (times * blocks + 2 * (sum(weights.values()) - blocks)) / 2
            sent = bytes_on_the_wire(place, settings, 3, 6)
            summary = next((line.partition("ranks reduced ")[2] for line in log.splitlines() if "ranks reduced" in line), "?")
            wire, more = ("not counted", "-") if sent is None else (f"{sent / 2 / 1e6:.2f}", f"{100 * (sent / 2 / least - 1):+.1f} %")
            print(f"| {sharding} | {4 // cut} | {wire} | {times} | {least / 1e6:.2f} | {more} | {summary} |", flush=True)


# --- refused ---------------------------------------------------------------------------------------------------------


def ended(process, log):
    """Waits for a process; returns its exit code and the last line of its log."""
    code = process.wait(GIVE_UP_SECONDS)
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return code, lines[-1] if lines else "nothing"


class Refusals:
    def __init__(self, place):
        self.place = place
        self.settings = {"training.max_steps": 3}

    def once(self, more=(), launch=1, **settings):
        arguments = self.place.arguments(self.place.folder / "refused", {**self.settings, **settings})
        log = self.place.folder / "refused.log"
        return [ended(self.place.start([*arguments, *(["--nproc-per-node", str(launch)] if launch > 1 else [])], log, dict(more).items()), log)]

    def by_hand(self, port, of_each, ranks=(0, 1)):
        processes = [self.place.start_rank(rank, 2, port, self.place.folder / "refused", {**self.settings, **of_each[rank]})
                     for rank in ranks]  # fmt: skip
        return [ended(process, self.place.read_log(rank)) for rank, process in zip(ranks, processes, strict=True)]

    def twice(self, launch):
        run = self.place.folder / "refused"
        arguments = self.place.arguments(run, {"training.max_steps": 100000})
        first = self.place.start([*arguments, "--nproc-per-node", str(launch)], self.place.folder / "first.log")
        while not find_steps(run) and first.poll() is None:
            time.sleep(0.1)
        log = self.place.folder / "refused.log"
        second = ended(self.place.start([*arguments, "--nproc-per-node", str(launch)], log), log)
        done = len(find_steps(run))
        time.sleep(1)
        goes_on = first.poll() is None and len(find_steps(run)) > done
        first.terminate()
        code = first.wait()
        return [second, (code, f"the first keeps running meanwhile: {'yes' if goes_on else 'NO'}; its exit code after TERM")]

    def port_in_use(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            return self.by_hand(listener.getsockname()[1], [{}, {}], [0])

    def other_model(self):
        self.place.train("refused", 2, {**self.settings, "training.max_steps": 2})
        return self.once(launch=2, **{"model.path": self.place.model("llava-tiny"), "training.max_steps": 4})


def refused(place, arguments):
    place.model()
    refusals = Refusals(place)
    cases = {
        "rank 0 of 2 without MASTER_ADDR": lambda: refusals.once({"WORLD_SIZE": "2", "RANK": "0"}),
        "rank 1 of 2 without MASTER_ADDR": lambda: refusals.once({"WORLD_SIZE": "2", "RANK": "1"}),
        "RANK=1 without WORLD_SIZE": lambda: refusals.once({"RANK": "1"}),
        "a process of mpirun": lambda: refusals.once({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}),
        "one process, started twice into one folder": lambda: refusals.twice(1),
        "two ranks, started twice into one folder": lambda: refusals.twice(2),
        "a port in use (rank 0)": refusals.port_in_use,
        "nobody at the port (rank 1 alone)": lambda: refusals.by_hand(free_port(), [{}, {}], [1]),
        "ranks with different learning rates": lambda: refusals.by_hand(free_port(), [{}, {"training.learning_rate": 0.5}]),
        "ranks with different models": lambda: refusals.by_hand(free_port(), [{}, {"model.path": place.model("llava-tiny")}]),
        "5 ranks, a global batch of 12": lambda: refusals.once(launch=5),
        "12 ranks, a global batch of 8": lambda: refusals.once(launch=12, **{"training.global_batch_size": 8}),
        "2 ranks resume with another model": refusals.other_model,
    }
    print("| what is started | exit code | seconds | last line |\n|---|---|---|---|")
    for name, act in cases.items():
        shutil.rmtree(place.folder / "refused", ignore_errors=True)
        begin = time.monotonic()
        outcomes = act()
        seconds = time.monotonic() - begin
        codes = ", ".join(str(code) for code, _ in outcomes)
        words = "; ".join(dict.fromkeys(line.replace(str(place.folder), "…").replace(f"on {socket.gethostname()}", "on …").replace("|", "\\|") for _, line in outcomes))
        print(f"| {name} | {codes} | {seconds:.1f} | {words} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vlmtrain", type=Path, default=ROOT / "build/release/vlmtrain")
    parser.add_argument("--work", type=Path)
    tables = parser.add_subparsers(required=True, metavar="TABLE")
    table = tables.add_parser("numbers")
    table.add_argument("--steps", type=int, default=20)
    table.add_argument("--only", nargs="*", help="only rows whose names contain one of these words")
    table.add_argument("--sharding", default="none")
    table.set_defaults(act=numbers)
    table = tables.add_parser("lost")
    for kind, count in (("killed", 30), ("stopped", 10), ("missing", 5)):
        table.add_argument(f"--{kind}", type=int, default=count)
    table.add_argument("--steps", type=int, default=40)
    table.add_argument("--seed", type=int, default=1)
    table.add_argument("--sharding", default="none")
    table.add_argument("--on-another-number", action="store_true", help="resume with 1, 2 or 3 ranks, chosen at random")
    table.set_defaults(act=lost)
    table = tables.add_parser("overlap")
    table.add_argument("--pairs", type=int, default=5)
    table.set_defaults(act=overlap)
    tables.add_parser("traffic").set_defaults(act=traffic)
    tables.add_parser("refused").set_defaults(act=refused)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        arguments.act(Workplace(arguments.vlmtrain, arguments.work or Path(temporary)), arguments)


if __name__ == "__main__":
    main()
