#!/usr/bin/env python3
"""Reads a run's TensorBoard events with TensorBoard's own accumulator and compares them with metrics.jsonl and
predictions.jsonl: the same steps and values, each answer's text and images.

    python3 -m venv VENV && VENV/bin/pip install tensorboard==2.21.0 && VENV/bin/python scripts/check_tensorboard.py RUN_DIR
"""
import argparse
import base64
import json
import math
import pathlib
import struct

from tensorboard.backend.event_processing import event_accumulator

SCALARS = {"train/loss": "loss", "train/learning_rate": "learning_rate", "train/grad_norm": "grad_norm",
           "speed/tokens_per_second": "tokens_per_second", "speed/step_seconds": "step_seconds",
           "incidents/oom_splits": "oom_splits", "incidents/skipped_steps": "skipped_steps"}


def read_lines(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def as_float32(value: float | None) -> float:
    return math.nan if value is None else struct.unpack("f", struct.pack("f", value))[0]


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and not math.isfinite(b)) or (math.isnan(b) and not math.isfinite(a)) or a == b


def find_evaluations(steps: list[dict]) -> dict[str, list]:
    """Returns {tag: [(step, value)]}."""
    curves: dict[str, list] = {}
    for step in steps:
        evaluation = step.get("evaluation")
        if not evaluation:
            continue
        scores = {"eval": evaluation} | {f"eval/tasks/{name}": score for name, score in evaluation["tasks"].items()}
        for folder, score in scores.items():
            for key in ("loss", "exact_match"):
                if key == "loss" or score[key] is not None:
                    curves.setdefault(f"{folder}/{key}", []).append((step["step"], score[key]))
            for key in ("dice", "iou", "hausdorff95"):
                if score.get("masks") and score["masks"][key] is not None:
                    curves.setdefault(f"{folder}/{key}", []).append((step["step"], score["masks"][key]))
        for name, masks in evaluation.get("structures", {}).items():
            curves.setdefault(f"eval/structures/{name}/dice", []).append((step["step"], masks["dice"]))
        curves.setdefault("eval/seconds", []).append((step["step"], evaluation["seconds"]))
    return curves


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=pathlib.Path)
    run = parser.parse_args().run_dir
    guidance = {"scalars": 0, "images": 0, "tensors": 0}
    read = event_accumulator.EventAccumulator(str(run / "tensorboard"), size_guidance=guidance).Reload()

    steps = read_lines(run / "metrics.jsonl")
    assert steps, "no steps"
    tags = read.Tags()["scalars"]
    curves = [(tag, [(step["step"], step[key]) for step in steps]) for tag, key in SCALARS.items()]
    for task in sorted({name for step in steps for name in step["tasks"]}):
        for key in ("loss", "weight"):
            curves.append((f"tasks/{task}/{key}", [(step["step"], step["tasks"][task][key]) for step in steps if task in step["tasks"]]))
    if "loss_parts" in steps[0]:
        curves.append(("train/mask_learning_rate", [(step["step"], step["mask_learning_rate"]) for step in steps]))
        for part in ("text", "mask_bce", "mask_dice"):
            curves.append((f"train/loss_{part}", [(step["step"], step["loss_parts"][part]) for step in steps]))
    for tag, values in find_evaluations(steps).items():
        curves.append((tag, values))
    for tag, expected in curves:
        assert tag in tags, f"{tag} is missing"
        scalars = [(event.step, event.value) for event in read.Scalars(tag)]
        assert [step for step, _ in scalars] == [step for step, _ in expected], f"{tag}: other steps"
        for (step, value), (_, expected_value) in zip(scalars, expected):
            assert same(value, as_float32(expected_value)), f"{tag}, step {step}: {value} instead of {expected_value}"

    answers = read_lines(run / "predictions.jsonl")
    source_images = 0
    for answer in answers:
        tag = f"answers/{answer['id']}"
        texts = {event.step: event.tensor_proto.string_val[0].decode() for event in read.Tensors(tag)}
        assert all(line in texts[answer["step"]] for line in answer["answer"].split("\n")), tag
        shown = [(f"{tag}/image {i + 1}", uri) for i, uri in enumerate(answer["images"])]
        shown += [(f"{tag}/mask {i + 1}", mask["overlay"]) for i, mask in enumerate(answer.get("masks", []))]
        for place, uri in shown:
            images = {event.step: event.encoded_image_string for event in read.Images(place)}
            assert images[answer["step"]] == base64.b64decode(uri.split(",", 1)[1]), place
            source_images += 1
    print(f"{len(curves)} curves of {len(steps)} steps, {len(answers)} answers and {source_images} images are equal; {len(tags)} scalar tags")


if __name__ == "__main__":
    main()
