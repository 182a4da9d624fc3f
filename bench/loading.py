"""Compares seconds and host memory to load a checkpoint of 2 GB in vlmtrain and transformers, alternating in one run.

    cmake --build --preset release --target load_checkpoint
    python bench/loading.py [--runs 3] [--program build/release/load_checkpoint] [--folder DIR]

Creates a LLaVA-type checkpoint of random bf16 weights in shards of 500 MB (kept in --folder, if given). Each figure comes
from its own process, which loads the weights to the CPU and ends; the file is in the page cache. "besides the weights" is the
peak of resident memory minus the weights. transformers uses `from_pretrained(dtype=...)`. It leaves weights of the file's data
type in the mapped file, so one byte of each page is read before the clock stops.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PEER = """
import json, sys, time
start = time.perf_counter()
import torch
from transformers import LlavaForConditionalGeneration
imported = time.perf_counter()
model = LlavaForConditionalGeneration.from_pretrained(sys.argv[1], dtype=dict(bf16=torch.bfloat16, fp32=torch.float32)[sys.argv[2]])
touched = sum(int(p.flatten().view(torch.uint8)[::4096].sum()) for p in model.parameters())
done = time.perf_counter()
print(json.dumps(dict(seconds=done - imported, import_seconds=imported - start,
                      weights_bytes=sum(p.nbytes for p in model.parameters()),
                      peak_resident_bytes=int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) * 1024)))
"""


def make_checkpoint(folder):
    import torch
    from transformers import CLIPImageProcessor, CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    torch.manual_seed(0)
    vision = CLIPVisionConfig(hidden_size=512, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=8, image_size=224,
                              patch_size=14, projection_dim=512)
    text = LlamaConfig(hidden_size=1792, intermediate_size=5120, num_hidden_layers=24, num_attention_heads=14,
                       num_key_value_heads=2, vocab_size=32064)
    model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_index=32000))
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="500MB")
    size = {"height": 224, "width": 224}
    CLIPImageProcessor(size={"shortest_edge": 224}, crop_size=size).save_pretrained(folder)


def measure(command):
    # The value that vlmtrain sets for itself.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--program", default="build/release/load_checkpoint")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if not (folder / "config.json").exists():
            make_checkpoint(folder)
        print("| loaded as | | seconds, median (all) | weights, GB | peak resident, GB | besides the weights, GB |")
        print("|---|---|---|---|---|---|")
        for dtype in ("bf16", "fp32"):
            results = {"vlmtrain": [], "transformers": []}
            for _ in range(arguments.runs):
                results["vlmtrain"].append(measure([arguments.program, folder, dtype]))
                results["transformers"].append(measure([sys.executable, "-c", PEER, folder, dtype]))
            for name, runs in results.items():
                seconds = [run["seconds"] for run in runs]
                peak = statistics.median(run["peak_resident_bytes"] for run in runs)
                weights = runs[0]["weights_bytes"]
                print(f"| {dtype} | {name} | {statistics.median(seconds):.2f} ({', '.join(f'{s:.2f}' for s in sorted(seconds))}) "
                      f"| {weights / 1e9:.2f} | {peak / 1e9:.2f} | {(peak - weights) / 1e9:.2f} |", flush=True)
            imports = [run["import_seconds"] for run in results["transformers"]]
            print(f"| | transformers' imports, not in its seconds | {statistics.median(imports):.2f} | | | |")


if __name__ == "__main__":
    main()
