#!/usr/bin/env python3
"""Draws docs/contributing/parts.svg: the parts of the code and which of them include which, from the includes in the sources.

    scripts/draw_parts.py [--check]

A part is in the row above all parts that it includes. An arrow that follows from others is omitted. --check compares the
drawing instead and fails if it differs (test draw_parts).
"""
import html
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DRAWING = ROOT / "docs/contributing/parts.svg"
INCLUDE = re.compile(r'^\s*#\s*include\s*"vlmtrain/([a-z0-9_]+)/', re.MULTILINE)
PURPOSES = {
    "app": "command line, one file per command", "train": "configuration, loop, checkpoints",
    "evaluation": "loss, answers, scores", "report": "run folder, HTML, TensorBoard",
    "planner": "dry runs, search, look-ahead", "nccl": "plug-in: NCCL", "distributed": "ranks, collectives",
    "engine": "step, losses, optimizers, generation", "models": "families, processors, adapters",
    "data": "samples, order, loader, ledger", "nn": "layers, attention, quantized weights",
    "kernels": "custom CUDA kernels", "vgpu": "stub CUDA libraries", "memory": "devices, allocations",
    "image": "images, videos, volumes, masks", "text": "tokenizers, chat templates",
    "hub": "models and data of the Hugging Face Hub", "curl": "plug-in: HTTPS by libcurl",
    "parquet": "plug-in: Parquet by Arrow", "io": "files, JSON, safetensors, data sets",
    "base": "errors, options, log, processes",
}
BOX_WIDTH, BOX_HEIGHT, GAP, ROW_HEIGHT, MARGIN = 230, 46, 24, 84, 12


def find_includes(parts: list[str]) -> dict[str, set[str]]:
    """Returns the parts that each part includes, without those that follow from others."""
    direct = {}
    for part in parts:
        folders = (ROOT / "src" / part, ROOT / "include/vlmtrain" / part)
        files = [file for folder in folders for file in folder.rglob("*") if file.suffix in (".h", ".cpp", ".cu", ".cuh")]
        direct[part] = {other for file in files for other in INCLUDE.findall(file.read_text())} & set(parts) - {part}
    reachable: dict[str, set[str]] = {}
    for part in parts:  # parts.txt lists included parts first
        reachable[part] = direct[part].union(*(reachable[other] for other in direct[part]))
    return {part: {other for other in direct[part] if not any(other in reachable[third] for third in direct[part])} for part in parts}


def draw(parts: list[str], includes: dict[str, set[str]]) -> str:
    rows: dict[str, int] = {}
    for part in parts:
        rows[part] = 1 + max((rows[other] for other in includes[part]), default=-1)
    by_row = [[part for part in parts if rows[part] == row] for row in range(max(rows.values()) + 1)]
    width = 2 * MARGIN + max(len(row) for row in by_row) * (BOX_WIDTH + GAP) - GAP
    height = 2 * MARGIN + len(by_row) * ROW_HEIGHT - (ROW_HEIGHT - BOX_HEIGHT)
    corners = {}
    for number, row in enumerate(by_row):
        left = (width - len(row) * (BOX_WIDTH + GAP) + GAP) / 2
        for position, part in enumerate(row):
            corners[part] = (left + position * (BOX_WIDTH + GAP), height - MARGIN - BOX_HEIGHT - number * ROW_HEIGHT)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
             '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
             '<path d="M0 0L8 4L0 8z" fill="#667"/></marker></defs>',
             f'<rect width="{width}" height="{height}" fill="#fff"/>']
    for part in parts:
        for other in sorted(includes[part]):
            x1, y1 = corners[part][0] + BOX_WIDTH / 2, corners[part][1] + BOX_HEIGHT
            x2, y2 = corners[other][0] + BOX_WIDTH / 2, corners[other][1]
            bend = (y2 - y1) / 2
            lines.append(f'<path d="M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}" '
                         'fill="none" stroke="#667" marker-end="url(#tip)"/>')
    for part in parts:
        x, y = corners[part]
        lines.append(f'<rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" fill="#eef1fb" stroke="#3f51b5"/>'
                     f'<text x="{x + BOX_WIDTH / 2:g}" y="{y + 19:g}" text-anchor="middle" font-size="15" font-weight="bold">{part}</text>'
                     f'<text x="{x + BOX_WIDTH / 2:g}" y="{y + 36:g}" text-anchor="middle" font-size="11.5">{html.escape(PURPOSES[part])}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> int:
    parts = (ROOT / "parts.txt").read_text().split()
    drawing = draw(parts, find_includes(parts))
    if "--check" not in sys.argv[1:]:
        DRAWING.write_text(drawing)
    elif not DRAWING.exists() or DRAWING.read_text() != drawing:
        print(f"{DRAWING}: differs from the includes; run scripts/draw_parts.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
