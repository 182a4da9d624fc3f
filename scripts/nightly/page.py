"""Renders docs/benchmarks/nightly.md from the results."""

from pathlib import Path

from . import results

PAGE = Path("docs/benchmarks/nightly.md")
HEADER = """# Nightly results

Rendered by `scripts/nightly.sh --render` from the files in `docs/benchmarks/nightly`; do not edit. A result holds as long as the paths that its
part covers do not change: `scripts/nightly.sh --status` compares them. [testing.md](../testing.md) describes the parts.

| part | checks | outcome | minutes | date | commit | machine |
|---|---|---|---|---|---|---|
"""


def row(part, result):
    if result is None:
        return f"| `{part.name}` | {part.about} | no result | | | | |\n"
    minutes = f"{result['seconds'] / 60:.1f}"
    cells = [result["outcome"], minutes, result["date"], result["commit"][:8], result["machine"]]
    return f"| `{part.name}` | {part.about} | {' | '.join(cells)} |\n"


def render(root, parts):
    return HEADER + "".join(row(part, results.read_result(root, part)) for part in parts)


def write(root, parts):
    (root / PAGE).parent.mkdir(parents=True, exist_ok=True)
    (root / PAGE).write_text(render(root, parts))
