"""Runs a build and collects the outcomes of its cases, without values that vary between runs (times, host memory)."""

import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import time

INPUTS = "../../inputs"  # relative to a case's folder, so that both builds' files have the same path
TIMEOUT_SECONDS = 300

# Measured, not computed. Predicted times of plans (step_seconds) are computed, and compared.
MEASURED = {"cpu_seconds", "data_wait_seconds", "host_bytes", "host_mean_bytes", "host_peak_bytes", "plan_seconds", "rehearsal_seconds", "dry_run_seconds",
            "resident_peak_bytes", "samples_per_second", "seconds", "time", "rank_wait_seconds", "wait_seconds", "waited_seconds"}
MEASURED_IN_RUNS = MEASURED | {"step_seconds", "tokens_per_second"}


class Failed(Exception):
    """Raised if a program ends with an unexpected exit code."""


class Program:
    """An executable and the folder of its cases; each case has its own subfolder."""

    def __init__(self, vlmtrain, folder):
        self.vlmtrain, self.folder = vlmtrain, folder
        folder.mkdir(parents=True, exist_ok=True)

    def fresh_folder(self, name):
        folder = self.folder / name.replace("/", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def run(self, folder, words, expected=(0,), environment=None, stop_after=None):
        """Returns the exit code, one of `expected`, and stdout. Runs on one thread, so that the order of sums does not vary.
        `stop_after`: (file, lines); sends SIGTERM once the file has that many lines. Raises Failed for another exit code."""
        process = subprocess.Popen([str(word) for word in [self.vlmtrain, *words]], cwd=folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=(folder / "stderr.txt").open("a"), text=True,
                                   errors="replace", env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "VLMTRAIN_PAST_RUNS": "off", **(environment or {})})
        try:
            if stop_after:
                stop(process, *stop_after)
            out, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        if process.returncode not in expected:
            output = (folder / "stderr.txt").read_text().strip().splitlines() or ["no output"]
            raise Failed(f"exit code {process.returncode}: {output[-1]}")
        return process.returncode, out


def stop(process, path, lines):
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < lines):
        time.sleep(0.002)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)


def without(value, keys):
    if isinstance(value, dict):
        return {key: without(entry, keys) for key, entry in value.items() if key not in keys}
    return [without(entry, keys) for entry in value] if isinstance(value, list) else value


def page_data(path):
    """Returns the data of an HTML report, without its texts."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    return json.loads(match[1]) if match else None


def json_lines(path, keys=frozenset()):
    return [without(json.loads(line), keys) for line in path.read_text().splitlines()] if path.exists() else None


def json_file(path, keys=frozenset()):
    return without(json.loads(path.read_text()), keys) if path.exists() else None


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def tensors(path):
    """Returns {name: [data type, shape, digest of the bytes]} of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: [entry["dtype"], entry["shape"], digest(data[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]])]
            for name, entry in header.items()}


def checkpoint(folder):
    """Returns the digests of a checkpoint: each tensor separately, every other file as a whole."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or path.is_symlink():
            continue
        if path.suffix == ".safetensors":
            files[name] = tensors(path)
        elif name == "trainer_state/state.json":
            files[name] = json_file(path, MEASURED_IN_RUNS)
        else:
            files[name] = digest(path.read_bytes())
    return files


def last_checkpoint(run):
    folders = sorted((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    return {"checkpoints": [path.name for path in folders], "last": checkpoint(folders[-1])} if folders else None


def run_files(run):
    """Returns the contents of a run folder: metrics, events, predictions, samples, the plan, the last checkpoint."""
    config = run / "config.yaml"
    return {
        "metrics": json_lines(run / "metrics.jsonl", MEASURED_IN_RUNS),
        "epochs": json_lines(run / "epochs.jsonl", MEASURED_IN_RUNS),
        "events": json_lines(run / "events.jsonl", MEASURED_IN_RUNS),
        "predictions": json_lines(run / "predictions.jsonl", MEASURED_IN_RUNS),
        "samples": json_lines(run / "samples.jsonl"),
        "ledger": json_file(run / "ledger.json"),
        "plan": json_file(run / "plan.json", MEASURED),
        "config": config.read_text() if config.exists() else None,
        "weights": last_checkpoint(run),
    }


def trace(path):
    """Returns a virtual GPU's requests: the count of each, and a digest of their sequence. The digest identifies custom kernels by
    the order of their first launches and by grid, block and shared bytes, so that it does not depend on their names."""
    if not path.exists():
        return None
    lines = path.read_text().splitlines()
    counts, custom, ordered = {}, {}, []
    for line in lines:
        request = readable(line)
        counts[request] = counts.get(request, 0) + 1
        if is_custom_kernel(line):
            number = custom.setdefault(line.rsplit(" ", 1)[1], len(custom))
            line = f"{line.rsplit(' ', 1)[0]} custom kernel {number}"
        ordered.append(line)
    return {"lines": len(lines), "in_order": digest("\n".join(ordered).encode()),
            "launches": sum(line.startswith("launch ") for line in lines), "counts": dict(sorted(counts.items()))}


def is_custom_kernel(line):
    return line.startswith("launch ") and line.rsplit(" ", 1)[1].startswith("_ZN8vlmtrain")


def readable(line):
    """Returns a trace's line without its sizes. A kernel has the identifiers of its mangled name and a digest that distinguishes its
    instances; a custom kernel all its identifiers and template numbers and, instead of the digest, its grid, block and shared bytes."""
    if not line.startswith("launch "):
        return re.sub(r"[ 0-9]+$", "", line)
    sizes, mangled = line.removeprefix("launch ").rsplit(" ", 1)
    numbers = re.findall(r"L[a-z](\d+)E", mangled)
    if is_custom_kernel(line):  # template numbers and substitutions are not lengths of names
        mangled = re.sub(r"L[a-z]\d+E|[ST]\d*_", " ", mangled)
    names, at = [], 0
    while match := re.compile(r"\d+").search(mangled, at):
        end = match.end() + int(match.group())
        word = mangled[match.end():end]
        at = end if re.fullmatch(r"[A-Za-z_]\w*", word) and len(word) == int(match.group()) else match.end()
        if at == end and word not in ("at", "native", "c10", "detail", "_GLOBAL__N_") and not word.startswith("_GLOBAL__"):
            names.append(word)
    if is_custom_kernel(line):
        return f"launch {' '.join(dict.fromkeys(names))} {' '.join(numbers)} {sizes}".replace("  ", " ")
    return f"launch {' '.join(dict.fromkeys(names))[:90]} {digest(mangled.encode())[:6]}"
