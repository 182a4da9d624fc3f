"""Outcomes of checks."""

from dataclasses import dataclass, field

PASSED, FAILED, MEASURED, DRY, SKIPPED, CUT = "passed", "FAILED", "measured", "dry run", "skipped", "out of time"
# An entry is complete when each of its checks has one of these.
FINAL = (PASSED, FAILED, MEASURED, DRY, SKIPPED)
NO_VALUES = "no values on a virtual GPU"


@dataclass
class Outcome:
    state: str
    text: str  # one sentence
    figures: dict = field(default_factory=dict)
    fix: str = ""  # after a failure: where to look


def passed(text, **figures):
    return Outcome(PASSED, text, figures)


def failed(text, fix, **figures):
    return Outcome(FAILED, text, figures, fix)


def measured(text, **figures):
    """Returns a figure without a bound."""
    return Outcome(MEASURED, text, figures)


def skipped(text):
    return Outcome(SKIPPED, text)


def dry(text=NO_VALUES, **figures):
    return Outcome(DRY, text, figures)

