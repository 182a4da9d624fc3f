#!/usr/bin/env python3
"""Renders every *.jinja of a folder with jinja2 (as transformers configures it) and with vlmtrain's interpreter.

    check_public_templates.py FOLDER [--program build/release/render_template] [--repeats 20] [--table FILE] [--show N]

Renders twelve conversations each (scripts/jinja_reference.py). A result is: equal, both reject, rejected by name (before
rendering), or different. Exit code 1 if any result is different. Files of equal content count once. FOLDER/SOURCES.tsv, if it
exists, gives the repository and path of each file for the table. Needs `pip install jinja2`; the program is built with
cmake --build --preset release --target render_template. The templates are third-party work and not part of this repository.
check_public_agents.py compares token ids and labels as well.
"""
import argparse
import collections
import hashlib
import json
import pathlib
import subprocess
import sys
import time

import jinja_reference


def reference(template, variables):
    try:
        return template.render(**variables)
    except Exception as error:  # jinja2 passes on any error of Python that a template causes
        return error


def measure_seconds(template, conversations, repeats):
    begin = time.perf_counter()
    for _ in range(repeats):
        for variables in conversations:
            reference(template, variables)
    return (time.perf_counter() - begin) / max(1, repeats * len(conversations))


def compare_result(ours, expected):
    if isinstance(expected, Exception) or "error" in ours:
        return "both refuse" if isinstance(expected, Exception) and "error" in ours else "different"
    return "equal" if ours["text"] == expected else "different"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--program", default="build/release/render_template")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--table", type=pathlib.Path, help="write a Markdown table to this file")
    parser.add_argument("--show", type=int, default=3, help="differences to show")
    arguments = parser.parse_args()
    sources = {}
    listing = arguments.folder / "SOURCES.tsv"
    if listing.exists():
        sources = {line.split("\t")[0]: line.split("\t")[1:3] for line in listing.read_text().splitlines() if line}

    conversations = jinja_reference.conversations()
    environment = jinja_reference.environment()
    totals, rows, ratios, times, shown, seen = collections.Counter(), [], [], [], 0, set()
    for file in sorted(arguments.folder.glob("*.jinja"), key=lambda file: (file.name not in sources, file.name)):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if digest in seen:
            continue
        seen.add(digest)
        source = file.read_bytes().decode()
        request = {"template": source, "name": file.name, "now": jinja_reference.NOW, "repeats": arguments.repeats,
                   "variables": list(conversations.values())}
        done = subprocess.run([arguments.program], input=json.dumps(request), capture_output=True, text=True, check=True)
        answer = json.loads(done.stdout)
        try:
            template = environment.from_string(source)
        except Exception as error:
            template = error
        counts = collections.Counter()
        for index, (name, variables) in enumerate(conversations.items()):
            expected = template if isinstance(template, Exception) else reference(template, variables)
            if "error" in answer:
                result = "both refuse" if isinstance(template, Exception) else "refused by name"
                ours = answer
            else:
                ours = answer["renders"][index]
                result = compare_result(ours, expected)
            counts[result] += 1
            if result in ("different", "refused by name") and shown < arguments.show:
                shown += 1
                print(f"--- {file.name}, {name}: {result}\n  ours:   {json.dumps(ours, ensure_ascii=False)[:1500]}\n"
                      f"  jinja2: {expected!r:.1500}", file=sys.stderr)
        totals += counts
        ratio = ""
        if not isinstance(template, Exception) and "error" not in answer and arguments.repeats:
            theirs = measure_seconds(template, list(conversations.values()), arguments.repeats)
            ratios.append(answer["seconds"] / theirs)
            times.append(answer["seconds"])
            ratio = f"{answer['seconds'] / theirs:.2f}"
        repository, path = sources.get(file.name, ["", file.name])
        words = ", ".join(f"{count} {result}" for result, count in sorted(counts.items()))
        rows.append(f"| {repository} | {path} | `{digest[:16]}` | {words} | {ratio} |")
        print(f"{file.name}: {words} {ratio}")
    head = ["| repository | path | sha256 (first 16) | of twelve conversations | time / jinja2's |", "|---|---|---|---|---|"]
    if arguments.table:
        arguments.table.write_text("\n".join(head + rows) + "\n")
    print(f"{len(rows)} templates: " + ", ".join(f"{count} {result}" for result, count in sorted(totals.items())))
    if ratios:
        ratios.sort()
        times.sort()
        print(f"time of a render: {1e6 * times[len(times) // 2]:.0f} µs in the median, {ratios[len(ratios) // 2]:.2f} of "
              f"jinja2's in the median, {ratios[-1]:.2f} at most")
    return 1 if totals["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
