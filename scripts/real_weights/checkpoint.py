"""Writes a checkpoint folder in Hugging Face layout."""

import json
from pathlib import Path

import safetensors_file

PRESETS = Path(__file__).resolve().parents[2] / "configs" / "models"


def read_preset(preset, name):
    return json.loads((PRESETS / preset / name).read_text())


def write(folder, files, tensors, dtype):
    """Writes the folder. `files`: name → text, or an object to write as JSON."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        indent = None if name == "tokenizer.json" else 2
        text = content if isinstance(content, str) else json.dumps(content, indent=indent, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")
    safetensors_file.write(folder / "model.safetensors", tensors, dtype)


def image_processor(preset, **changes):
    return read_preset(preset, "preprocessor_config.json") | changes
