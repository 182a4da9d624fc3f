"""Does the processor of what vlmtrain saves give the tokens that were trained? For each family of transformers with a preset …-tiny that has such limits:

    python check_saved_limits.py VLMTRAIN [--work FOLDER]

trains for two steps with limits of pixels, tiles and frames, on images of several sizes and a video file, and compares, for the run's checkpoint, a LoRA adapter and the merged
adapter, the token ids of transformers' processor with those that `vlmtrain generate --show-prompt` of the run shows, and the pixels' shapes with the plan's.
Exit code 0: they are the same; 1: not, with the difference on stderr. Needs ./requirements.txt; --video FILE FRAMES FPS WIDTH HEIGHT adds a video, whose pixels are not compared.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from PIL import Image

SIZES = ((640, 640), (300, 260), (90, 400), (700, 120))
CASES = {  # preset: settings
    "qwen2.5-vl-tiny": ["data.image_max_pixels=12544", "data.video_max_frames=6", "data.video_fps=1"],
    "qwen3-vl-tiny": ["data.image_max_pixels=20480", "data.video_max_frames=6", "data.video_fps=1"],
    "internvl3-tiny": ["data.image_max_pixels=9000", "data.video_fps=1"],
    "smolvlm2-tiny": ["data.image_max_pixels=5000", "data.video_max_frames=3", "data.video_fps=0.5"],
    "smolvlm-tiny": ["data.image_max_pixels=5000"],
    "llava-tiny": [],
    "gemma-3-tiny": [],
}
VIDEOS = ("qwen2.5-vl-tiny", "qwen3-vl-tiny", "internvl3-tiny", "smolvlm2-tiny")


def run(program, folder, *arguments):
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def write_data(folder, video):
    records = []
    for width, height in SIZES:
        Image.linear_gradient("L").resize((width, height)).convert("RGB").save(folder / f"{width}.png")
        records.append({"id": str(width), "image": f"{width}.png", "conversations": [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A ramp."}]})
    if video:
        records.append({"id": "video", "video": str(video), "conversations": [{"from": "human", "value": "<video>\nWhat?"}, {"from": "gpt", "value": "A ball."}]})
    (folder / "data.json").write_text(json.dumps(records))
    return records


def of_transformers(processor, folder, record, video):
    kind = "video" if "video" in record else "image"
    path = str(folder / record[kind])
    question, answer = (turn["value"].split("\n")[-1] for turn in record["conversations"])
    if kind == "video":  # no decoder is needed to count tokens
        frames, fps, width, height = int(video[1]), float(video[2]), int(video[3]), int(video[4])
        text = processor.apply_chat_template(
            [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": question}]}, {"role": "assistant", "content": [{"type": "text", "text": answer}]}]
        )
        metadata = {"total_num_frames": frames, "fps": fps, "duration": frames / fps, "width": width, "height": height}
        pixels = torch.zeros(frames, 3, height, width, dtype=torch.uint8)
        return processor(text=[text], videos=[pixels], video_metadata=[metadata], return_tensors="pt")["input_ids"][0].tolist()
    messages = [
        {"role": "user", "content": [{"type": kind, "path": path}, {"type": "text", "text": question}]},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]
    return processor.apply_chat_template(messages, tokenize=True, return_dict=True, return_tensors="pt")["input_ids"][0].tolist()


def check(program, preset, settings, folder, video):
    records = write_data(folder, video[0] if video and preset in VIDEOS else None)
    run(program, folder, "init", "--preset", preset, "--out", "base", "--seed", "1")
    if preset.startswith("smolvlm"):  # the preset cuts no image
        file = folder / "base/preprocessor_config.json"
        changed = json.loads(file.read_text()) | {"do_image_splitting": True, "size": {"longest_edge": 256}}
        file.write_text(json.dumps(changed))
    (folder / "train.yaml").write_text(
        "model: {path: base}\ndata: {train: data.json, max_length: 4096, video_layout: transformers5}\n"
        "training: {global_batch_size: 1, max_steps: 2, precision: fp32}\noutput: {dir: full, sample_predictions: 0, report: false}\n"
    )
    run(program, folder, "--config", "train.yaml", "--device", "cpu", *settings)
    run(program, folder, "--config", "train.yaml", "--device", "cpu", "lora.rank=2", "output.dir=lora", *settings)
    run(program, folder, "merge", "--adapter", "lora", "--out", "merged")
    failures = 0
    for name in ("full", "lora", "merged"):
        checkpoint = folder / name if name == "merged" else next((folder / name / "checkpoints").glob("step-2"))
        processor = transformers.AutoProcessor.from_pretrained(checkpoint)
        for number, record in enumerate(records, 1):
            shown = run(program, folder, "generate", "--checkpoint", checkpoint, "--data", "data.json", "--record", str(number), "--show-prompt", "--json")
            own, theirs = json.loads(shown)["token_ids"], of_transformers(processor, folder, record, video)
            if own != theirs:
                failures += 1
                print(f"{preset}, {name}, {record['id']}: {len(own)} tokens, transformers {len(theirs)}", file=sys.stderr)
    print(f"{preset}: {len(records)} records, {failures} differ")
    return failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("vlmtrain")
    parser.add_argument("--work")
    parser.add_argument("--video", nargs=5, default=None)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    video = arguments.video and [Path(arguments.video[0]).resolve(), *arguments.video[1:]]
    failures = 0
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        for preset in arguments.only:
            folder = Path(work) / preset
            folder.mkdir()
            failures += check(str(Path(arguments.vlmtrain).resolve()), preset, CASES[preset], folder, video)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
