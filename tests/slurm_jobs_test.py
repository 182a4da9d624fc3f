#!/usr/bin/env python3
"""Checks that the jobs in scripts/slurm, each of which is self-contained, are equal from the marked line on.

    slurm_jobs_test.py CHECKOUT
"""
import pathlib
import sys

SAME_FROM_HERE = "# ---- The same in one_gpu.sbatch, one_node.sbatch, several_nodes.sbatch and array.sbatch from here on. ----\n"
IN_ALL_HEADERS = ["--signal=USR1@120", "--requeue", "--open-mode=append", "--time=04:00:00", "--cpus-per-task=8"]


def differences(folder: pathlib.Path) -> list[str]:
    jobs = {path.name: path.read_text() for path in sorted(folder.glob("*.sbatch"))}
    endings = {name: text.partition(SAME_FROM_HERE)[2] for name, text in jobs.items()}
    result = [f"{name}: its end differs from one_gpu.sbatch" for name, text in endings.items() if not text or text != endings["one_gpu.sbatch"]]
    for name, text in jobs.items():
        result += [f"{name}: lacks #SBATCH {option}" for option in IN_ALL_HEADERS if f"#SBATCH {option}\n" not in text]
        result += [f"{name}: has an option after the first command, which sbatch ignores"] * ("\n#SBATCH" in text.partition("set -uo")[2])
    return result


if __name__ == "__main__":
    problems = differences(pathlib.Path(sys.argv[1]) / "scripts/slurm")
    print("\n".join(problems) or "jobs: all ends are equal")
    sys.exit(bool(problems))
