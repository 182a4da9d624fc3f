"""The GPUs that are visible to a new program."""

import os
import re
import subprocess


def all_gpus():
    """Returns (index, UUID) of each GPU of the machine; MIG instances are not listed."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return re.findall(r"^GPU (\d+):.*\(UUID: (\S+)\)", listed, re.MULTILINE)


def visible_gpus():
    """Returns GPUs as CUDA_VISIBLE_DEVICES names them. CUDA ignores everything after an invalid name."""
    GPUs = all_gpus()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [index for index, _ in GPUs]
    seen = {}
    for name in (word.strip() for word in named.split(",")):
        matches = [index for index, identity in GPUs if name == index or (name.startswith("GPU-") and identity.startswith(name))]
        if len(matches) != 1 or matches[0] in seen:
            break
        seen[matches[0]] = name
    return list(seen.values())
