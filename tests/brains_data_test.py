#!/usr/bin/env python3
"""Checks scans and questions of scripts/make_brains.py: sides agree with the affine, in sform and qform; all answers are equally
frequent; questions cannot be answered without the scans.

    brains_data_test.py CHECKOUT
"""
import gzip
import importlib.util
import json
import struct
import sys
import tempfile
import unittest
from pathlib import Path

import numpy


def load_script(checkout):
    spec = importlib.util.spec_from_file_location("make_brains", Path(checkout) / "scripts/make_brains.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_brains"] = module
    spec.loader.exec_module(module)
    return module


brains = load_script(sys.argv.pop(1))
NUMPY_TYPES = {2: numpy.uint8, 4: numpy.int16, 16: numpy.float32}


def affine_of_qform(header):
    """Returns the affine of a qform as nifti1.h defines it."""
    b, c, d, *offsets = struct.unpack_from("<6f", header, 256)
    a = max(0, 1 - b * b - c * c - d * d) ** 0.5
    turned = numpy.array([
        [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
        [2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)],
        [2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - b * b - c * c],
    ])
    factor, *spacing = struct.unpack_from("<4f", header, 76)
    return numpy.column_stack([turned * spacing * [1, 1, -1 if factor < 0 else 1], offsets])


def read(path):
    """Returns the voxels and the affines of a file."""
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    shape = struct.unpack_from("<4h", content, 40)[1:]
    voxels = numpy.frombuffer(content, NUMPY_TYPES[struct.unpack_from("<h", content, 70)[0]], offset=352)
    qform, sform = struct.unpack_from("<2h", content, 252)
    affines = [affine_of_qform(content)] if qform else []
    affines += [numpy.array(struct.unpack_from("<12f", content, 280)).reshape(3, 4)] if sform else []
    return voxels.reshape(shape, order="F"), affines


class Brains(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        (Path(cls.folder.name) / "scans").mkdir()
        cls.scans = [brains.make_scans((Path(cls.folder.name), f"one_{number}", 1)) for number in range(24)]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_lesions_lie_where_the_affine_says(self):
        looked_at, mistaken_without = 0, 0
        for subject, paths in self.scans:
            for modality, path in paths.items():
                voxels, affines = read(Path(self.folder.name) / path)
                self.assertTrue(affines)
                self.assertLess(max(abs(one - affines[0]).max() for one in affines), 0.01)
                if subject.sides(modality) not in ("left", "right"):
                    continue
                x, y, z = brains.rotation(subject.tilt) @ (numpy.array(subject.lesions[0].centre) * subject.scale)
                self.assertEqual(subject.side, "left" if x < 0 else "right")
                here, there = (self.voxel(affines[0], (sign * x, y, z)) for sign in (1, -1))
                (self.assertLess if modality == "T1w" else self.assertGreater)(voxels[here], voxels[there])
                looked_at += 1
                mistaken_without += (here[0] < voxels.shape[0] / 2) != (x < 0)
        self.assertGreater(looked_at, 8)
        self.assertGreater(mistaken_without, looked_at / 5)

    @staticmethod
    def voxel(affine, place):
        return tuple(numpy.linalg.solve(affine[:, :3], place - affine[:, 3]).round().astype(int))

    def test_volumes_have_48_voxels_a_side_and_two_to_four_millimetres(self):
        kinds = set()
        for _, paths in self.scans:
            for path in paths.values():
                voxels, affines = read(Path(self.folder.name) / path)
                self.assertGreaterEqual(min(voxels.shape), 48)
                spacing = numpy.linalg.norm(affines[0][:, :3], axis=0)
                self.assertTrue(all(1.99 < one < 4.01 for one in spacing))
                kinds.add((voxels.dtype.name, len(affines), Path(path).suffix))
        self.assertGreater(len(kinds), 6)

    def test_the_same_seed_gives_the_same_bytes(self):
        with tempfile.TemporaryDirectory() as again:
            (Path(again) / "scans").mkdir()
            _, paths = brains.make_scans((Path(again), "one_3", 1))
            for path in paths.values():
                self.assertEqual((Path(again) / path).read_bytes(), (Path(self.folder.name) / path).read_bytes())

    def test_all_answers_are_as_many_and_true(self):
        known = {subject.name: subject for subject, _ in self.scans}
        for task in brains.QUESTIONS:
            records = brains.make_records(task, 144, self.scans, False, brains.random.Random(1))
            self.assertLess(brains.blind_accuracy(records)[task], 0.5)
            for record in records:
                marked, answer = (turn["value"] for turn in record["conversations"])
                self.assertEqual(marked.count("<image>\n"), len(record["volumes"]))
                text = marked.split("\n")[-1]
                question = next(one for one in brains.QUESTIONS[task] if one.text == text)
                modalities = ["T1w" if "T1w" in path else "T2w" for path in record["volumes"]]
                self.assertEqual(record.get("modality", modalities), modalities)
                self.assertEqual("modality" in record, question.names_modalities)
                self.assertEqual(question.answer([known[name] for name in record["subject_id"]], modalities), answer)

    def test_training_asks_all_questions_in_one_conversation(self):
        records = brains.make_records("T1", 60, self.scans, True, brains.random.Random(1))
        self.assertGreater(max(len(record["conversations"]) for record in records), 6)
        for record in records:
            questions = [turn["value"].split("\n")[-1] for turn in record["conversations"][::2]]
            self.assertEqual(len(questions), len(set(questions)))
            if "modality" in record:
                self.assertNotIn("Which modality is this scan?", questions)


if __name__ == "__main__":
    unittest.main()
