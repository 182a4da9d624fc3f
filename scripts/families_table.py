"""Writes the table of tested capabilities per family at the top of docs/reference/models.md: python3 scripts/families_table.py REPORT…

    scripts/test.sh -R parity                                                             writes the reports
    python3 scripts/families_table.py build/release/tests/reports/parity.*.json           writes the table
    python3 scripts/families_table.py build/release/tests/reports/parity.*.json --check   exit code 1 if the page differs

A test records the family and the capability that it verifies (tests/parity/capability_record.h). A cell is yes if such tests exist and
all passed; a failed test is an error. Figures vary with the processor, so --check ignores them. Needs only the standard library.
"""

import argparse
import difflib
import json
import math
import re
import sys
from collections import defaultdict
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/models.md"
BEGIN, END = "<!-- scripts/families_table.py writes this table -->", "<!-- end of the table -->"
CAPABILITIES = ["full", "LoRA", "NF4", "merge", "several images", "video", "packs", "generate"]
ERRORS = {"logits": "logits_from_reference", "loss": "loss_from_reference", "gradients": "gradient_from_reference"}


def read_tests(report):
    """Returns the tests of a report of GoogleTest."""
    if not report.exists():
        sys.exit(f"{report}: the file does not exist; run scripts/test.sh -R parity")
    suites = json.loads(report.read_text())["testsuites"]
    return [test for suite in suites for test in suite["testsuite"]]


def find_name(test):
    return f'{test["classname"]}.{test["name"]}'


def find_families(tests):
    """Returns the families of the registry in its order, which tests/parity/family_capabilities_test.cpp records."""
    prefix = "family "
    families = [key[len(prefix):] for test in tests for key in test if key.startswith(prefix)]
    if not families:
        sys.exit("no test has recorded the families")
    return families


def find_evidence(tests):
    """Returns the capabilities that each family's passed tests verify, and their largest errors."""
    shown, worst = defaultdict(set), defaultdict(dict)
    failed = [find_name(test) for test in tests if test.get("failures")]
    if failed:
        sys.exit("these tests failed: " + ", ".join(failed))
    for test in tests:
        if test["result"] != "COMPLETED" or "shows" not in test:
            continue
        family, capability = test["family"], test["shows"]
        shown[family].add(capability)
        if capability == "parity":
            for column, key in ERRORS.items():
                if key in test:
                    worst[family][column] = max(worst[family].get(column, 0), float(test[key]))
    return shown, worst


def at_most(value):
    """Returns the value rounded up to one digit, as an upper bound."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(value))
    digit = math.ceil(round(value / 10**exponent, 6))
    return f"≤ {digit}e{exponent}" if digit < 10 else f"≤ 1e{exponent + 1}"


def short(family):
    """Returns the family without its remark in brackets."""
    return re.sub(r" \(.*\)$", "", family)


def make_table(tests):
    shown, worst = find_evidence(tests)
    unknown = set().union(*shown.values()) - set(CAPABILITIES) - {"parity"}
    if unknown:
        sys.exit(f"unknown capabilities in tests: {sorted(unknown)}")
    columns = ["`model_type`", *CAPABILITIES, *ERRORS]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for family in find_families(tests):
        marks = ["yes" if capability in shown[family] else "–" for capability in CAPABILITIES]
        errors = [at_most(worst[family].get(column)) for column in ERRORS]
        lines.append("| " + " | ".join([short(family), *marks, *errors]) + " |")
    return "\n".join(lines)


def split(page):
    """Returns the text before the table, the table, and the text after it."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        sys.exit(f"{PAGE}: needs one pair of {BEGIN} and {END} around the table")
    before, rest = page.split(BEGIN)
    table, after = rest.split(END)
    return before, table.strip(), after


def without_figures(table):
    return re.sub(r"≤ [0-9]+e-?[0-9]+", "≤", table)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    page = PAGE.read_text()
    before, written, after = split(page)
    result = make_table([test for report in arguments.reports for test in read_tests(report)])
    if not arguments.check:
        PAGE.write_text(f"{before}{BEGIN}\n\n{result}\n\n{END}{after}")
        print(result)
        return
    difference = list(difflib.unified_diff(without_figures(written).splitlines(), without_figures(result).splitlines(),
                                           str(PAGE), "results of the tests", lineterm="", n=0))
    if difference:
        sys.exit("\n".join(difference) + "\nscripts/families_table.py without --check rewrites it")


if __name__ == "__main__":
    main()
