#!/usr/bin/env python3
"""Tries the examples of README.md and docs/ with a tiny model.

    doc_examples.py VLMTRAIN CHECKOUT

- Each YAML block with sections of a configuration is planned, with the preset smolvlm-tiny or the one that a comment above the block
  names: <!-- planned with NAME -->. <!-- not planned: REASON --> excludes a block.
- Each `vlmtrain` command has options and configuration keys that exist.
- The commands of docs/getting-started/first-fine-tune.md run in order, up to the section with a real model, for two epochs.
"""

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from prose import list_pages

FIRST_FINE_TUNE = "docs/getting-started/first-fine-tune.md"
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
NOTE = re.compile(r"<!-- (?:planned with (?P<preset>[\w.-]+)|not planned: [^>]+) -->\s*\Z")


def find_blocks(text, language):
    """Yields (line number, content, text above) of the code blocks of a language."""
    for match in BLOCK.finditer(text):
        if match[2] == language:
            indent = len(match[1])
            content = "\n".join(line[indent:] for line in match[3].splitlines()) + "\n"
            yield text.count("\n", 0, match.start()) + 2, content, text[:match.start()]


def find_commands(block):
    """Yields the vlmtrain commands of a shell block as lists of words."""
    for line in block.replace("\\\n", " ").splitlines():
        if not line.lstrip().startswith("vlmtrain "):
            continue
        words = shlex.split(line, comments=True)
        yield words[:next((i for i, word in enumerate(words) if word in ("|", "&&", ";", "||", "&")), len(words))]


class Examples:
    def __init__(self, program, root, folder):
        self.program, self.root, self.folder, self.problems = program, root, folder, []
        self.sections = set(re.findall(r"^([a-z]+):$", self.run("options").stdout, re.MULTILINE))
        self.keys = set(re.findall(r"\b([a-z]+\.[a-z0-9_.]+)\b", self.run("options", "--markdown").stdout))
        self.options = {}

    def run(self, *arguments, folder=None):
        return subprocess.run([self.program, *arguments], cwd=folder or self.folder, capture_output=True, text=True, timeout=300)

    def find_options(self, command):
        if command not in self.options:
            words = [command] if command else []
            self.options[command] = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", self.run(*words, "--help").stdout))
        return self.options[command]

    def make_model(self, preset):
        if not (self.folder / preset).exists():
            self.run("init", "--preset", preset, "--out", preset)
        return preset

    def check_configuration(self, place, block, preset):
        (self.folder / "example.yaml").write_text(block)
        overrides = [f"model.path={self.make_model(preset)}", "data.train=train.json", "output.dir=run"]
        result = self.run("plan", "--config", "example.yaml", "--gpu-gb", "180", "--images", "1", *overrides)
        if result.returncode != 0:
            self.problems.append(f"{place}: exit code {result.returncode}: {result.stderr.strip()[:300]}")

    def check_command(self, place, words):
        command = words[1] if len(words) > 1 and re.fullmatch("[a-z]+", words[1]) else ""
        known = self.find_options(command) | (self.find_options("train") if not command else set())
        for word in words[1:]:
            option, key = word.split("=")[0], re.match(r"([a-z]+\.[a-z0-9_.]+)=", word)
            if option.startswith("-") and not option.lstrip("-").replace(".", "").isdigit() and option not in known:
                self.problems.append(f"{place}: {option} is no option of vlmtrain {command}")
            if key and key[1] not in self.keys:
                self.problems.append(f"{place}: {key[1]} is no key of the configuration")

    def check_page(self, page):
        text = page.read_text()
        name = page.relative_to(self.root)
        for line, block, above in find_blocks(text, "yaml"):
            first_key = re.search(r"^([a-z_]+):", block, re.MULTILINE)
            note = NOTE.search(above)
            if first_key and first_key[1] in self.sections and (not note or note["preset"]):
                self.check_configuration(f"{name}:{line}", block, note["preset"] if note else "smolvlm-tiny")
        for language in ("bash", "sh"):
            for line, block, _ in find_blocks(text, language):
                for words in find_commands(block):
                    self.check_command(f"{name}:{line}", words)

    def follow_first_fine_tune(self):
        text = (self.root / FIRST_FINE_TUNE).read_text().split("## Use a real model")[0]
        folder = self.folder / "first"
        folder.mkdir()
        subprocess.run(["/usr/bin/python3", self.root / "scripts/draw_ten_records.py"], cwd=folder, check=True)
        configuration = next(block for _, block, _ in find_blocks(text, "yaml"))
        (folder / "train.yaml").write_text(configuration.replace("epochs: 100", "epochs: 2"))
        for line, block, _ in find_blocks(text, "bash"):
            for words in find_commands(block):
                result = self.run(*words[1:], folder=folder)
                if result.returncode != 0:
                    self.problems.append(f"{FIRST_FINE_TUNE}:{line}: exit code {result.returncode}: {result.stderr.strip()[-300:]}")


def main():
    program, root = str(Path(sys.argv[1]).resolve()), Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        examples = Examples(program, root, Path(folder))
        for page in list_pages(root):
            examples.check_page(page)
        examples.follow_first_fine_tune()
    print("\n".join(examples.problems) or "documents: all examples are valid")
    return 1 if examples.problems else 0


if __name__ == "__main__":
    sys.exit(main())
