"""Tests the GPU queue's comparisons with other programs: tables of kernel_speed, equal work, wheels, records of one length."""

import json
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "gpu_queue"))

import packages  # noqa: E402
from checks import kernel_speed, peers, published_settings, step_kernels  # noqa: E402

TABLE = """wrong: nothing
| kernel | MB | µs | GB/s | of a copy's |
|---|---|---|---|---|
| copy | 427 | 104.0 | 4103 | 1.00 |
| gated_activation, 3420 features | 925 | 260.1 | 3556 | 0.87 |
| qk_norm_rope, backwards | 1224 | 906.0 | 1351 | 0.33 |
"""


class KernelSpeed(unittest.TestCase):
    def test_tables_are_read(self):
        rows = kernel_speed.read_table(TABLE)
        self.assertEqual(list(rows), ["copy", "gated_activation, 3420 features", "qk_norm_rope, backwards"])
        self.assertEqual(rows["gated_activation, 3420 features"], {"megabytes": 925, "gigabytes_per_second": 3556, "of_copy": 0.87})

    def test_kernels_that_are_missing_or_move_other_bytes_are_named(self):
        find_differences = kernel_speed.different_work(kernel_speed.read_table(TABLE))
        self.assertNotIn("gated_activation, 3420 features", find_differences)
        self.assertIn("qk_norm_rope, backwards", find_differences)  # 1,223 MB on the first H200
        self.assertIn("RMSNorm", find_differences)

    def test_changed_kernels_have_figures_of_the_first_h200(self):
        self.assertEqual([name for name in kernel_speed.CHANGED if name not in kernel_speed.FIRST_H200], [])
        compared = kernel_speed.compare(kernel_speed.read_table(TABLE))
        self.assertTrue(compared["gated_activation, 3420 features"]["changed"])
        self.assertEqual(compared["qk_norm_rope, backwards"]["first_h200_of_copy"], 0.33)


class SameWork(unittest.TestCase):
    def setUp(self):
        self.lines = [{"loss": 7.0, "tokens": 100 + i, "label_tokens": 10 + i} for i in range(5)]
        self.plan = {"trained_parameters": 77}
        self.peer = {"first_loss": 7.001, "first_tokens": 100, "trained_parameters": 77,
                     "lines": [dict(line) for line in self.lines[peers.WARM_UP:]]}

    def find_differences(self, tolerance=2e-2):
        return " ".join(peers.differences(self.lines, self.plan, self.peer, tolerance))

    def test_the_same_work(self):
        self.assertEqual(self.find_differences(), "")

    def test_each_difference_is_named(self):
        self.assertIn("first losses", self.find_differences(1e-5))
        self.peer["first_loss"] = float("nan")
        self.assertIn("first losses", self.find_differences())
        self.peer["first_loss"] = 7.0
        self.peer["lines"][0]["label_tokens"] += 1
        self.assertIn("label tokens", self.find_differences())
        self.peer["lines"][0]["tokens"] += 1
        self.assertIn("tokens of steps", self.find_differences())
        self.peer["trained_parameters"] = 76
        self.assertIn("77 and 76 parameters", self.find_differences())


class Wheels(unittest.TestCase):
    def test_only_the_library_for_cuda_13_0_travels(self):
        names = ["bitsandbytes/__init__.py", "bitsandbytes/libbitsandbytes_cpu.so", "bitsandbytes/libbitsandbytes_cuda130.so",
                 "bitsandbytes/libbitsandbytes_cuda1301.so", "bitsandbytes/libbitsandbytes_rocm72.so",
                 "bitsandbytes-0.50.2.dist-info/METADATA"]
        unneeded = next(pattern for name, pattern in packages.PACKAGES.items() if name.startswith("bitsandbytes"))
        with tempfile.TemporaryDirectory() as folder:
            wheel = Path(folder) / "a.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                for name in names:
                    archive.writestr(name, "x")
            packages.unpack(wheel, unneeded, Path(folder) / "python")
            find_differences = {str(path.relative_to(Path(folder) / "python")) for path in (Path(folder) / "python").rglob("*") if path.is_file()}
        self.assertEqual(find_differences, set(names[:3] + names[5:]))


class Inputs(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def test_texts_of_one_length(self):
        path = self.folder / "texts" / "train.json"
        published_settings.write_records(path, 4096, 3)
        records = json.loads(path.read_text())
        words = {len(record["conversations"][1]["value"].split()) for record in records}
        self.assertEqual(words, {(4096 - published_settings.TEMPLATE_TOKENS) // published_settings.WORD_TOKENS})
        self.assertEqual(len({record["id"] for record in records}), 3)

    def test_answers_differ_in_length(self):
        peers.write_data(self.folder, peers.CPU_WORK)
        records = json.loads((self.folder / "train.json").read_text())
        self.assertEqual(len(records), peers.CPU_WORK.steps * peers.CPU_WORK.global_batch)
        self.assertGreater(len({len(record["conversations"][1]["value"].split()) for record in records}), 3)

    def test_gpus_have_their_virtual_ones(self):
        names = {"NVIDIA H200 (150.11 GB)": "h200", "NVIDIA H100 80GB HBM3 (85.03 GB)": "h100",
                 "NVIDIA H100 PCIe (84.93 GB)": "h100-pcie", "Tesla T4": None}
        self.assertEqual({gpu: step_kernels.virtual_name(gpu) for gpu in names}, names)


if __name__ == "__main__":
    unittest.main()
