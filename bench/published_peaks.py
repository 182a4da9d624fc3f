"""Replays published memory peaks of real GPUs on the virtual GPU (docs/explanation/virtual-gpu.md) and prints Markdown tables.

    python bench/published_peaks.py --vgpu build/release/vgpu --torch DIR --packages DIR [SOURCE …]

--vgpu is the folder of the stub libraries, --torch the folder with PyTorch (printed by `scripts/setup.sh --print-libtorch`),
and --packages a folder with the Python packages that PyTorch needs. VLMTRAIN_VGPU, VLMTRAIN_TORCH and VLMTRAIN_PACKAGES
are their defaults. A source that needs a version of transformers reads it from DIR/transformers-VERSION.
docs/benchmarks/published.md describes the sources. The packages are installed by

    pip install --target DIR sympy networkx jinja2 typing_extensions filelock fsspec mpmath setuptools numpy
    pip install --target DIR --no-deps "huggingface-hub<1" safetensors regex tqdm requests pyyaml packaging \\
        urllib3 idna certifi charset-normalizer pillow torchvision==0.26.0
    pip install --target DIR/transformers-4.41.2 --no-deps transformers==4.41.2 tokenizers==0.19.1
    pip install --target DIR/transformers-4.42.4 --no-deps transformers==4.42.4 tokenizers==0.19.1 "numpy<2"
    pip install --target DIR/transformers-4.46.3 --no-deps transformers==4.46.3 tokenizers==0.20.3

No GPU is used. The processes of a source run one after the other. Sources: the modules in bench/published_peaks.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from published_peaks import SOURCES, STAND_INS  # noqa: E402


def load(source):
    return importlib.import_module(f"published_peaks.{source}").PROCESSES


def environment(process, folders):
    """Returns a child's environment: PyTorch and the packages on the path, the stub libraries preloaded."""
    versions = [folders.packages / f"{name}-{version}" for name, version in process.packages.items()]
    for folder in versions:
        if not folder.is_dir():
            raise SystemExit(f"{folder} does not exist; docs/benchmarks/published.md describes how to create it")
    paths = [*versions, folders.torch, folders.packages]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "LD_PRELOAD": ":".join(str(folders.vgpu / name) for name in STAND_INS),
        "VLMTRAIN_VGPU_NAME": process.gpu,
    }


def replay(source, index, process, folders):
    """Returns the bytes of each point, measured by a process on the virtual GPU."""
    command = [sys.executable, __file__, "--child", source, str(index)]
    done = subprocess.run(command, env=environment(process, folders), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{process.title} on {process.gpu} failed:\n{done.stdout}{done.stderr}")
    values = json.loads(done.stdout.splitlines()[-1])
    if len(values) != len(process.points):
        raise SystemExit(f"{process.title}: {len(values)} values for {len(process.points)} points")
    reports = [line for line in done.stderr.splitlines() if line.startswith("virtual GPU: ")]
    for line in reports:
        print(f"{process.title}: {line}", file=sys.stderr)
    return values


def child(source, index):
    process = load(source)[index]
    print(json.dumps([int(value) for value in process.measure()]))


@dataclass
class Row:
    setting: str
    published: float
    replayed: float

    @property
    def error(self):
        """The error in percent; positive if the virtual GPU needs more."""
        return round(100 * (self.replayed / self.published - 1), 3) + 0.0


def make_rows(process, values):
    return [
        Row(point.setting, point.published, value / process.unit_bytes)
        for point, value in zip(process.points, values, strict=True)
    ]


def summary(tables):
    print(
        "| source | stated GPU | points | error %, lowest | median | highest | within 0.01 % |\n|---|---|---|---|---|---|---|"
    )
    for (title, stated_gpu, *_), rows in tables.items():
        errors = [row.error for row in rows]
        exact = sum(abs(e) < 0.01 for e in errors)
        print(
            f"| {title} | {stated_gpu} | {len(errors)} "
            f"| {min(errors):+.3f} | {statistics.median(errors):+.3f} | {max(errors):+.3f} | {exact} |"
        )


def details(tables):
    for (title, stated_gpu, gpu, unit), rows in tables.items():
        print(f"\n### {title}, {stated_gpu}, on the virtual {gpu}\n")
        print(f"| setting | published, {unit} | replayed, {unit} | error % |\n|---|---|---|---|")
        for row in rows:
            print(f"| {row.setting} | {row.published} | {row.replayed:.{digits(row.published)}f} | {row.error:+.3f} |")


def digits(published):
    """Returns the number of decimals of the published figure, at least one."""
    return max(1, len(repr(float(published)).partition(".")[2]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help="default: all; " + ", ".join(SOURCES))
    for name in ("vgpu", "torch", "packages"):
        default = os.environ.get(f"VLMTRAIN_{name.upper()}")
        parser.add_argument(f"--{name}", type=lambda path: Path(path).resolve(), default=default, required=default is None)
    folders = parser.parse_args()
    unknown = set(folders.sources) - set(SOURCES)
    if unknown:
        parser.error(f"unknown source {', '.join(sorted(unknown))}; the sources are {', '.join(SOURCES)}")
    tables = {}
    for source in folders.sources or SOURCES:
        for index, process in enumerate(load(source)):
            values = replay(source, index, process, folders)
            key = (process.title, process.stated_gpu, process.gpu, process.unit)
            tables.setdefault(key, []).extend(make_rows(process, values))
    summary(tables)
    details(tables)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]))
    else:
        main()
