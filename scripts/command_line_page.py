#!/usr/bin/env python3
"""Writes docs/reference/command-line.md from `vlmtrain --help` and the help of each command.

    scripts/command_line_page.py VLMTRAIN [--check]

--check compares the page instead and fails if it differs (test command_line_page).
"""
import argparse
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs/reference/command-line.md"
HEAD = """# Command line

`scripts/command_line_page.py` writes this page from the program's own help.

```bash
vlmtrain --config train.yaml training.epochs=3    # the same as vlmtrain train --config …
vlmtrain COMMAND --help
```

- Arguments of the form `key=value` override keys of the configuration ([config](config.md)).
- `--json` prints one JSON object on stdout. Log messages go to stderr.
- [Exit codes](exit-codes-and-signals.md) are the same for all commands.
"""


def read_help(program: str, *command: str) -> str:
    return subprocess.run([program, *command, "--help"], check=True, capture_output=True, text=True).stdout


def make_page(program: str) -> str:
    overview = read_help(program)
    commands = re.findall(r"^  ([a-z]+) {2,}", overview.split("Subcommands:")[1], re.MULTILINE)
    page = HEAD
    for command in commands:
        page += f"\n## vlmtrain {command}\n\n```text\n{read_help(program, command).strip()}\n```\n"
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="VLMTRAIN")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    page = make_page(arguments.program)
    if not arguments.check:
        PAGE.write_text(page)
    elif PAGE.read_text() != page:
        print(f"{PAGE}: differs from the program's help; run scripts/command_line_page.py VLMTRAIN", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
