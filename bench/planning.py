"""Runs `vlmtrain plan` for the benchmarks that print tables of plans."""

import json
import os
import subprocess

DOES_NOT_FIT = 3  # exit code of vlmtrain plan


def plan(vlmtrain, arguments):
    """Returns the plan as JSON, also if the job does not fit."""
    command = [vlmtrain, "plan", *arguments, "--json"]
    environment = os.environ | {"VLMTRAIN_PAST_RUNS": "off"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, DOES_NOT_FIT):
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def describe_speed(planned):
    """Tokens per second, or a dash if the job does not fit."""
    return f"{planned['tokens_per_second']:,.0f}" if planned["fits"] else "–"
