"""Compares memory and work of a training step in vlmtrain and in transformers with PEFT, both on a virtual H100.

    python bench/compare_transformers.py --build build/release --torch DIR --packages DIR
    python bench/compare_transformers.py --build build/release --only vlmtrain --model llava-1.5-7b --kind lora

A cell is a model, a kind of training and a shape, SAMPLESxTOKENS of a micro-batch. --model, --kind and --shape select
cells and can be repeated. --only runs one side; vlmtrain's side needs only the program and takes two seconds a cell.
--json prints a JSON line per cell and side as they finish; without it, a Markdown table follows at the end.
docs/benchmarks/speed.md has the results and the commands that create the folders. Only one process runs at
a time, on one thread.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from published_peaks import STAND_INS

HERE = Path(__file__).resolve().parent
SIDES = ["transformers", "vlmtrain"]
# Size of the virtual GPU for transformers, so that a step that does not fit an H100 still reports its memory, as a plan does.
GPU = "h100"
GPU_BYTES = 2**40


@dataclass
class Model:
    image_side: int  # side of the sample's image, in pixels
    image_tokens: int  # features of the image
    image_marks: int  # tokens around the features


MODELS = {
    "llava-1.5-7b": Model(336, 576, 0),
    "qwen2.5-vl-3b": Model(672, 576, 2),
    "qwen2.5-vl-7b": Model(672, 576, 2),
    "qwen3-vl-4b": Model(768, 576, 2),
    "qwen3.5-4b": Model(768, 576, 2),
    "gemma-3-4b": Model(896, 256, 4),
    "gemma-4-e4b": Model(768, 256, 2),
    "gemma-4-12b": Model(768, 256, 2),
    "internvl3-8b": Model(448, 256, 2),  # one tile, so no thumbnail
}
KINDS = {
    "lora": ["--finetune", "lora"],
    "nf4": ["--finetune", "lora", "--quantization", "nf4"],
    "full-8bit": ["--finetune", "full", "--optimizer-states", "8bit"],
}
SHAPES = ["1x1408", "4x1408", "8x832"]
FIGURES = {  # key: title, unit, format
    "reserved_peak_bytes": ("reserved, GB", 1e9, "{:.2f}"),
    "above_static_bytes": ("above static, GB", 1e9, "{:.2f}"),
    "launches": ("launches", 1, "{:,.0f}"),
    "bytes_moved": ("moved, GB", 1e9, "{:.1f}"),
}


@dataclass
class Cell:
    model: str
    kind: str
    shape: str

    @property
    def samples(self):
        return int(self.shape.partition("x")[0])

    @property
    def tokens(self):
        return int(self.shape.partition("x")[2])


def run(command, environment):
    """Returns the JSON line that a command prints last, also if the plan does not fit (exit code 3)."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError((done.stderr.strip() or done.stdout.strip())[-3000:])
    for line in done.stderr.splitlines():
        if line.startswith("virtual GPU: "):
            print(line, file=sys.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def run_vlmtrain(cell, folders):
    """Returns a plan with every choice fixed; every text token except the first is a label token."""
    model = MODELS[cell.model]
    text = cell.tokens - model.image_tokens - model.image_marks
    plan = run(
        [
            str(folders.build / "vlmtrain"), "plan", "--gpu", GPU, "--model", cell.model, *KINDS[cell.kind],
            "--micro-batch", str(cell.samples), "--global-batch", str(2 * cell.samples), "--recompute", "none",
            "--images", "1", "--image-size", str(model.image_side), "--text-tokens", str(text),
            "--answer-tokens", str(text - 1), "--json", "memory.vision_tiles_per_pass=0", "memory.loss_chunk_rows=512",
        ],
        {"VLMTRAIN_PAST_RUNS": "off"},
    )  # fmt: skip
    if plan["tokens_per_sample"] != cell.tokens:
        raise RuntimeError(f"a sample of the plan has {plan['tokens_per_sample']} tokens")
    memory, cost = plan["memory"], plan["dry_run_step_cost"]
    static = memory["weights_bytes"] + memory["gradients_bytes"] + memory["optimizer_bytes"]
    return {
        "reserved_peak_bytes": memory["reserved_peak_bytes"],
        "allocated_peak_bytes": memory["allocated_peak_bytes"],
        "static_bytes": static,
        "above_static_bytes": memory["allocated_peak_bytes"] - static,
        "launches": int(cost["launches"]),
        "bytes_moved": int(cost["bytes_moved"]),
        "trained_parameters": plan["trained_parameters"],
    }


def run_transformers(cell, folders):
    """Runs a cell in its own process on the virtual GPU, with PyTorch and the packages on the path and the stub libraries
    preloaded before the CUDA libraries."""
    model = MODELS[cell.model]
    paths = [str(folder) for folder in (folders.torch, folders.packages) if folder]
    environment = {
        "LD_PRELOAD": ":".join(str(folders.build / "vgpu" / name) for name in STAND_INS),
        "VLMTRAIN_VGPU_NAME": GPU,
        "VLMTRAIN_VGPU_BYTES": str(GPU_BYTES),
        "HF_HUB_OFFLINE": "1",
        # The host cannot read values of the virtual GPU.
        "TRANSFORMERS_DISABLE_TORCH_CHECK": "1",
    }
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [
        sys.executable, str(HERE / "peer_step.py"), "--config", str(HERE.parent / "configs" / "models" / cell.model),
        "--kind", cell.kind, "--samples", str(cell.samples), "--tokens", str(cell.tokens),
        "--image-side", str(model.image_side), "--image-tokens", str(model.image_tokens),
        "--counter", str(folders.counter or folders.build / "libvlmtrain_step_cost.so"),
    ]  # fmt: skip
    return run(command, environment)


RUNS = {"vlmtrain": run_vlmtrain, "transformers": run_transformers}


def measure(cell, side, folders):
    try:
        return RUNS[side](cell, folders)
    except RuntimeError as error:
        print(f"{side}, {cell.model} {cell.kind} {cell.shape} failed:\n{error}", file=sys.stderr)
        return None


def row(cell, measured):
    columns = [cell.model, cell.kind, cell.shape.replace("x", " × ")]
    for key, (_, unit, style) in FIGURES.items():
        values = [side and side[key] for side in measured.values()]
        columns += [style.format(value / unit) if value is not None else "-" for value in values]
        if len(values) == 2:
            columns.append("-" if None in values else f"{values[1] / values[0]:.2f}")
    return "| " + " | ".join(columns) + " |"


def table(rows, sides):
    """Returns the table: for each figure a column per side, and the ratio of vlmtrain to transformers."""
    columns = ["model", "training", "samples × tokens"]
    for title, _, _ in FIGURES.values():
        columns += [f"{title}: {side}" for side in sides] + ["ratio"] * (len(sides) == 2)
    head = "| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|\n"
    return head + "\n".join(rows)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="build folder with vlmtrain, vgpu/ and libvlmtrain_step_cost.so")
    parser.add_argument("--counter", type=Path, help="path of libvlmtrain_step_cost.so, if it is not in --build")
    parser.add_argument("--torch", type=Path, help="folder with PyTorch: scripts/setup.sh --print-libtorch")
    parser.add_argument("--packages", type=Path, help="folder with transformers and PEFT, if this Python lacks them")
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--only", choices=SIDES)
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of the table")
    arguments = parser.parse_args()
    for name in ("build", "counter", "torch", "packages"):
        folder = getattr(arguments, name)
        setattr(arguments, name, folder and folder.resolve())
    return arguments


def main():
    arguments = parse_arguments()
    sides = [arguments.only] if arguments.only else SIDES
    rows, failed = [], False
    for model in arguments.model or MODELS:
        for kind in arguments.kind or KINDS:
            for shape in arguments.shape or SHAPES:
                cell = Cell(model, kind, shape)
                measured = {side: measure(cell, side, arguments) for side in sides}
                failed = failed or None in measured.values()
                for side, figures in measured.items():
                    if arguments.json and figures:
                        print(json.dumps(asdict(cell) | {"side": side} | figures), flush=True)
                rows.append(row(cell, measured))
    if not arguments.json:
        print(table(rows, sides))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
