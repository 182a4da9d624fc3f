#!/usr/bin/env python3
"""Checks that names and texts use the words of the field, and that files and folders stay small.

    vocabulary.py CHECKOUT [--prose] [--rules RULE,…]

Fails for a banned identifier, a banned word in code, comments or messages, a function whose name ends in a preposition, a source file
above 400 lines, a C++ source below 30, a folder above 25 files. Words that are discouraged in prose are counted (--prose lists them) and never fail.
--rules checks only these of identifier, preposition, text, file, folder. tests/vocabulary_allowed.tsv holds the exceptions, each with
its reason; an unused entry fails.
"""

import argparse
import bisect
import collections
import re
import sys
from pathlib import Path

from git_files import tracked_files

# Participles that replace a noun, which the reader would have to guess.
PARTICIPLES = frozenset("asked begun chosen counted drawn found given gone held kept lent made owed said sought taken told tried wanted".split())
# Private words, each with the field's word.
PRIVATE_WORDS = {
    "anew": "again", "beside": "next to", "behind": "after", "card": "gpu", "cards": "gpus", "foresight": "forecast", "foreseen": "forecast",
    "frugal": "min_memory", "mend": "fix", "picture": "image", "pictures": "images", "rehearsal": "dry run", "rehearsals": "dry runs",
    "rehearse": "dry run", "rehearsed": "dry run", "remedies": "suggestions", "remedy": "suggestion", "twin": "look-ahead",
    "unwatched": "untracked", "whither": "to", "elsewhere": "external",
}
# Patterns of words that may not occur in comments and messages, each with its replacement.
BANNED_TEXT = {
    r"rehears\w*": "dry run", r"twins?": "look-ahead", r"anew": "again", r"mend(s|ed|ing)?": "fix", r"remed(y|ies)": "suggestion",
    r"cards?": "GPU",
}
DISCOURAGED_TEXT = ("behind", "beside", "hear", "hears", "is left", "is none", "knows", "picture", "pictures", "says", "tells", "told", "wants")
PREPOSITIONS = "after among as at before behind beside between by for from in into of on over than through to under upon with without".split()
# Functions of libraries.
LIBRARY_FUNCTIONS = frozenset("""all_of any_of copy_from ends_with expand_as find_first_not_of find_first_of find_last_not_of find_last_of
    flush_on format_to from_chars get_to is_alias_of none_of pack_into parallel_for relative_to reshape_as resize_as sleep_for starts_with
    symlink_to type_as unpack_from vformat_to view_as wait_for""".split())
RULES = ("identifier", "preposition", "text", "file", "folder")
MAX_LINES, MAX_FILES = 400, 25
MIN_SOURCE_LINES = 30  # of .cpp and .cu files; headers may be shorter

CODE_ROOTS = ("src/", "include/", "tests/", "bench/", "scripts/", "cmake/")
CXX = (".h", ".cpp", ".cu", ".cuh")
TEXTS = (".js", ".html", ".css", ".sh", ".cmake", "CMakeLists.txt")
# Files that keep their words: data, goldens, corpora of the fuzz targets, headers of other projects.
EXEMPT = re.compile(r"^tests/.+/(data|goldens?|corpus|corpora)/|/(gloo_headers|cuda_headers)/|^tests/(vocabulary|prose)|^CHANGELOG\.md$|^docs/")
ALLOWED = "tests/vocabulary_allowed.tsv"

TOKEN = re.compile(r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>R"(?P<d>[^\s()\\"]{0,16})\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*")"""
                   r"""|(?P<include>^[ \t]*\#[ \t]*include[^\n]*)|(?P<char>'(?:\\.|[^'\\\n])+')|(?P<number>\d(?:'?[\w.])*)"""
                   r"""|(?P<name>[A-Za-z_]\w*)(?P<call>\s*\()?|\s+|.""", re.S | re.M | re.X)
PYTHON_TOKEN = re.compile(r"""(?P<string>(?:[fFrRbB]{0,2})(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))|(?P<comment>\#[^\n]*)"""
                          r"""|(?P<name>[A-Za-z_]\w*)(?P<call>\()?|\s+|.""", re.S | re.X)


def split_words(name):
    """Returns the words of a snake_case or CamelCase name, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


class Findings:
    """The violations that the allow-list lacks."""

    def __init__(self, allowed, rules=RULES):
        self.allowed, self.rules, self.used, self.lines = allowed, rules, set(), []

    def add(self, rule, key, line):
        if rule not in self.rules:
            return
        if (rule, key) in self.allowed:
            self.used.add((rule, key))
        else:
            self.lines.append(line)


def load_allowed(path):
    """Returns {(rule, name or file)}; raises ValueError for an entry without a reason."""
    entries = set()
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        if line.strip() and not line.startswith("#"):
            fields = line.split("\t")
            if len(fields) != 3 or not fields[2].strip():
                raise ValueError(f"{path}:{number}: rule, name and reason are needed, separated by tabs")
            entries.add((fields[0], fields[1]))
    return entries


def check_name(name, is_call, place, findings):
    words = split_words(name)
    if name.strip("_") in PARTICIPLES:
        findings.add("identifier", name.strip("_"), f"{place}: `{name}` names a thing by a participle; name the thing")
    for word in words:
        if word in PRIVATE_WORDS:
            findings.add("identifier", name, f"{place}: `{name}` has the word {word}; the field says {PRIVATE_WORDS[word]}")
    if is_call and name.islower() and "_" in name.strip("_") and words[-1] in PREPOSITIONS and name not in LIBRARY_FUNCTIONS:
        findings.add("preposition", name, f"{place}: the function `{name}` ends in a preposition; start it with a verb")


def check_text(text, file, line_of, findings, prose):
    for pattern, better in BANNED_TEXT.items():
        for match in re.finditer(rf"(?<![\w-]){pattern}(?![\w-])", text, re.IGNORECASE):
            word = match[0].lower()
            findings.add("text", f"{file}:{word}", f"{file}:{line_of(match.start())}: “{word}”; write {better}")
    for word in DISCOURAGED_TEXT:
        prose[word] += len(re.findall(rf"\b{word}\b", text, re.IGNORECASE))


def check_source(file, text, findings, prose):
    newlines = [match.start() for match in re.finditer("\n", text)]

    def line_at(position):
        return bisect.bisect_left(newlines, position) + 1

    pattern = TOKEN if file.endswith(CXX) else PYTHON_TOKEN
    seen_names = set()
    for token in pattern.finditer(text):
        name = token["name"]
        if name and (name, bool(token["call"])) not in seen_names:
            seen_names.add((name, bool(token["call"])))
            check_name(name, bool(token["call"]), f"{file}:{line_at(token.start())}", findings)
        for kind in ("comment", "string"):
            if token[kind]:
                check_text(token[kind], file, lambda at, base=token.start(): line_at(base + at), findings, prose)


def check_sizes(root, files, findings):
    folders = collections.Counter()
    for file in files:
        if file.startswith(CODE_ROOTS) and file.endswith(CXX + (".py", ".sh", ".cmake")):
            folders[str(Path(file).parent)] += 1
            lines = (root / file).read_text(errors="replace").count("\n")
            if lines > MAX_LINES:
                findings.add("file", file, f"{file}: {lines} lines, {MAX_LINES} at most; split it by idea")
            if lines < MIN_SOURCE_LINES and file.endswith((".cpp", ".cu")):
                findings.add("file", file, f"{file}: {lines} lines, {MIN_SOURCE_LINES} at least; merge it with a related file")
    for folder, count in sorted(folders.items()):
        if count > MAX_FILES:
            findings.add("folder", folder, f"{folder}: {count} files, {MAX_FILES} at most; give it sub-folders")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--rules", default=",".join(RULES), help="rules to check (default: %(default)s)")
    parser.add_argument("--prose", action="store_true", help="list words that are discouraged in prose")
    args = parser.parse_args()
    try:
        allowed = load_allowed(args.root / ALLOWED)
    except ValueError as error:
        print(f"vocabulary: {error}", file=sys.stderr)
        return 2
    rules = args.rules.split(",")
    if unknown := [rule for rule in rules if rule not in RULES]:
        parser.error(f"unknown rule {unknown[0]}; the rules are {', '.join(RULES)}")
    allowed = {entry for entry in allowed if entry[0] in rules}
    findings, prose = Findings(allowed, rules), collections.Counter()
    files = [name for name in tracked_files(args.root) if not EXEMPT.search(name)]
    for file in files:
        if file.startswith(CODE_ROOTS) and file.endswith(CXX + (".py",)):
            check_source(file, (args.root / file).read_text(errors="replace"), findings, prose)
        elif file.startswith(CODE_ROOTS) and file.endswith(TEXTS):
            text = (args.root / file).read_text(errors="replace")
            check_text(text, file, lambda position, text=text: text.count("\n", 0, position) + 1, findings, prose)
    check_sizes(args.root, files, findings)
    for rule, key in sorted(allowed - findings.used):
        findings.lines.append(f"{ALLOWED}: nothing needs the entry {rule} {key}; remove it")
    print("\n".join(findings.lines))
    if args.prose:
        print("discouraged in prose: " + ", ".join(f"{word} {count}" for word, count in prose.most_common() if count))
    print(f"vocabulary: {len(findings.lines)} findings in {len(files)} files" if findings.lines else f"vocabulary: {len(files)} files follow it")
    return 1 if findings.lines else 0


if __name__ == "__main__":
    sys.exit(main())
