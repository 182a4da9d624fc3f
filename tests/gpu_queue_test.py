"""Tests scripts/gpu_queue without a GPU and without the program: states, order, archive, page, packing."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "gpu_queue"))

import carried  # noqa: E402
import pack  # noqa: E402
import page  # noqa: E402
import runner  # noqa: E402
import state  # noqa: E402
from entries import ENTRIES  # noqa: E402
from harness import inputs, program, results  # noqa: E402
from harness.check import Check, Entry  # noqa: E402

# The command itself; its file is __main__.py.
SPEC = importlib.util.spec_from_file_location("gpu_queue_command", ROOT / "scripts" / "gpu_queue" / "__main__.py")
command = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(command)

GPU = {"gpu": "NVIDIA H200, 150 GB", "versions": {"driver": "1.2"}}


class RepositoryCase(unittest.TestCase):
    """A repository of two files, and a queue of two entries that depend on one each."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.results = self.folder / "results"
        self.results.mkdir()
        patch = mock.patch.object(inputs, "ROOT", self.folder)
        patch.start()
        self.addCleanup(patch.stop)
        self.git("init", "-q")
        self.commit("a.txt", "1")
        self.commit("b.txt", "1")
        self.first, self.second = (Entry(name, name.title(), 10, "", lambda bench: [], (f"{name}.txt",)) for name in "ab")

    def git(self, *words):
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
        subprocess.run(["git", "-C", self.folder, *identity, *words], check=True, capture_output=True)

    def commit(self, name, text):
        (self.folder / name).write_text(text)
        self.git("add", name)
        self.git("commit", "-q", "-m", name)

    def write_result(self, name, checks=(("x", results.PASSED),), complete=True, commit=None, device="cuda"):
        lines = [{"name": check, "state": outcome, "text": "", "figures": {}, "fix": "", "seconds": 1}
                 for check, outcome in checks]
        result = {"entry": name, "commit": commit or state.current_commit(), "date": "2026-01-01", "seconds": 1, "complete": complete,
                  "checks": lines, "device": device, **GPU}
        (self.results / f"{name}.json").write_text(json.dumps(result))

    def queue(self, packed=None):
        return state.Queue([self.first, self.second], self.results, packed)


class States(RepositoryCase):
    def test_an_entry_is_done_until_its_paths_change(self):
        self.assertEqual(self.queue().states["a"], state.NEVER)
        self.write_result("a")
        self.assertEqual(self.queue().states["a"], state.DONE)
        self.commit("b.txt", "2")
        self.assertEqual(self.queue().states["a"], state.DONE)
        (self.folder / "a.txt").write_text("not committed")
        self.assertEqual(self.queue().states["a"], state.STALE)
        self.commit("a.txt", "2")
        self.assertEqual(self.queue().states["a"], state.STALE)

    def test_a_commit_that_git_does_not_know_makes_a_result_stale(self):
        self.write_result("a", commit="0123456789ab")
        self.assertEqual(self.queue().states["a"], state.STALE)

    def test_a_result_of_changed_files_is_never_done(self):
        (self.folder / "b.txt").write_text("not committed")
        self.write_result("a")
        self.assertEqual(self.queue().states["a"], state.STALE)
        self.git("checkout", "b.txt")
        self.assertEqual(self.queue().states["a"], state.STALE)

    def test_different_changes_are_different_commits(self):
        commits = {state.current_commit()}
        for text in ("one", "two"):
            (self.folder / "b.txt").write_text(text)
            commits.add(state.current_commit())
        self.assertEqual(len(commits), 3)

    def test_a_broken_result_counts_as_not_measured(self):
        self.write_result("a")
        whole = (self.results / "a.json").read_text()
        for text in (whole[:40], "[]", "{}", whole.replace('"entry": "a"', '"entry": "b"'), whole.replace('"seconds": 1', '"seconds": null')):
            (self.results / "a.json").write_text(text)
            with contextlib.redirect_stderr(io.StringIO()) as error:
                self.assertEqual(self.queue().states["a"], state.NEVER)
            self.assertIn("a.json", error.getvalue())

    def test_unmeasured_entries_come_before_stale_ones(self):
        self.write_result("a")
        self.commit("a.txt", "2")
        self.assertEqual([entry.name for entry in self.queue().due()], ["b", "a"])
        self.write_result("b")
        self.assertEqual([entry.name for entry in self.queue().due()], ["a"])

    def test_finished_checks_of_the_same_gpu_are_kept(self):
        self.write_result("a", [("x", results.FAILED), ("y", results.CUT)], complete=False)
        queue = self.queue()
        self.assertEqual(queue.states["a"], state.INCOMPLETE)
        self.assertEqual([check["name"] for check in queue.finished_checks(self.first, GPU["gpu"])], ["x"])
        self.assertEqual(queue.finished_checks(self.first, "NVIDIA H100"), [])

    def test_results_that_are_not_collected_count(self):
        newer = self.folder / "newer"
        newer.mkdir()
        self.write_result("a")
        (self.results / "a.json").rename(newer / "a.json")
        queue = state.Queue([self.first, self.second], self.results, newer=newer)
        self.assertEqual([queue.states[name] for name in "ab"], [state.DONE, state.NEVER])
        self.assertEqual(state.Queue([self.first], self.results, newer=newer, device="cpu").states["a"], state.NEVER)
        self.commit("b.txt", "2")
        self.assertEqual(state.Queue([self.first], self.results, newer=newer).states["a"], state.NEVER)

    def test_a_packed_queue_needs_no_repository(self):
        self.write_result("a", [("x", results.PASSED), ("y", results.CUT)], complete=False)
        packed = json.loads(json.dumps(self.queue().to_pack()))
        subprocess.run(["rm", "-rf", self.folder / ".git"], check=True)
        queue = self.queue(packed)
        self.assertEqual([entry.name for entry in queue.due()], ["a", "b"])
        self.assertEqual(len(queue.finished_checks(self.first, GPU["gpu"])), 1)


class FakeBench:
    """A Bench with only the members that the runner uses."""

    def __init__(self, out):
        self.out, self.device, self.clock, self.threads = out, "cuda", program.Clock(100), None


class Runner(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.bench = FakeBench(Path(temporary.name))
        patch = mock.patch.object(runner, "say")
        patch.start()
        self.addCleanup(patch.stop)

    def entry(self, *checks, jobs=1):
        return Entry("name", "Title", 10, "", lambda bench: list(checks), (), jobs=jobs)

    def run_entry(self, entry, seconds=100, **options):
        return runner.run_entry(entry, self.bench, GPU, "commit", seconds, **options)

    def test_every_outcome_is_written_before_the_next_check(self):
        seen = []

        def look(bench):
            path = bench.out / "name.json"
            seen.append(len(json.loads(path.read_text())["checks"]) if path.exists() else 0)
            return results.measured("one", figure=1)

        result = self.run_entry(self.entry(Check("x", 1, look), Check("y", 1, look)))
        self.assertEqual(seen, [0, 1])
        self.assertTrue(result["complete"])
        self.assertEqual(result["checks"][1]["figures"], {"figure": 1})

    def test_a_check_that_breaks_does_not_end_the_entry(self):
        def broken(_):
            raise KeyError("x")

        fine = Check("y", 1, lambda _: results.passed("fine"))
        result = self.run_entry(self.entry(Check("x", 1, broken), fine, jobs=2))
        self.assertEqual(sorted(check["state"] for check in result["checks"]), [results.FAILED, results.PASSED])
        self.assertTrue(result["complete"])

    def test_a_check_without_its_seconds_is_cut_and_the_entry_incomplete(self):
        result = self.run_entry(self.entry(Check("x", 50, lambda _: results.passed("fine"))), seconds=10)
        self.assertEqual([check["state"] for check in result["checks"]], [results.CUT])
        self.assertFalse(result["complete"])

    def test_finished_checks_are_not_repeated(self):
        finished = [{"name": "x", "state": results.PASSED}]
        result = self.run_entry(self.entry(Check("x", 1, lambda _: self.fail("repeated")), Check("y", 1, lambda _: results.passed("fine"))),
                                finished=finished)
        self.assertEqual([check["name"] for check in result["checks"]], ["x", "y"])
        self.assertTrue(result["complete"])

    def test_checks_that_run_again_replace_their_results_alone(self):
        entry = self.entry(Check("one", 1, lambda _: results.passed("new")), Check("two", 1, lambda _: results.passed("new")))
        queue = mock.Mock(commit="commit")
        queue.finished_checks.return_value = [{"name": name, "state": results.PASSED, "text": "old"} for name in ("one", "two")]
        entry = dataclasses.replace(entry, unusable=lambda bench: "")
        done, _ = runner.run_queue(queue, [entry], self.bench, GPU, 100, self.bench.out / "a.tar.gz", again=True, only="two")
        self.assertEqual([(check["name"], check["text"]) for check in done[0]["checks"]], [("one", "old"), ("two", "new")])
        self.assertTrue(done[0]["complete"])

    def test_programs_end_with_the_queue(self):
        ended = []
        thread = threading.Thread(target=lambda: ended.append(program.run(["bash", "-c", "sleep 100 & wait"], program.Clock(60))))
        thread.start()
        while not program.RUNNING:
            time.sleep(0.01)
        program.end_all()
        thread.join(timeout=20)
        self.assertEqual(ended[0].code, -signal.SIGKILL)

    def test_attachments_above_the_limit_are_left_out_of_the_archive(self):
        (self.bench.out / "name.json").write_text("{}")
        (self.bench.out / "attachments").mkdir()
        (self.bench.out / "attachments" / "log").write_bytes(b"x")
        for limit, expected in ((runner.ARCHIVE_BYTES, ["name.json", "attachments/log"]), (1, ["name.json"])):
            with mock.patch.object(runner, "ARCHIVE_BYTES", limit):
                runner.write_archive(self.bench.out, self.bench.out / runner.ARCHIVE)
            with tarfile.open(self.bench.out / runner.ARCHIVE) as archive:
                self.assertEqual(archive.getnames(), expected)


class Collecting(unittest.TestCase):
    """Archives that `collect` reads."""

    def read(self, members):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.tar.gz"
            with tarfile.open(path, "w:gz") as archive:
                for name, content in members.items():
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
            return command.read_archive(path)

    def result(self, **changes):
        check = {"name": "x", "state": results.PASSED, "text": "", "figures": {}, "fix": "", "seconds": 1}
        return json.dumps({"entry": "media", "commit": "c", "date": "2026-01-01", "gpu": "H200", "device": "cuda", "seconds": 1, "complete": True,
                           "checks": [check], **changes}).encode()

    def test_results_of_entries_are_found(self):
        commits = self.read({"./media.json": self.result(), "attachments/log.txt": b"x", "../media.json": b"x", "other.json": b"x"})
        self.assertEqual(list(commits), ["media"])

    def test_fewer_checks_do_not_replace_more(self):
        check = json.loads(self.result())["checks"][0]
        late = {**check, "state": results.CUT}
        whole, most, few = ({"complete": complete, "checks": checks}
                            for complete, checks in ((True, [check]), (False, [check, check, late]), (False, [check, late, late])))
        for present, result, expected in ((whole, most, True), (most, few, True), (few, most, False), (most, whole, False), (few, few, False)):
            self.assertEqual(command.has_more(present, result), expected)

    def test_broken_results_are_refused(self):
        for content in (b"", b"[]", self.result()[:50], self.result(entry="ranks"), self.result(commit=""), self.result(checks=[{}]),
                        self.result(seconds="1")):
            with self.assertRaisesRegex(ValueError, "media.json"):
                self.read({"media.json": content})


class Ending(unittest.TestCase):
    def test_a_chosen_check_without_time_remains(self):
        parser = mock.Mock()
        parser.error.side_effect = ValueError
        with mock.patch.object(command, "say"):
            self.assertEqual(command.finish(mock.Mock(only="x"), parser, [], True), 3)
        with self.assertRaises(ValueError):
            command.finish(mock.Mock(only="x"), parser, [], False)


class Entries(unittest.TestCase):
    def test_paths_exist(self):
        for entry in ENTRIES:
            for path in entry.paths:
                self.assertTrue((ROOT / path).exists(), f"{entry.name}: {path}")

    def test_names_are_unique_and_results_belong_to_entries(self):
        names = [entry.name for entry in ENTRIES]
        self.assertEqual(len(names), len(set(names)))
        for path in state.RESULTS.glob("*.json"):
            self.assertIn(path.stem, names)

    def test_each_result_has_a_section(self):
        text = page.render(ENTRIES)
        for entry in ENTRIES:
            measured = state.read_result(state.RESULTS, entry.name) is not None
            self.assertEqual(f'<a id="{entry.name}">' in text, measured, entry.name)


class Packing(RepositoryCase):
    def stage(self, name, content):
        folder = self.folder / "build" / name
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(content)
        (folder / "link").symlink_to("file")
        archive = folder.with_name(f"{name}.tar.xz")
        carried.compress(folder, archive)
        return archive

    def test_pieces_of_several_calls_are_joined(self):
        content = random.Random(1).randbytes(300_000)
        archives = [self.stage("small", b"x"), self.stage("large", content)]
        calls = carried.write_calls(archives, 100_000, self.folder / "calls")
        self.assertEqual([call.name for call in calls], ["call-1", "call-2", "call-3", "call-4"])
        for call in calls:
            self.assertLessEqual(pack.measure_size(call.iterdir()), 100_000)
        results_folder = self.folder / "kept"
        for call in calls:
            arrived = self.folder / f"there-{call.name}"
            arrived.mkdir()
            call.rename(arrived / call.name)
            names = carried.receive(arrived, results_folder)
            self.assertEqual(names, ["small"] if call != calls[-1] else ["large", "small"])
        self.assertEqual((results_folder / "carried" / "large" / "link").read_bytes(), content)

    def test_a_folder_that_changed_replaces_the_kept_one(self):
        results_folder = self.folder / "kept"
        for content in (b"old", b"new"):
            shutil.rmtree(self.folder / "build", ignore_errors=True)
            carried.write_calls([self.stage("portable", content)], 10_000, self.folder / "calls")
            carried.receive(self.folder / "calls", results_folder)
            self.assertEqual((results_folder / "carried" / "portable" / "file").read_bytes(), content)

    def test_every_call_has_the_state_and_fits(self):
        (self.folder / ".gitignore").write_text("build/\ncalls/\n")
        with mock.patch.object(pack, "STAGE", self.folder / "build"), mock.patch.object(pack, "MARGIN_BYTES", 10_000), \
                mock.patch.object(pack, "LIMIT_BYTES", 200_000):
            self.stage("large", random.Random(1).randbytes(300_000))
            lines = pack.write_calls(["large"], self.queue(), self.folder / "calls")
        self.assertEqual([line.partition(":")[0] for line in lines if line.startswith("call")], ["call-1", "call-2"])
        self.assertIn("keep", lines[-2])
        self.assertIn("--seconds 540", lines[-1])
        for call in (self.folder / "calls").iterdir():
            self.assertEqual(json.loads((call / "queue.json").read_text())["entries"]["a"]["state"], state.NEVER)

    def test_the_checkout_is_reduced_and_restored(self):
        self.commit("keep.txt", "1")
        (self.folder / "src").mkdir()
        self.commit("src/code.cpp", "1")
        pack.reduce_checkout(["portable"])
        self.assertFalse((self.folder / "src" / "code.cpp").exists())
        self.assertTrue((self.folder / "keep.txt").exists())
        pack.restore_checkout()
        self.assertTrue((self.folder / "src" / "code.cpp").exists())


if __name__ == "__main__":
    unittest.main()
