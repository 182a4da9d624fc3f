"""image/data/volumes/: what nibabel and MONAI make of scans.

REAL are nibabel's test files (nibabel/tests/data), which are there. Other scans are drawn here. volumes.json: {"nibabel", "monai": versions, "orientations": [[nine numbers of an affine, row by row;
letters]], "cases": [{"file", "settings", "info": {"size", "spacing", "orientation", "frames"}, "shape", "least", "most", "mean",
"first" (the place of the case's values in volumes.bin, in fp32), "stride"}]}. The values are every stride-th of the result, in its
order [volume, right, front, top].

The pipeline is LoadImage, EnsureChannelFirst, Orientation(RAS), Spacing or Resize, the normalisation, ResizeWithPadOrCrop. Where a case
takes the mean of a series, its frames are averaged in fp64 after the resampling; of frames each goes through the pipeline by itself.
"""

import json
import warnings
from pathlib import Path

import monai
import monai.transforms as mt
import nibabel as nib
import numpy as np
import torch

REAL = ("anatomical.nii", "functional.nii", "example_nifti2.nii.gz", "someones_epi.nii.gz")
KEPT = 400


def draw_array(size: tuple[int, int, int], seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    x, y, z = np.mgrid[[slice(0, n) for n in size]] / np.array(size)[:, None, None, None]
    body = ((x - 0.45) ** 2 + (y - 0.55) ** 2 + (z - 0.5) ** 2) < 0.16
    return (body * (900 * np.sin(5 * x + 3 * y) * np.cos(4 * z) + 100 * random.normal(size=size) + 300 * y)).astype(np.float32)


def rotation(x: float, y: float, z: float) -> np.ndarray:
    cx, cy, cz, sx, sy, sz = np.cos(x), np.cos(y), np.cos(z), np.sin(x), np.sin(y), np.sin(z)
    return (np.array([[1, 0, 0], [0, cx, -sx], [0, sx, cx]]) @ np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
            @ np.array([[cz, -sz, 0], [sz, cz, 0], [0, 0, 1]]))


def make_affine(matrix: np.ndarray) -> np.ndarray:
    result = np.eye(4)
    result[:3, :3] = matrix
    result[:3, 3] = (-90, 30, -60)
    return result


def save(path: Path, values: np.ndarray, matrix: np.ndarray, *, sform: int = 1, qform: int = 0, kind=nib.Nifti1Image,
         big: bool = False, slope: float | None = None, inter: float = 0) -> None:
    header = (nib.Nifti1Header if kind is nib.Nifti1Image else nib.Nifti2Header)(endianness=">" if big else "<")
    header.set_data_dtype(values.dtype.newbyteorder(">") if big else values.dtype)
    image = kind(values, None, header)
    image.header.set_data_shape(values.shape)
    zooms = np.sqrt((matrix * matrix).sum(0))
    image.header.set_zooms(tuple(zooms) + (2.0,) * (values.ndim - 3))
    image.set_sform(make_affine(matrix) if sform else None, sform)
    image.set_qform(make_affine(matrix) if qform else None, qform)
    if slope is not None:
        image.header.set_slope_inter(slope, inter)
        image.dataobj  # kept as stored: the values are those of the file
        raw = nib.Nifti1Image if kind is nib.Nifti1Image else nib.Nifti2Image
        assert kind is raw
        with path.open("wb") as file:
            header = image.header.copy()
            header["vox_offset"] = 352 if kind is nib.Nifti1Image else 544
            header["magic"] = b"n+1" if kind is nib.Nifti1Image else header["magic"]
            file.write(header.binaryblock + b"\0\0\0\0" + values.astype(header.get_data_dtype()).tobytes(order="F"))
        return
    nib.save(image, path)


def draw(folder: Path) -> list[str]:
    lps = np.diag([-1.0, -1.2, 2.5])
    swapped = np.array([[0, 0, 1.5], [-0.9, 0, 0], [0, 1.1, 0]])
    oblique = rotation(0.3, -0.2, 0.15) @ np.diag([-0.9, 1.1, 2.0])
    steep = rotation(0.9, 0.2, -0.6) @ np.diag([1.2, 0.8, 1.7])
    save(folder / "sform_swapped.nii.gz", draw_array((23, 31, 18), 1), swapped)
    save(folder / "qform_oblique.nii.gz", (draw_array((30, 22, 15), 2)).astype(np.int16), oblique, sform=0, qform=1)
    save(folder / "steep_negative.nii.gz", (draw_array((21, 19, 27), 3) / 8).astype(np.int8), steep @ np.diag([1, -1, 1]))
    save(folder / "neither.nii.gz", np.abs(draw_array((20, 24, 16), 4)).astype(np.uint8), lps, sform=0, qform=0)
    save(folder / "scaled.nii", draw_array((17, 20, 12), 5).astype(np.int16), lps, slope=0.37, inter=-1024)
    save(folder / "big_endian.nii.gz", draw_array((18, 21, 13), 6).astype(np.uint16), swapped, big=True)
    save(folder / "big_endian_2.nii.gz", draw_array((16, 12, 20), 7).astype(np.float64), oblique, big=True, kind=nib.Nifti2Image)
    save(folder / "series.nii.gz", np.stack([draw_array((14, 12, 9), 8 + i) for i in range(5)], -1).astype(np.int16), oblique)
    save(folder / "int64.nii.gz", draw_array((12, 12, 12), 20).astype(np.int64), lps)
    return sorted(p.name for p in folder.iterdir() if p.name.endswith((".nii", ".nii.gz")) and p.name not in REAL)


def normaliser(settings: dict):
    kind = settings["normalization"]
    if kind == "zscore":
        return mt.NormalizeIntensity()
    if kind == "zscore_foreground":
        return mt.NormalizeIntensity(nonzero=True)
    if kind == "percentile":
        return mt.ScaleIntensityRangePercentiles(*settings["percentiles"], 0, 1, clip=True)
    if kind == "window":
        return mt.ScaleIntensityRange(*settings["window"], 0, 1, clip=True)
    return mt.Identity()


def place(settings: dict):
    if settings["spacing"]:
        return mt.Spacing(settings["spacing"], mode="bilinear", padding_mode="border", align_corners=False)
    return mt.Resize(settings["size"], mode="trilinear", align_corners=False)


def run(path: Path, settings: dict) -> np.ndarray:
    image = mt.LoadImage(image_only=True, ensure_channel_first=False)(str(path))
    data = image[..., None] if image.ndim == 3 else image
    frames = data.shape[3]
    if settings["series"] == "frames":
        frame_indices = np.round(np.linspace(0, frames - 1, min(frames, settings["max_frames"]))).astype(int)
    else:
        frame_indices = range(frames)
    turned = []
    for frame in frame_indices:
        volume = monai.data.MetaTensor(data[..., frame].as_tensor().clone()[None], affine=image.affine)
        turned.append(place(settings)(mt.Orientation("RAS", labels=(("L", "R"), ("P", "A"), ("I", "S")))(volume)))
    if settings["series"] == "mean":
        mean = np.mean([t.numpy().astype(np.float64) for t in turned], axis=0).astype(np.float32)
        turned = [monai.data.MetaTensor(torch.from_numpy(mean), affine=turned[0].affine)]
    for volume in turned:
        # MONAI's places are some 1e-15 off whole voxels, which makes values of 1e-12 of a background of 0: foreground to it.
        volume[volume.abs() < 1e-9 * volume.abs().max()] = 0
    finish = mt.Compose([normaliser(settings), mt.ResizeWithPadOrCrop(settings["size"])])
    return np.stack([np.asarray(finish(t)) for t in turned]).astype(np.float32)


def case(path: Path, number: int, binary: list) -> dict:
    kinds = ("zscore", "none", "zscore_foreground", "percentile", "window")
    sizes = ((12, 15, 10), (33, 29, 41), (16, 16, 16), (24, 9, 20))
    spacings = (None, (2.0, 2.0, 2.0), None, (0.8, 1.3, 1.1))
    settings = {"size": sizes[number % 4], "spacing": spacings[(number // 2) % 4], "normalization": kinds[number % 5],
                "percentiles": (1.0, 98.5), "window": (-160.0, 420.0), "series": "refused", "max_frames": 3}
    image = nib.load(path)
    frames = image.shape[3] if image.ndim > 3 else 1
    if frames > 1:
        settings["series"] = ("mean", "frames")[number % 2]
    values = run(path, settings)
    stride = max(1, values.size // KEPT) | 1
    stored_values = values.ravel()[::stride]
    first = sum(len(b) for b in binary)
    binary.append(stored_values)
    spacing = np.sqrt((image.affine[:3, :3] ** 2).sum(0))
    info = {"size": list(image.shape[:3]), "spacing": spacing.tolist(), "orientation": "".join(nib.aff2axcodes(image.affine)),
            "frames": frames}
    return {"file": path.name, "settings": settings, "info": info, "shape": list(values.shape), "least": float(values.min()),
            "most": float(values.max()), "mean": float(values.mean(dtype=np.float64)), "first": first, "stride": stride}


def orientations() -> list:
    random = np.random.default_rng(5)
    result = []
    for i in range(400):
        matrix = rotation(*random.uniform(-4, 4, 3)) @ np.diag(random.uniform(0.2, 5, 3) * random.choice([-1, 1], 3))
        if i % 4 == 0:
            matrix = matrix + random.uniform(-0.5, 0.5, (3, 3))  # with a shear
        if i % 4 == 1:
            matrix = np.round(matrix, 1)
        if abs(np.linalg.det(matrix / np.sqrt((matrix * matrix).sum(0)))) < 1e-3:
            continue
        result.append([matrix.ravel().tolist(), "".join(nib.aff2axcodes(make_affine(matrix)))])
    return result


def make(tests):
    warnings.simplefilter("ignore")
    folder = tests / "image" / "data" / "volumes"
    for old in folder.glob("*.nii*"):
        if old.name not in REAL:
            old.unlink()
    binary: list = []
    cases = []
    for index, file in enumerate([*REAL, *draw(folder)]):
        cases += [case(folder / file, 3 * index + offset, binary) for offset in range(5)]
    (folder / "volumes.bin").write_bytes(np.concatenate(binary).astype("<f4").tobytes())
    lines = lambda rows: ",\n".join(json.dumps(row) for row in rows)
    (folder / "volumes.json").write_text(f'{{"nibabel": "{nib.__version__}", "monai": "{monai.__version__}",\n"orientations": [\n'
                                         f'{lines(orientations())}],\n"cases": [\n{lines(cases)}]}}\n')
