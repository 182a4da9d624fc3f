#!/usr/bin/env python3
"""Tests that tests/vocabulary.py finds each kind of violation in a small checkout, and none in a clean one."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "vocabulary.py"
CLEAN = "// Returns the number of images.\nint64_t count_images(const Batch& batch) { return batch.num_images; }\n"
PADDING = "\n" * 30  # sources have a minimum length


class Vocabulary(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        subprocess.run(["git", "init", "-q", self.root], check=True)

    def check(self, files, allowed=""):
        """Returns the exit code and output for a checkout of these files."""
        for name, text in {**files, "tests/vocabulary_allowed.tsv": allowed}.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + PADDING * (name.endswith(".cpp") and "short" not in name))
        subprocess.run(["git", "-C", self.root, "add", "-A"], check=True)
        ended = subprocess.run([sys.executable, SCRIPT, self.root], capture_output=True, text=True)
        return ended.returncode, ended.stdout + ended.stderr

    def assert_found(self, files, expected):
        code, output = self.check(files)
        self.assertEqual(code, 1, output)
        self.assertIn(expected, output)

    def test_a_clean_checkout_passes(self):
        self.assertEqual(self.check({"src/a.cpp": CLEAN, "scripts/b.py": "def load_images(path):\n    return path\n"})[0], 0)

    def test_participles_that_stand_for_a_noun(self):
        self.assert_found({"src/a.cpp": CLEAN + "int found = 0;\n"}, "src/a.cpp:3: `found` names a thing by a participle")
        self.assert_found({"scripts/b.py": "given = 1\n"}, "scripts/b.py:1: `given`")

    def test_private_words_in_identifiers(self):
        self.assert_found({"include/a.h": "struct PictureSizes {};\n"}, "`PictureSizes` has the word picture")
        self.assert_found({"tests/a.cpp": "int64_t card_bytes();\n"}, "`card_bytes` has the word card")

    def test_functions_that_end_in_a_preposition(self):
        self.assert_found({"src/a.cpp": "int64_t bytes_of(const Batch&);\n"}, "`bytes_of` ends in a preposition")
        self.assertEqual(self.check({"src/a.cpp": "bool b = std::ranges::any_of(all, is_used);\n"})[0], 0)

    def test_banned_words_in_comments_and_messages(self):
        self.assert_found({"src/a.cpp": "int a;  // the twin decides\n"}, "src/a.cpp:1: “twin”; write look-ahead")
        self.assert_found({"src/a.cpp": 'log("not enough memory on this card");\n'}, "write GPU")
        self.assert_found({"scripts/b.py": '"""Rehearses a step."""\n'}, "write dry run")

    def test_banned_words_in_pages_and_shell_scripts(self):
        self.assert_found({"src/report/a.js": "// first\nconst label = 'the card';\n"}, "src/report/a.js:2: “card”; write GPU")
        self.assert_found({"scripts/a.sh": "echo rehearse\n"}, "scripts/a.sh:1: “rehearse”; write dry run")

    def test_a_word_is_allowed_in_one_file(self):
        allowed = "text\tsrc/a.cpp:twin\talias of a config key\n"
        self.assertEqual(self.check({"src/a.cpp": 'f("twin");\n'}, allowed)[0], 0)
        code, output = self.check({"src/a.cpp": 'f("twin");\n', "src/b.cpp": 'f("twin");\n'}, allowed)
        self.assertEqual(code, 1)
        self.assertIn("src/b.cpp:1", output)

    def test_long_and_short_files_and_full_folders(self):
        self.assert_found({"src/long.h": "int a;\n" * 401}, "src/long.h: 401 lines")
        self.assert_found({"src/short.cpp": CLEAN}, "src/short.cpp: 2 lines, 30 at least")
        self.assert_found({f"src/full/{i}.h": "" for i in range(26)}, "src/full: 26 files")

    def test_allowed_names_need_a_reason_and_a_use(self):
        files = {"src/a.cpp": "int found = 0;\n"}
        self.assertEqual(self.check(files, "identifier\tfound\tan example\n")[0], 0)
        code, output = self.check(files, "identifier\tfound\tan example\nfile\tsrc/b.cpp\tanother issue splits it\n")
        self.assertEqual(code, 1)
        self.assertIn("nothing needs the entry file src/b.cpp", output)
        self.assertEqual(self.check(files, "identifier\tfound\n")[0], 2)

    def test_data_keeps_its_words(self):
        self.assertEqual(self.check({"tests/io/data/a.py": "found = 'a picture card'\n", "CHANGELOG.md": "twin\n"})[0], 0)


if __name__ == "__main__":
    unittest.main()
