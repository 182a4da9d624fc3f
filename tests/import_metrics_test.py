#!/usr/bin/env python3
"""Tests the parsing of scripts/import_metrics.py, which needs no third-party package.

    import_metrics_test.py CHECKOUT
"""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKOUT = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
SCRIPT = CHECKOUT / "scripts/import_metrics.py"
specification = importlib.util.spec_from_file_location("import_metrics", SCRIPT)
import_metrics = importlib.util.module_from_spec(specification)
specification.loader.exec_module(import_metrics)

LINE = {
    "step": 2, "loss": 1.5, "grad_norm": None, "skipped": False, "micro_batch_sizes": [2, 2], "forecast_splits": 1, "foreseen_splits": 1,
    "tasks": {"read": {"loss": 2, "samples": 4}},
    "evaluation": {"loss": 0.5, "is_best": True, "metrics": {"anls": 0.75, "numeric": None},
                   "masks": {"dice": 0.5, "empty_predictions": 1, "empty_drawn": 1},
                   "tasks": {"read": {"loss": 0.25, "metrics": {"anls": 1}}}},
}
VALUES = {
    "loss": 1.5, "skipped": 0, "forecast_splits": 1, "tasks/read/loss": 2, "tasks/read/samples": 4, "eval/loss": 0.5, "eval/is_best": 1,
    "eval/anls": 0.75, "eval/dice": 0.5, "eval/empty_predictions": 1, "eval/tasks/read/loss": 0.25, "eval/tasks/read/anls": 1,
}


class ImportMetricsTest(unittest.TestCase):
    def read(self, text: str) -> list:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "metrics.jsonl"
            path.write_text(text)
            return import_metrics.read_steps(path)

    def test_numbers_have_their_path_as_name(self):
        self.assertEqual(self.read(json.dumps(LINE) + "\n"), [(2, VALUES)])

    def test_old_names_become_new_names(self):
        old = json.dumps(LINE).replace('"forecast_splits": 1, ', "").replace('"empty_predictions": 1, ', "")
        self.assertNotIn("forecast_splits", old)
        self.assertEqual(self.read(old), [(2, VALUES)])

    def test_an_incomplete_last_line_is_ignored(self):
        self.assertEqual(self.read('{"step": 1, "loss": 2}\n{"step": 2, "lo'), [(1, {"loss": 2})])

    def test_an_invalid_line_is_named(self):
        with self.assertRaisesRegex(ValueError, "metrics.jsonl:1: is not a step"):
            self.read('{"loss": 2}\n{"step": 2}\n')

    def test_names_for_mlflow(self):
        self.assertEqual(import_metrics.mlflow_name("tasks/größe (cm)/loss"), "tasks/gr__e _cm_/loss")

    def test_a_folder_without_metrics_is_a_usage_error(self):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run([sys.executable, SCRIPT, folder, "--to", "wandb"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 2)
        self.assertIn("has no metrics.jsonl", result.stderr)


if __name__ == "__main__":
    unittest.main()
