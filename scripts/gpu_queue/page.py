"""All results of the queue as Markdown."""

from harness.results import CUT, FAILED
from state import RESULTS, is_complete, read_result

INTRO = """# Measurements on a GPU

| entry | result | GPU | date | commit |
|---|---|---|---|---|
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
        text += f"Transcribed from {source} (git history), which is older than the queue.\n"
    text += "\n| check | state | seconds | result |\n|---|---|---|---|\n"
    for check in result["checks"]:
        fix = f" Look at: {cell(check['fix'])}" if check["state"] == FAILED else ""
        text += f"| {cell(check['name'])} | {check['state']} | {check['seconds']:.1f} | {cell(check['text'])}{fix} |\n"
    return text


def render(entries, folder=RESULTS):
    actual = [(entry, read_result(folder, entry.name)) for entry in entries]
    text = INTRO + "".join(row(entry, result) for entry, result in actual)
    return text + "".join(section(entry, result) for entry, result in actual if result)
