"""docs/benchmarks/gpu.md: all results of the queue on one page."""

from harness import inputs
from harness.results import CUT, FAILED
from state import RESULTS, is_complete, read_result

PAGE = inputs.ROOT / "docs" / "benchmarks" / "gpu.md"

INTRO = """# Measurements on a GPU

`scripts/gpu_queue.sh render` writes this page from the results in [gpu/](gpu). [gpu-queue.md](../gpu-queue.md) describes the queue.

## Seen and not seen

| entry | result | GPU | date | commit |
|---|---|---|---|---|
"""

FIRST_LEASES = """
Before the queue existed, an H200 was available for 12 minutes on 2026-11-26. [first-gpu-hour.md](first-gpu-hour.md) has its
figures: values of eight families against the CPU, three plans of SmolVLM-256M, custom kernels, and speed against transformers.
Everything that changed in the kernels, the step or the planner after that date has been checked on virtual GPUs and by emulation
only.
"""


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def summary(result):
    if result is None:
        return "not measured"
    states = [check["state"] for check in result["checks"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states) if state != CUT)
    return counts + ("" if is_complete(result) else "; incomplete")


def row(entry, result):
    where = f"{result['gpu']} | {result['date']} | {result['commit']}" if result else "– | – | –"
    link = f"[{entry.title}](#{entry.name})" if result else entry.title
    return f"| {link} | {summary(result)} | {where} |\n"


def section(entry, result):
    versions = ", ".join(f"{name} {version}" for name, version in result.get("versions", {}).items())
    text = (f'\n<a id="{entry.name}"></a>\n## {entry.title}\n\n{entry.shows}\n\n{result["gpu"]}, {result["date"]}, commit '
            f'{result["commit"]}' + (f", {result['seconds']:.0f} s" if result["seconds"] else "") + (f"; {versions}" if versions else "") + ".\n")
    if source := result.get("transcribed_from"):
        text += f"Transcribed from [{source}]({source.removeprefix('docs/benchmarks/')}), which is older than the queue.\n"
    text += "\n| check | state | seconds | result |\n|---|---|---|---|\n"
    for check in result["checks"]:
        fix = f" Look at: {cell(check['fix'])}" if check["state"] == FAILED else ""
        text += f"| {cell(check['name'])} | {check['state']} | {check['seconds']:.1f} | {cell(check['text'])}{fix} |\n"
    return text


def render(entries, folder=RESULTS):
    actual = [(entry, read_result(folder, entry.name)) for entry in entries]
    text = INTRO + "".join(row(entry, result) for entry, result in actual) + FIRST_LEASES
    return text + "".join(section(entry, result) for entry, result in actual if result)
