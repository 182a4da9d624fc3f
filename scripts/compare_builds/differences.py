"""Differences between two outcomes: nested dictionaries, lists and values of JSON."""

import re

# Paths of texts that a newer build may word differently. Their numbers are compared.
TEXTS = re.compile(r"(^|\.)(events\[\d+\]\.message|suggestions\[\d+\]\.text|plan\.card|plan\.gpu|timeline\.places\[\d+\]|communication\.links)$")


def between(old, new, place=""):
    """Returns a line per differing value, with its path. Numbers are compared exactly, texts of TEXTS by the numbers in them."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [line for key in [*old, *(key for key in new if key not in old)]
                for line in of_key(old, new, key, f"{place}.{key}" if place else str(key))]
    if isinstance(old, list) and isinstance(new, list):
        lines = [f"{place} has {len(old)} and {len(new)} entries"] if len(old) != len(new) else []
        return lines + [line for i, pair in enumerate(zip(old, new)) for line in between(*pair, f"{place}[{i}]")]
    if isinstance(old, str) and isinstance(new, str) and TEXTS.search(place):
        old_numbers, new_numbers = find_numbers(old), find_numbers(new)
        return [] if old_numbers == new_numbers else [f"{place} has the numbers {short(old_numbers)} → {short(new_numbers)}"]
    return [] if type(old) is type(new) and old == new else [f"{place} {short(old)} → {short(new)}"]


def find_numbers(text):
    """Returns the numbers in a text, in ascending order, since rewording may change their order."""
    return sorted(re.findall(r"\d+(?:\.\d+)?", text), key=float)


def of_key(old, new, key, place):
    if key not in new:
        return [f"{place} is gone (was {short(old[key])})"]
    if key not in old:
        return [f"{place} is new ({short(new[key])})"]
    return between(old[key], new[key], place)


def short(value):
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "…"
