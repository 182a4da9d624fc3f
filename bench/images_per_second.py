"""Compares images per second of vlmtrain's loader with two Python loaders, alternating in one run.

    cmake --build --preset release --target vlmtrain load_samples
    python bench/images_per_second.py --images DIR [--runs 3] [--seconds 6] [--build build/release] [--folder DIR]

DIR holds JPEG or PNG images, which are loaded unchanged. From them, photographs of 1, 4 and 12 megapixels are written
to --folder (JPEG, quality 90, with noise). Two processors read the same files: LLaVA-1.5's (CLIP, 336 × 336 pixels) and
Qwen2.5-VL's (native resolution, at most 1,003,520 pixels). vlmtrain is measured twice: with uint8 pixels, as in training
(the device normalizes them), and with loader threads that normalize them, as the peers' workers do. The peers are in
bench/peer_loaders.py. Every loader gets the same images, questions, answers, batch size and number of workers, and is
bound to one core per worker. Each figure comes from its own process, without startup and imports. The first run of each
loader is not counted: it warms the page cache and finds how many batches fill --seconds. Figures are medians; ratios are
ratios of medians.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
BATCH = 8
PHOTO_SIZES = [(1152, 864), (2304, 1728), (4000, 3000)]
PHOTOS = 24
NOISE = 12  # an image of 12 megapixels then takes about 4 MB, like a camera's
MOST_PIXELS = 1_003_520
CLIP_SIDE = 336


def make_photos(sources, folder):
    import numpy as np
    from PIL import Image

    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(PHOTOS):
        width, height = PHOTO_SIZES[number % len(PHOTO_SIZES)]
        with Image.open(sources[number % len(sources)]) as image:
            photo = np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = np.clip(photo + rng.normal(0, NOISE, photo.shape).astype(np.int16), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{number:03}.jpg", quality=90)


def write_records(files, path):
    rng = random.Random(0)
    words = "the left lung shows a small opacity near its base and no sign of fluid in this view of chest".split()
    write = lambda count: " ".join(rng.choices(words, k=count))  # noqa: E731
    path.write_text(json.dumps([
        {"id": file.name, "image": file.name, "conversations": [
            {"from": "human", "value": f"<image>\n{write(12)}?"}, {"from": "gpt", "value": f"{write(40)}."}]} for file in files]))


def make_checkpoint(program, preset, folder):
    subprocess.run([program, "init", "--preset", preset, "--out", folder], check=True, capture_output=True)
    file = folder / "preprocessor_config.json"
    config = json.loads(file.read_text())
    if preset == "llava-tiny":
        config["size"], config["crop_size"] = {"shortest_edge": CLIP_SIDE}, {"height": CLIP_SIDE, "width": CLIP_SIDE}
        model = json.loads((folder / "config.json").read_text())
        model["vision_config"]["image_size"] = CLIP_SIDE
        (folder / "config.json").write_text(json.dumps(model))
    else:
        config["size"]["longest_edge"] = MOST_PIXELS
    file.write_text(json.dumps(config))


def measure(command, workers, batches):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    cores = ",".join(str(core) for core in range(workers))
    done = subprocess.run(["taskset", "-c", cores, *command, str(workers), str(BATCH), str(batches)], check=True, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def compare(commands, workers, runs, seconds):
    batches, speeds, memory = {}, {name: [] for name in commands}, {}
    for name, command in commands.items():
        trial = measure(command, workers, 4)
        batches[name] = max(4, int(seconds * trial["images"] / trial["seconds"] / BATCH))
    for _ in range(runs):
        for name, command in commands.items():
            done = measure(command, workers, batches[name])
            speeds[name].append(done["images"] / done["seconds"])
            memory[name] = max(memory.get(name, 0), done["most_mb"])
    return speeds, memory


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        sources = sorted(file for file in arguments.images.iterdir() if file.suffix.lower() in (".jpg", ".jpeg", ".png"))
        if not (folder / "photos").exists():
            make_photos(sources, folder / "photos")
        sets = {"as they are": arguments.images, "1, 4 and 12 Mpx": folder / "photos"}
        print("Images a second: median (all runs). A ratio is vlmtrain's median, with pixels as bytes and as floats, by the peer's.\n")
        print("| processor | images | workers and cores | vlmtrain, bytes | vlmtrain, floats | torchvision + Pillow | ratios "
              "| datasets + processor | ratios | most resident, MB, in the same order |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        for preset in ("llava-tiny", "qwen2.5-vl-tiny"):
            checkpoint = folder / preset
            if not checkpoint.exists():
                make_checkpoint(arguments.build / "vlmtrain", preset, checkpoint)
            for name, images in sets.items():
                data = folder / f"{'photos' if images == folder / 'photos' else 'plain'}.json"
                write_records(sorted(file for file in images.iterdir() if file.suffix.lower() in (".jpg", ".jpeg", ".png")), data)
                tail = [checkpoint, data, images.resolve()]
                commands = {kind: [arguments.build / "load_samples", kind, *tail] for kind in ("bytes", "floats")}
                commands |= {peer: [sys.executable, HERE / "peer_loaders.py", peer, *tail] for peer in ("torchvision", "datasets")}
                for workers in arguments.workers:
                    speeds, memory = compare(commands, workers, arguments.runs, arguments.seconds)
                    medians = {loader: statistics.median(all_runs) for loader, all_runs in speeds.items()}
                    shown = {loader: f"{medians[loader]:.1f} ({', '.join(f'{one:.1f}' for one in sorted(speeds[loader]))})" for loader in speeds}
                    ratios = {peer: ", ".join(f"{medians[kind] / medians[peer]:.2f}" for kind in ("bytes", "floats")) for peer in medians}
                    print(f"| {preset.replace('-tiny', '')} | {name} | {workers} | {shown['bytes']} | {shown['floats']} "
                          f"| {shown['torchvision']} | {ratios['torchvision']} | {shown['datasets']} | {ratios['datasets']} "
                          f"| {', '.join(f'{memory[loader]:.0f}' for loader in speeds)} |", flush=True)


if __name__ == "__main__":
    main()
