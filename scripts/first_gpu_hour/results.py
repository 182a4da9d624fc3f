"""What came of each check: a line of results.jsonl as soon as it is known, and report.md made of them anew each time."""

import json
import os
import time
from dataclasses import asdict, dataclass, field

PASSED, FAILED, MEASURED, DRY, SKIPPED, CUT = "passed", "FAILED", "measured", "dry run", "skipped", "out of time"
# A part is done when each of its checks has one of these.
FINAL = (PASSED, FAILED, MEASURED, DRY, SKIPPED)
NO_VALUES = "no values on a virtual card"


@dataclass
class Outcome:
    state: str
    text: str  # what was seen, in a sentence
    figures: dict = field(default_factory=dict)
    mend: str = ""  # of a failure: where to look


def passed(text, **figures):
    return Outcome(PASSED, text, figures)


def failed(text, mend, **figures):
    return Outcome(FAILED, text, figures, mend)


def measured(text, **figures):
    """A figure that nothing is held against."""
    return Outcome(MEASURED, text, figures)


def skipped(text):
    return Outcome(SKIPPED, text)


def dry(text=NO_VALUES, **figures):
    return Outcome(DRY, text, figures)


class Results:
    """The results of a folder, which a later call goes on with. The newest line of a check counts."""

    def __init__(self, folder, identity):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.identity = folder, identity
        self.path = folder / "results.jsonl"
        self.lines = []
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                try:
                    self.lines.append(json.loads(line))
                except json.JSONDecodeError:
                    pass  # the one that a cut-off left
            if not self.path.read_text().endswith("\n"):
                self.path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))

    def newest(self):
        """By part and check, of this device and this program alone."""
        return {(line["part"], line["check"]): line for line in self.lines if line["identity"] == self.identity}

    def is_done(self, part, check):
        line = self.newest().get((part, check))
        return line is not None and line["state"] in FINAL

    def add(self, part, check, outcome, seconds):
        line = {"part": part, "check": check, **asdict(outcome), "seconds": round(seconds, 2), "time": time.time(),
                "identity": self.identity}
        self.lines.append(line)
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.write_report()

    def write_report(self):
        partial = self.folder / "report.md.partial"
        partial.write_text(self.report())
        partial.replace(self.folder / "report.md")

    def counts(self):
        states = [line["state"] for line in self.newest().values()]
        return {state: states.count(state) for state in (PASSED, FAILED, MEASURED, DRY, SKIPPED, CUT) if state in states}

    def summary(self):
        return ", ".join(f"{count} {state}" for state, count in self.counts().items()) or "nothing was checked"

    def to_mend(self):
        return [line for line in self.newest().values() if line["state"] == FAILED]

    def report(self):
        text = f"# First hour on a GPU\n\n{self.identity['device']}; {self.identity['program']}\n\n{self.summary()}\n"
        mend = self.to_mend()
        if mend:
            text += "\n## What to mend\n\n" + "".join(
                f"- **{line['part']}: {line['check']}**: {line['text']}. Look at: {line['mend']}\n" for line in mend)
        by_part = {}
        for line in self.newest().values():
            by_part.setdefault(line["part"], []).append(line)
        for part, lines in by_part.items():
            text += f"\n## {part}\n\n| check | state | seconds | what was seen |\n|---|---|---|---|\n"
            text += "".join(f"| {line['check']} | {line['state']} | {line['seconds']:.1f} | {cell(line['text'])} |\n" for line in lines)
        return text


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")
