#!/usr/bin/env python3
"""Compares scans per second and resident memory of vlmtrain's reader with nibabel and MONAI, alternating in one run.
Needs the packages of tests/parity/reference/requirements.txt and build/release/read_volumes.

    compare_monai_volumes.py [--pairs 5] [--seconds 4] [--folder DIR]

The scans are synthetic: 256 x 256 x 180 int16 voxels, as .nii.gz and .nii. Prints the table of docs/benchmarks/results.md.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PIPELINES = ("whole", "spacing", "percentile")
PROGRAM = Path(__file__).resolve().parents[1] / "build" / "release" / "read_volumes"


def draw(folder: Path) -> dict[str, list[str]]:
    import nibabel as nib
    import numpy as np

    result: dict[str, list[str]] = {".nii.gz": [], ".nii": []}
    x, y, z = np.mgrid[0:256, 0:256, 0:180].astype(np.float32)
    for seed in range(2):
        head = 700 * np.exp(-(((x - 128) / 80) ** 2 + ((y - 120) / 95) ** 2 + ((z - 90) / 65) ** 2) * 1.5)
        values = head + np.random.default_rng(seed).normal(0, 12, head.shape)
        values[values < 40] = 0
        affine = np.array([[-1.0, 0, 0, 120], [0, 1, 0, -130], [0, 0, 1.1, -90], [0, 0, 0, 1]])
        for ending, files in result.items():
            files.append(str(folder / f"{seed}{ending}"))
            if not Path(files[-1]).exists():
                nib.save(nib.Nifti1Image(values.astype(np.int16), affine), files[-1])
    return result


def pipeline(kind: str):
    import monai.transforms as mt

    size = (96, 96, 96)
    place = (mt.Spacing((1.5, 1.5, 1.5), mode="bilinear", padding_mode="border", align_corners=False) if kind == "spacing"
             else mt.Resize(size, mode="trilinear", align_corners=False))
    scale = mt.ScaleIntensityRangePercentiles(0.5, 99.5, 0, 1, clip=True) if kind == "percentile" else mt.NormalizeIntensity()
    return mt.Compose([mt.LoadImage(image_only=True), mt.EnsureChannelFirst(), mt.Orientation("RAS", labels=None), place, scale,
                       mt.ResizeWithPadOrCrop(size)])


def work(kind: str, seconds: float, scans: list[str]) -> None:
    """Runs one MONAI worker: one process with one thread, as in a DataLoader."""
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    run = pipeline(kind)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print("ready", flush=True)
    sys.stdin.readline()
    start, done, value = time.time(), 0, 0.0
    while time.time() - start < seconds:
        volume = run(scans[done % len(scans)])
        value = float(volume.as_tensor().contiguous().view(-1)[volume.numel() // 2 + 48 * 97])
        done += 1
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps({"volumes": done, "seconds": time.time() - start, "checksum": value, "before_mb": before, "most_mb": most}))


def theirs(kind: str, cores: int, seconds: float, scans: list[str]) -> dict:
    command = [sys.executable, __file__, "--worker", kind, "--seconds", str(seconds), *scans]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, **pipes) for _ in range(cores)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    each = [json.loads(worker.communicate()[0]) for worker in workers]
    return {"rate": sum(e["volumes"] / e["seconds"] for e in each), "before_mb": sum(e["before_mb"] for e in each),
            "most_mb": sum(e["most_mb"] for e in each)}


def ours(kind: str, cores: int, seconds: float, scans: list[str]) -> dict:
    measurements = json.loads(subprocess.run([PROGRAM, kind, str(cores), str(seconds), *scans], check=True, capture_output=True).stdout)
    return {"rate": measurements["volumes"] / measurements["seconds"], **measurements}


def shown(rates: list[float]) -> str:
    return f"{statistics.median(rates):.1f} ({', '.join(f'{rate:.1f}' for rate in sorted(rates))})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--worker")
    parser.add_argument("scans", nargs="*")
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.seconds, arguments.scans)
        return
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="volumes"))
    folder.mkdir(parents=True, exist_ok=True)
    scans = draw(folder)
    processor = next(line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line)
    print(f"{processor}, load {os.getloadavg()[0]:.1f} at the start\n")
    print("| scans | pipeline | cores | vlmtrain, volumes/s | nibabel + MONAI, volumes/s | ratio of medians | MB resident, vlmtrain: "
          "before, most | MONAI: before, most |\n|---|---|---|---|---|---|---|---|")
    for ending, files in scans.items():
        for kind in PIPELINES:
            for cores in (1, 2):
                runs: dict[str, list[dict]] = {"ours": [], "theirs": []}
                for _ in range(arguments.pairs):
                    runs["ours"].append(ours(kind, cores, arguments.seconds, files))
                    runs["theirs"].append(theirs(kind, cores, arguments.seconds, files))
                rates = {side: [r["rate"] for r in each] for side, each in runs.items()}
                ratio = statistics.median(rates["ours"]) / statistics.median(rates["theirs"])
                memory = {side: f"{max(r['before_mb'] for r in each):.0f}, {max(r['most_mb'] for r in each):.0f}"
                          for side, each in runs.items()}
                print(f"| `{ending}` | {kind} | {cores} | {shown(rates['ours'])} | {shown(rates['theirs'])} | {ratio:.2f} | "
                      f"{memory['ours']} | {memory['theirs']} |", flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
