#!/usr/bin/env python3
"""Tests scripts/nightly on a temporary repository: recorded, resumed and stale results.

    nightly_test.py CHECKOUT
"""
import ast
import contextlib
import io
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

CHECKOUT = pathlib.Path(sys.argv.pop()).resolve()
sys.path.insert(0, str(CHECKOUT / "scripts"))
sys.dont_write_bytecode = True

from nightly import __main__ as command  # noqa: E402
from nightly import parts, results, runner  # noqa: E402
from nightly.parts import Part, Step  # noqa: E402


def counting(name, then="true"):
    """Returns a step that counts its runs in the file `name`."""
    return Step(name, f"echo run >> ../{name}.count; {then}")


class NightlyTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name) / "checkout"
        self.root.mkdir()
        self.git("init", "--quiet")
        self.write(".gitignore", "build/\n")
        self.write("src/a.cpp", "a")
        self.commit()

    def git(self, *arguments):
        identity = ["-c", "user.name=nightly", "-c", "user.email=nightly@localhost"]
        subprocess.run(["git", "-C", self.root, *identity, *arguments], check=True, stdout=subprocess.DEVNULL)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "change")

    def part(self, *steps, **more):
        return Part("part", "checks something", ("src",), steps, **more)

    def run_part(self, part, seconds=20.0):
        with contextlib.redirect_stdout(io.StringIO()):
            return runner.run(self.root, part, [part], seconds)

    def exhaust_time(self, name, part):
        """Runs the part as if its seconds ended in the step `name`."""
        whole = runner.run_step

        def run_step(root, step, *rest):
            return None if step.name == name else whole(root, step, *rest)

        with unittest.mock.patch.object(runner, "run_step", run_step):
            self.assertEqual(self.run_part(part), "unfinished")

    def runs(self, name):
        path = self.root.parent / f"{name}.count"
        return len(path.read_text().split()) if path.exists() else 0

    def status(self, part):
        return results.status(self.root, part)

    def test_a_result_holds_until_its_paths_change(self):
        part = self.part(counting("one"))
        self.assertEqual(self.status(part), "never")
        self.assertEqual(self.run_part(part), "passed")
        self.assertEqual(self.status(part), "passed")
        self.write("docs/page.md", "outside of the paths")
        self.commit()
        self.assertEqual(self.status(part), "passed")
        self.write("src/a.cpp", "changed, not committed")
        self.assertEqual(self.status(part), "stale")
        self.commit()
        self.assertEqual(self.status(part), "stale")
        self.assertEqual(self.run_part(part), "passed")
        self.assertEqual(self.status(part), "passed")
        self.assertEqual(self.runs("one"), 2)

    def test_a_result_of_an_unknown_commit_is_stale(self):
        part = self.part(counting("one"))
        self.run_part(part)
        results.write_result(self.root, part, results.read_result(self.root, part) | {"commit": "0" * 40})
        self.assertEqual(self.status(part), "stale")

    def test_out_of_time_resumes_at_the_step_that_was_stopped(self):
        part = self.part(counting("one"), counting("two", "test -e ../enough || sleep 60"), counting("three"))
        start = time.monotonic()
        self.assertEqual(self.run_part(part, seconds=1.5), "unfinished")
        self.assertLess(time.monotonic() - start, 20)
        self.assertEqual(self.status(part), "never")
        (self.root.parent / "enough").touch()
        self.assertEqual(self.run_part(part), "passed")
        self.assertEqual([self.runs(name) for name in ("one", "two", "three")], [1, 2, 1])
        self.assertEqual(list(results.read_result(self.root, part)["steps"]), ["one", "two", "three"])

    def test_steps_of_another_state_of_the_paths_do_not_count(self):
        part = self.part(counting("one"), counting("two"))
        self.exhaust_time("two", part)
        self.write("docs/page.md", "outside of the paths")
        self.commit()
        self.exhaust_time("two", part)
        self.assertEqual(self.runs("one"), 1)
        self.write("src/a.cpp", "changed")
        self.exhaust_time("two", part)
        self.exhaust_time("two", part)
        self.assertEqual(self.runs("one"), 3)

    def test_a_step_with_another_command_runs_again(self):
        self.exhaust_time("two", self.part(counting("one"), counting("two")))
        self.exhaust_time("two", self.part(counting("one", "echo more effort"), counting("two")))
        self.assertEqual(self.runs("one"), 2)

    def test_a_failure_is_recorded_and_runs_again_alone(self):
        part = self.part(counting("one"), counting("two", "test -e ../repaired"), counting("three"))
        self.assertEqual(self.run_part(part), "failed")
        self.assertEqual(self.status(part), "failed")
        self.assertEqual(results.read_result(self.root, part)["steps"]["two"]["outcome"], "failed")
        (self.root.parent / "repaired").touch()
        self.assertEqual(self.run_part(part), "passed")
        self.assertEqual([self.runs(name) for name in ("one", "two", "three")], [1, 2, 1])

    def test_nothing_runs_after_a_needed_step_that_failed(self):
        part = self.part(Step("build", "false", needed=True), counting("test"))
        self.assertEqual(self.run_part(part), "failed")
        self.assertEqual(self.runs("test"), 0)

    def test_no_result_of_changes_that_are_not_committed_or_of_less_than_the_whole(self):
        self.assertEqual(self.run_part(self.part(counting("one"), limits="fewer seconds")), "passed")
        self.write("src/a.cpp", "changed")
        self.assertEqual(self.run_part(self.part(counting("one"))), "passed")
        self.assertEqual(self.status(self.part()), "never")

    def test_the_whole_has_passed_if_every_part_has(self):
        first, second = self.part(counting("one")), Part("other", "", ("include",), (counting("two"),))
        self.run_part(first)
        with contextlib.redirect_stdout(io.StringIO()) as text:
            self.assertFalse(command.print_status(self.root, [first, second]))
            self.run_part(second)
            self.assertTrue(command.print_status(self.root, [first, second]))
        self.assertIn("2 of 2 parts have passed", text.getvalue())

    def test_names_choose_parts_by_their_beginning(self):
        result = [Part(name, "", (), ()) for name in ("asan-low", "asan-high", "fuzz")]
        self.assertEqual([part.name for part in command.select_parts(result, ["fuzz", "asan"])], ["fuzz", "asan-low", "asan-high"])
        with self.assertRaises(LookupError):
            command.select_parts(result, ["asa"])


class PartsTest(unittest.TestCase):
    def setUp(self):
        self.parts = parts.all_parts(CHECKOUT)

    def test_every_source_is_checked_by_clang_tidy_once(self):
        commands = [step.command.split() for part in self.parts if part.name.startswith("tidy-") for step in part.steps]
        files = sorted(word for words in commands for word in words if word.endswith(".cpp"))
        self.assertEqual(files, sorted(str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "src").rglob("*.cpp")))

    def test_paths_exist(self):
        for part in self.parts:
            for path in part.paths:
                self.assertTrue((CHECKOUT / path).exists(), f"{part.name}: {path}")

    def test_names_and_steps_are_unique(self):
        self.assertEqual(len({part.name for part in self.parts}), len(self.parts))
        for part in self.parts:
            self.assertEqual(len({step.name for step in part.steps}), len(part.steps), part.name)

    def test_results_are_of_these_parts(self):
        names = {f"{part.name}.json" for part in self.parts}
        self.assertLessEqual({path.name for path in (CHECKOUT / results.RESULTS).glob("*")}, names)

    def test_named_mutants_match_the_sources(self):
        tree = ast.parse((CHECKOUT / "scripts/mutants/named.py").read_text())  # parsed, since its imports need clang
        mutants = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
        for number, path, text, *_ in mutants:
            self.assertEqual((CHECKOUT / path).read_text().count(text), 1, f"mutant {number}: {text!r} in {path}")


if __name__ == "__main__":
    unittest.main()
