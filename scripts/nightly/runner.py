"""Runs the steps of a part within its seconds."""

import datetime
import os
import re
import signal
import subprocess
import time

from . import results

SECONDS_TO_END = 10  # from SIGTERM to SIGKILL


def machine():
    with open("/proc/cpuinfo") as file:
        model = re.search(r"^model name\s*:\s*(.*)$", file.read(), re.MULTILINE)
    return f"{model[1] if model else 'unknown processor'}, {os.cpu_count()} cores"


def end(process):
    """Ends a process and its children."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signal_number)
            process.wait(SECONDS_TO_END)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def run_step(root, step, log, seconds):
    """Returns passed, failed, or None after a timeout."""
    command = ["bash", "-euo", "pipefail", "-c", step.command]
    with open(log, "w") as output:
        process = subprocess.Popen(command, cwd=root, env=os.environ | step.environment, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            return "passed" if process.wait(seconds) == 0 else "failed"
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(process)


def run_steps(root, part, state, seconds):
    """Returns passed, failed, or unfinished after a timeout."""
    deadline = time.monotonic() + seconds
    for index, step in enumerate(part.steps):
        if state.outcome(step) is None:
            start = time.monotonic()
            log = state.path.parent / f"{index + 1:02}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            outcome = run_step(root, step, log, deadline - start) if start < deadline else None
            if outcome is None:
                print(f"nightly: {part.name}: out of time at step {index + 1} of {len(part.steps)}, {step.name}", flush=True)
                return "unfinished"
            state.record(step, outcome, time.monotonic() - start)
            note = f" (see {log.relative_to(root)})" if outcome == "failed" else ""
            print(f"nightly: {part.name}: {step.name} {outcome}, {time.monotonic() - start:.0f} s{note}", flush=True)
        if state.outcome(step) == "failed" and step.needed:
            return "failed"
    return "passed" if all(state.outcome(step) == "passed" for step in part.steps) else "failed"


def run(root, part, parts, seconds):
    """Runs a part, or resumes it, and writes its result. Returns passed, failed or unfinished."""
    state = results.State(root, part)
    outcome = run_steps(root, part, state, seconds)
    if outcome == "unfinished":
        return outcome
    reason = part.limits or ("" if state.is_clean else "its paths have uncommitted changes")
    if reason:
        print(f"nightly: {part.name}: no result is written: {reason}", flush=True)
    else:
        results.write_result(root, part, {
            "part": part.name,
            "outcome": outcome,
            "commit": state.commit,
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "seconds": sum(step["seconds"] for step in state.steps.values()),
            "steps": {name: {key: step[key] for key in ("outcome", "seconds")} for name, step in state.steps.items()},
        })
    state.start_over(outcome)
    return outcome
