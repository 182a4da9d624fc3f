"""Renamed JSON fields, config keys and kernels: a one-to-one table that is applied to the outcomes of the old build."""

import re
from pathlib import Path

TABLE = Path(__file__).resolve().parent / "renames.tsv"
KINDS = ("field", "field_alias", "page_field", "config", "kernel")
CUSTOM_KERNEL = "launch vlmtrain "  # prefix of custom kernels in a trace's counts


class NotOneToOne(Exception):
    """Raised if two names would map to one, which would hide a difference between them."""


def load(path=TABLE):
    """Returns {kind: {old: new}}. Raises NotOneToOne for a name that occurs twice on either side."""
    table = {kind: {} for kind in KINDS}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        kind, old, new = line.split("\t")
        if kind not in table:
            raise ValueError(f"{path}:{number}: unknown kind {kind}; the kinds are {', '.join(KINDS)}")
        group = {**table["field"], **table["field_alias"]} if kind.startswith("field") else table[kind]
        if old in group or new in group.values():
            raise NotOneToOne(f"{path}:{number}: {old} or {new} occurs in an earlier line")
        table[kind][old] = new
    return table


def apply(outcome, table):
    """Returns the old build's outcome with the new build's names. Raises NotOneToOne if it already has the new name."""
    if isinstance(outcome, list):
        return [apply(entry, table) for entry in outcome]
    if not isinstance(outcome, dict):
        return outcome
    renamed = {}
    for key, value in outcome.items():
        if key == "timeline":  # the data in a page, which only the page's script reads: one name each
            value = apply(value, {**table, "field": table["page_field"], "field_alias": {}})
        else:
            value = map_config(value, table["config"]) if key == "config" and isinstance(value, str) else apply(value, table)
        new = map_kernel(key, table["kernel"]) if key.startswith(CUSTOM_KERNEL) else table["field"].get(key, key)
        names = [new]
        alias = table["field_alias"].get(key)
        if alias and (alias not in outcome or outcome[alias] != outcome[key]):  # equal: the old build writes both
            names.append(alias)
        for name in names:
            if name in renamed or name != key and name in outcome:
                raise NotOneToOne(f"{name}: the old build has both this name and {key}")
            renamed[name] = value
    return renamed


def map_kernel(key, kernels):
    return " ".join(kernels.get(word, word) for word in key.split(" "))


def map_config(text, keys):
    """Returns a resolved config.yaml with renamed keys; a key may not move to another section."""
    section, lines = "", []
    for line in text.splitlines(keepends=True):
        if match := re.match(r"([a-z_]+):\s*$", line):
            section = match[1]
        elif match := re.match(r"(\s+)([a-z_0-9]+):", line):
            new = keys.get(f"{section}.{match[2]}")
            if new:
                line = f"{match[1]}{new.split('.', 1)[1]}{line[match.end(2):]}"
        lines.append(line)
    return "".join(lines)
