"""What single modules compute, away from a whole model: each file of modules/ states which file of tests/ it makes."""

import importlib
from pathlib import Path

NAMES = sorted(path.stem for path in (Path(__file__).parents[1] / "modules").glob("*.py"))


def make(name, data):
    importlib.import_module(f"modules.{name}").make(data.parents[1])
