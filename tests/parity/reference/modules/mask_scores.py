"""evaluation/data/mask_scores.json: what MONAI says of pairs of masks.

{"monai": its version, "cases": [{"name", "size", "predicted", "truth" (pycocotools' compressed
run lengths), "iou", "dice" (null where MONAI has none), "hausdorff95" (null where a mask is empty), "monai_hausdorff95"}]}

MONAI takes the percentile in float32, whose ranks are some 1e-7 of the number of distances off. "hausdorff95" is numpy's percentile in
float64 of the distances that MONAI measures, "monai_hausdorff95" what compute_hausdorff_distance gives; both must agree to 1e-4.
"""

import json
import math
import warnings

import monai
import numpy as np
import torch
from monai.metrics import compute_dice, compute_hausdorff_distance, compute_iou
from monai.metrics.utils import get_mask_edges
from pycocotools import mask as coco
from scipy.spatial import KDTree

PERCENT = 95


def disc(height: int, width: int, y: float, x: float, radius: float) -> np.ndarray:
    rows, columns = np.mgrid[0:height, 0:width]
    return np.hypot(rows - y, columns - x) <= radius


def box(height: int, width: int, top: int, left: int, bottom: int, right: int) -> np.ndarray:
    mask = np.zeros((height, width), bool)
    mask[top:bottom, left:right] = True
    return mask


def pairs() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(11)
    one = lambda y, x: box(20, 30, y, x, y + 1, x + 1)
    empty = np.zeros((20, 30), bool)
    blob = disc(20, 30, 9, 12, 5)
    several = disc(200, 300, 40, 60, 25) | disc(200, 300, 150, 220, 31) | box(200, 300, 90, 10, 96, 200)
    moved = disc(200, 300, 43, 66, 22) | disc(200, 300, 160, 200, 35)
    ring = disc(200, 300, 100, 150, 80) & ~disc(200, 300, 100, 150, 60)
    return {
        "same": (blob, blob),
        "discs": (disc(200, 300, 90, 140, 50), disc(200, 300, 100, 155, 45)),
        "several": (several, moved),
        "ring": (ring, disc(200, 300, 95, 160, 70)),
        "borders": (box(200, 300, 0, 0, 200, 120), box(200, 300, 0, 80, 200, 300)),
        "corner": (disc(200, 300, 0, 0, 60), disc(200, 300, 199, 299, 60)),
        "whole": (np.ones((200, 300), bool), disc(200, 300, 100, 150, 70)),
        "single_pixels": (one(3, 4), one(17, 25)),
        "same_pixel": (one(3, 4), one(3, 4)),
        "pixel_in_disc": (one(9, 12), blob),
        "disjoint": (box(20, 30, 2, 2, 6, 7), box(20, 30, 12, 20, 19, 30)),
        "line": (box(20, 30, 10, 0, 11, 30), box(20, 30, 0, 15, 20, 16)),
        "row": (box(1, 40, 0, 3, 1, 20), box(1, 40, 0, 10, 1, 39)),
        "noise": (random.random((60, 83)) < 0.3, random.random((60, 83)) < 0.02),
        "outlier": (disc(200, 300, 100, 80, 40) | disc(200, 300, 190, 290, 3), disc(200, 300, 100, 80, 40)),
        "empty_prediction": (empty, blob),
        "empty_truth": (blob, empty),
        "both_empty": (empty, empty),
    }


def tensor(mask: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(mask)[None, None].to(torch.float32)


def directed(source: np.ndarray, target: np.ndarray) -> float:
    return float(np.percentile(KDTree(np.argwhere(target)).query(np.argwhere(source))[0], PERCENT))


def hausdorff95(predicted: np.ndarray, truth: np.ndarray) -> float | None:
    if not predicted.any() or not truth.any():
        return None
    edges = [np.asarray(edge) for edge in get_mask_edges(predicted, truth)]
    return max(directed(*edges), directed(*edges[::-1]))


def finite(value: torch.Tensor) -> float | None:
    return float(value) if math.isfinite(float(value)) else None


def case(name: str, predicted: np.ndarray, truth: np.ndarray) -> dict:
    counts = lambda mask: coco.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode("ascii")
    both = (tensor(predicted), tensor(truth))
    theirs = finite(compute_hausdorff_distance(*both, include_background=True, percentile=PERCENT))
    ours = hausdorff95(predicted, truth)
    if ours is not None:
        assert abs(theirs - ours) < 1e-4, (name, theirs, ours)
    intersection, either = (predicted & truth).sum(), (predicted | truth).sum()
    iou = float(intersection / either) if either else None
    monai_iou = finite(compute_iou(*both, include_background=True))
    assert monai_iou is None or abs(monai_iou - iou) < 1e-6, name
    dice = float(2 * intersection / (predicted.sum() + truth.sum())) if either else None
    monai_dice = finite(compute_dice(*both, include_background=True))
    assert monai_dice is None or abs(monai_dice - dice) < 1e-6, name
    return {"name": name, "size": list(predicted.shape), "predicted": counts(predicted), "truth": counts(truth), "iou": iou,
            "dice": dice, "hausdorff95": ours, "monai_hausdorff95": theirs if ours is not None else None}


def make(tests):
    warnings.simplefilter("ignore")
    cases = ",\n".join(json.dumps(case(name, *masks)) for name, masks in pairs().items())
    path = tests / "evaluation" / "data" / "mask_scores.json"
    path.write_text(f'{{\n"monai": {json.dumps(monai.__version__)},\n"cases": [\n{cases}\n]\n}}\n')
