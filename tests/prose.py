#!/usr/bin/env python3
"""Checks the prose of README.md and docs/ by the style guide (docs/contributing/style.md).

    prose.py CHECKOUT [--stats] [--files FILE…]

Fails for a sentence above 30 words, a mean above 18 words in a page, a sentence that begins with What, Who, Where, Of, Which or With
and is no question, a banned word, a line of prose above 100 columns, and a page or the documentation above its number of words.
--stats prints the numbers of each page. Code blocks, tables and inline code have no sentences; words count everywhere.
"""

import argparse
import re
import sys
from pathlib import Path

from vocabulary import BANNED_TEXT

MAX_SENTENCE_WORDS, MAX_MEAN_WORDS, MAX_COLUMNS = 30, 18, 100
MAX_WORDS = {"README.md": 450, "docs/how-to": 700, "docs/explanation": 2500}
MAX_TOTAL_WORDS = 45_000
OPENERS = ("What", "Who", "Where", "Of", "Which", "With")
# Words that may not occur, each with the field's word: those of code and messages, and some of prose alone.
BANNED = BANNED_TEXT | {
    r"pictures?": "image", r"beside": "next to", r"(says|tells|told|hears|knows|wants)": "reports, returns, has", r"is none": "does not exist",
    r"is left": "remains", r"(no longer|not any more)": "the present state", r"stand-ins?": "stub library", r"learnt": "label tokens",
    r"what (is|was) (asked|wanted)": "a noun",
}
# Pages that programs write.
GENERATED = ("docs/reference/config.md", "docs/reference/command-line.md")
FENCE = re.compile(r"^\s*(```|~~~)")
LIST_MARKER = re.compile(r"^([-*+]|\d+\.)\s+")


def blank_code(text):
    """Returns the lines of the text, those of code blocks empty."""
    lines, in_fence = [], False
    for line in text.splitlines():
        is_fence = bool(FENCE.match(line))
        lines.append("" if in_fence or is_fence else line)
        in_fence ^= is_fence
    return lines


def split_blocks(text):
    """Yields (line number, block): paragraphs and list items without code blocks, tables and headings."""
    block, start = [], 0
    for number, line in enumerate([*blank_code(text), ""], 1):
        stripped = line.strip()
        is_prose = stripped and not stripped.startswith(("#", "|", "<", "![", "!!!", "---"))
        if not is_prose or LIST_MARKER.match(stripped):
            if block:
                yield start, " ".join(block)
            block = []
        if is_prose:
            if not block:
                start = number
            block.append(LIST_MARKER.sub("", stripped))


def split_sentences(block):
    """Returns the sentences of a block, inline code as one word, links as their text."""
    block = re.sub(r"`[^`]*`", "CODE", block)
    block = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", block)
    block = re.sub(r"[*_]{1,2}", "", block)
    block = re.sub(r"\b(e\.g|i\.e|etc|vs|Fig|No|cf)\.", r"\1", block)
    return [sentence for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z\"“(])", block) if count_words(sentence)]


def count_words(text):
    return len(re.findall(r"[\w%€$°]+(?:[-'’./,:=][\w%]+)*", text))


def check_page(name, text):
    """Returns (findings, sentence lengths)."""
    findings, lengths = [], []
    for start, block in split_blocks(text):
        for sentence in split_sentences(block):
            words = count_words(sentence)
            lengths.append(words)
            short = sentence if len(sentence) < 90 else sentence[:87] + "…"
            if words > MAX_SENTENCE_WORDS:
                findings.append(f"{name}:{start}: {words} words, {MAX_SENTENCE_WORDS} at most: {short}")
            if sentence.split()[0].strip("“\"(") in OPENERS and not sentence.rstrip("”\")").endswith("?"):
                findings.append(f"{name}:{start}: begins with {sentence.split()[0]}: {short}")
    for number, line in enumerate(blank_code(text), 1):
        prose = re.sub(r"`[^`]*`|\([^()\s]*\)|<[^>]*>", "", line)
        for pattern, better in BANNED.items():
            for match in re.finditer(rf"(?<![\w-]){pattern}(?![\w-])", prose, re.IGNORECASE):
                findings.append(f"{name}:{number}: “{match[0]}”; write {better}")
        if name not in GENERATED and len(line) > MAX_COLUMNS and not line.lstrip().startswith(("|", "#", "![")) and " " in line.strip()[:MAX_COLUMNS - 2]:
            findings.append(f"{name}:{number}: {len(line)} columns, {MAX_COLUMNS} at most")
    if lengths and sum(lengths) / len(lengths) > MAX_MEAN_WORDS:
        findings.append(f"{name}: sentences of {sum(lengths) / len(lengths):.1f} words on average, {MAX_MEAN_WORDS} at most")
    return findings, lengths


def list_pages(root):
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--stats", action="store_true", help="print the numbers of each page")
    parser.add_argument("--files", nargs="+", type=Path, help="only these pages")
    args = parser.parse_args()
    findings, total = [], 0
    for page in args.files or list_pages(args.root):
        name = str(page.resolve().relative_to(args.root.resolve()))
        text = page.read_text()
        words = len(text.split())
        total += words
        page_findings, lengths = check_page(name, text)
        findings += page_findings
        for prefix, most in MAX_WORDS.items():
            if name.startswith(prefix) and words > most:
                findings.append(f"{name}: {words} words, {most} at most")
        if args.stats:
            mean = sum(lengths) / max(1, len(lengths))
            print(f"{words:6} words {len(lengths):4} sentences, mean {mean:4.1f}, longest {max(lengths, default=0):3}  {name}")
    if total > MAX_TOTAL_WORDS and not args.files:
        findings.append(f"documentation: {total} words, {MAX_TOTAL_WORDS} at most; delete")
    print("\n".join(findings))
    print(f"prose: {len(findings)} findings, {total} words")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
