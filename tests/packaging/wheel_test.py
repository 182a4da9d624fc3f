#!/usr/bin/env python3
"""The wheel's form, and what its launcher does on hosts that it is not for.

    wheel_test.py FOLDER_OF_THE_PROGRAM FOLDER_OF_LIBTORCH

The program is whichever was built. Whether a portable one finds LibTorch in a real environment is scripts/test_wheel.sh's affair.
"""

import base64
import csv
import hashlib
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM, LIBTORCH = Path(sys.argv[1]), Path(sys.argv[2])
TORCH = (ROOT / "cmake/libtorch.version").read_text().strip()


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, **options)


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.out = Path(cls.folder.name)
        built = run(sys.executable, ROOT / "packaging/build_wheel.py", "--program", PROGRAM, "--out", cls.out)
        assert built.returncode == 0, built.stderr
        (cls.path,) = cls.out.glob("*.whl")
        with zipfile.ZipFile(cls.path) as archive:
            cls.files = {entry.filename: (archive.read(entry), entry.external_attr >> 16) for entry in archive.infolist()}
        (cls.info,) = {name.split("/")[0] for name in cls.files if ".dist-info/" in name}

    def text(self, name):
        return self.files[f"{self.info}/{name}"][0].decode()

    def test_the_record_has_every_file_with_its_digest_and_size(self):
        rows = {name: (digest, size) for name, digest, size in csv.reader(self.text("RECORD").splitlines())}
        self.assertEqual(rows.pop(f"{self.info}/RECORD"), ("", ""))
        self.assertEqual(set(rows), set(self.files) - {f"{self.info}/RECORD"})
        for name, (digest, size) in rows.items():
            data = self.files[name][0]
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            self.assertEqual((digest, size), (f"sha256={expected}", str(len(data))), name)

    def test_its_name_is_what_its_metadata_says(self):
        tag = next(line.removeprefix("Tag: ") for line in self.text("WHEEL").splitlines() if line.startswith("Tag: "))
        self.assertEqual(self.path.name, f"{self.info.removesuffix('.dist-info')}-{tag}.whl")
        self.assertRegex(tag, r"^py3-none-manylinux_2_\d\d_x86_64$")
        self.assertIn(f"Requires-Dist: torch=={TORCH}\n", self.text("METADATA"))
        with open(LIBTORCH / f"torch-{TORCH}.dist-info/METADATA", encoding="utf-8") as file:
            needed = next(line for line in file if line.startswith("Requires-Python"))
        self.assertIn(needed, self.text("METADATA"))

    def test_it_carries_the_program_all_stand_ins_the_jobs_and_the_licences(self):
        for name in ("vlmtrain", "vlmtrain-core"):
            self.assertEqual(self.files[f"vlmtrain/{name}"], ((PROGRAM / name).read_bytes(), 0o100755))
        jobs = {path.name for path in (ROOT / "scripts/slurm").glob("*.sbatch")}
        self.assertEqual({Path(name).name for name in self.files if name.startswith("vlmtrain/slurm/")}, jobs)
        stand_ins = {path.name for path in (PROGRAM / "vgpu").iterdir() if not path.is_symlink()}
        self.assertEqual({Path(name).name for name in self.files if name.startswith("vlmtrain/vgpu/")}, stand_ins)
        self.assertIn("libvlmtrain_vgpu.so", stand_ins)
        for library in ("yaml-cpp", "fmt", "spdlog", "json", "cli11", "pcre2", "utf8proc", "jpeg", "png", "zlib", "webp", "tiff", "zstd", "lzma",
                        "deflate", "avcodec", "curl", "ssl"):
            self.assertRegex(self.text("licenses/THIRD_PARTY"), rf"(?m)^=+\n\S*{library}\S* \d.*\n=+\n(.*\n)+?.*[Cc]opyright")

    def test_the_same_files_give_the_same_wheel(self):
        again = self.out / "again"
        run(sys.executable, ROOT / "packaging/build_wheel.py", "--program", PROGRAM, "--out", again)
        self.assertEqual((again / self.path.name).read_bytes(), self.path.read_bytes())


class Launcher(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        Wheel.setUpClass()
        cls.addClassCleanup(Wheel.doClassCleanups)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.site = self.folder / "site"
        with zipfile.ZipFile(Wheel.path) as archive:
            archive.extractall(self.site)
        for name in ("vlmtrain", "vlmtrain-core"):
            (self.site / "vlmtrain" / name).chmod(0o755)

    def set_program(self, data):
        path = self.site / "vlmtrain/vlmtrain"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        path.chmod(0o755)

    def plant_torch(self, site, version=f"{TORCH}+cu130", libraries=("libtorch_cpu.so", "libtorch_cuda.so")):
        (site / "torch/lib").mkdir(parents=True)
        (site / "torch/__init__.py").write_text("raise SystemExit('torch was imported')")
        (site / "torch/version.py").write_text(f"from typing import Optional\n__version__ = '{version}'\n")
        for name in libraries:
            (site / "torch/lib" / name).touch()

    def plant_nvidia(self, site, name="cu13"):
        (site / "nvidia" / name / "lib").mkdir(parents=True)

    def start(self, *arguments, path=(), before="", **options):
        """`before`: what stands in Python before the launcher starts, to make another host of this one."""
        places = ":".join(map(str, (self.site, *path)))
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": places, "OMP_WAIT_POLICY": "passive"} | options.pop("env", {})
        main = ["-c", f"{before}\nfrom vlmtrain.__main__ import main; main()"] if before else ["-m", "vlmtrain"]
        # -s: without the packages of the user who runs the tests.
        return run(sys.executable, "-s", *main, *arguments, env=environment, cwd=self.folder, **options)

    def assert_refused(self, result, *sentences):
        self.assertEqual((result.returncode, result.stdout), (5, ""), result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        for sentence in ("vlmtrain: error: ", *sentences):
            self.assertIn(sentence, result.stderr)

    def test_the_program_runs_with_libtorch_next_to_it(self):
        for name in ("torch", "nvidia"):
            (self.site / name).symlink_to(LIBTORCH / name)
        result = self.start("plan", "--gpu-gb", "24", "--model", "smolvlm-256m", "--images", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(result.stdout.startswith("fits: "), result.stdout)

    def test_without_torch_it_says_how_to_get_it(self):
        self.assert_refused(self.start("--version"), f"torch {TORCH} is not installed", f"-m pip install torch=={TORCH}")

    def test_a_folder_that_is_only_named_torch_is_none(self):
        (self.folder / "elsewhere/torch").mkdir(parents=True)
        self.assert_refused(self.start("--version", path=[self.folder / "elsewhere"]), "is not installed")

    def test_another_version_of_torch_is_named(self):
        self.plant_torch(self.site, "2.10.0+cu128")
        self.assert_refused(self.start("--version"), "is torch 2.10.0+cu128; this wheel was built for " + TORCH, "pip install")

    def test_a_version_that_only_begins_alike_is_another(self):
        self.plant_torch(self.site, TORCH + "1")
        self.assert_refused(self.start("--version"), f"is torch {TORCH}1;")

    def test_a_torch_without_its_library_is_named(self):
        self.plant_torch(self.site, libraries=())
        self.assert_refused(self.start("--version"), "has no lib/libtorch_cpu.so", "--force-reinstall")

    def test_torch_without_what_it_depends_on_is_named(self):
        self.plant_torch(self.site)
        self.assert_refused(self.start("--version"), "needs CUDA's libraries", "--force-reinstall")

    def test_torch_for_the_cpu_alone_needs_no_cuda(self):
        self.plant_torch(self.site, f"{TORCH}+cpu", libraries=["libtorch_cpu.so"])
        self.set_program("#!/bin/sh\necho started\n")
        self.assertEqual(self.start().stdout, "started\n")

    def test_an_older_c_library_is_named(self):
        self.assert_refused(self.start(before="import os; os.confstr = lambda name: 'glibc 2.17'"), "glibc 2.28 or newer",
                            "this machine has 2.17", "container")

    def test_another_c_library_is_named(self):
        self.assert_refused(self.start(before="import os; os.confstr = lambda name: int(name)"), "musl")

    def test_another_processor_is_named(self):
        before = "import os, types; os.uname = lambda: types.SimpleNamespace(machine='aarch64')"
        self.assert_refused(self.start(before=before), "x86-64, not linux on aarch64")

    def test_a_program_that_may_not_be_run_is_named(self):
        self.plant_torch(self.site)
        self.plant_nvidia(self.site)
        (self.site / "vlmtrain/vlmtrain").chmod(0o644)
        self.assert_refused(self.start("--version"), "cannot be started: Permission denied")

    def test_words_input_and_exit_code_are_the_programs_and_torch_is_not_imported(self):
        self.plant_torch(self.site)
        self.plant_nvidia(self.site)
        self.set_program('#!/bin/sh\nfor word; do printf "<%s>" "$word"; done; cat; exit 75\n')
        result = self.start("a b", "", "c=*", input="from stdin")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (75, "<a b><><c=*>from stdin", ""))

    def test_no_signal_is_ignored_that_was_not(self):
        self.plant_torch(self.site)
        self.plant_nvidia(self.site)
        self.set_program("#!/bin/sh\nexec grep SigIgn /proc/self/status\n")
        self.assertEqual(int(self.start().stdout.split()[1], 16), 0)

    def test_next_to_libtorch_the_library_path_stays_unchanged(self):
        self.plant_torch(self.site)
        self.plant_nvidia(self.site)
        self.set_program('#!/bin/sh\necho "${LD_LIBRARY_PATH-none}"\n')
        self.assertEqual(self.start().stdout, "none\n")
        self.assertEqual(self.start(env={"LD_LIBRARY_PATH": "/mine"}).stdout, "/mine\n")

    def test_external_libtorch_and_cuda_libraries_come_first_in_the_library_path(self):
        torch_site, cuda_site = self.folder / "a", self.folder / "b"
        self.plant_torch(torch_site)
        self.plant_nvidia(torch_site, "nccl")
        self.plant_nvidia(cuda_site)
        self.set_program('#!/bin/sh\necho "$LD_LIBRARY_PATH"\n')
        library_path = self.start(path=[torch_site, cuda_site], env={"LD_LIBRARY_PATH": "/mine"}).stdout.strip()
        self.assertEqual(library_path, ":".join(map(str, (torch_site / "torch/lib", torch_site / "nvidia/nccl/lib",
                                                   cuda_site / "nvidia/cu13/lib", "/mine"))))

    def test_linked_into_place_from_a_store_it_finds_libtorch(self):
        self.plant_torch(self.site)
        self.plant_nvidia(self.site)
        store = self.folder / "store"
        (self.site / "vlmtrain").rename(store)
        (self.site / "vlmtrain").mkdir()
        for path in store.iterdir():
            (self.site / "vlmtrain" / path.name).symlink_to(path)
        (store / "vlmtrain").write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH"\n')
        self.assertEqual(self.start().stdout.strip(), f"{self.site}/torch/lib:{self.site}/nvidia/cu13/lib")

    def test_the_quickstart_leaves_a_folder_of_that_name_alone(self):
        (self.folder / "quickstart").mkdir()
        result = run(sys.executable, "-m", "vlmtrain.quickstart", env={"PYTHONPATH": str(self.site)}, cwd=self.folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn("quickstart exists", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
