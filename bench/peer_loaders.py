"""The peers of bench/images_per_second.py: typical Python loaders with torch's DataLoader.

    python bench/peer_loaders.py torchvision|datasets CHECKPOINT DATA IMAGE_ROOT WORKERS BATCH BATCHES

torchvision: Pillow decodes, torchvision resizes the uint8 tensor (its fastest path) and normalizes it; the checkpoint's
tokenizer.json is read by tokenizers. datasets: Hugging Face `datasets` decodes, the checkpoint's own processor of
transformers makes the batch. The workers decode, resize, tokenize and collate. Prints JSON.
"""

import json
import math
import resource
import sys
import time
from pathlib import Path

import torch

IMAGE_MARK = "<image>\n"


def question_and_answer(record):
    question, answer = (turn["value"] for turn in record["conversations"][:2])
    return question.removeprefix(IMAGE_MARK), answer


def smart_size(height, width, square, least, most):
    """Returns the size of Qwen2-VL's processor: multiples of `square`, within the limits on pixels."""
    rows, columns = max(square, round(height / square) * square), max(square, round(width / square) * square)
    if rows * columns > most:
        scale = math.sqrt(height * width / most)
        rows, columns = (max(square, math.floor(side / scale / square) * square) for side in (height, width))
    elif rows * columns < least:
        scale = math.sqrt(least / (height * width))
        rows, columns = (math.ceil(side * scale / square) * square for side in (height, width))
    return rows, columns


class TorchvisionSamples(torch.utils.data.Dataset):
    def __init__(self, checkpoint, records, image_root):
        from PIL import Image
        from tokenizers import Tokenizer
        from torchvision.transforms import v2

        self.open, self.v2 = Image.open, v2
        self.records, self.image_root = records, Path(image_root)
        self.tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        self.config = json.loads((checkpoint / "preprocessor_config.json").read_text())
        self.is_native = "merge_size" in self.config

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        record = self.records[index]
        config, functional = self.config, self.v2.functional
        with self.open(self.image_root / record["image"]) as source_image:
            image = functional.pil_to_tensor(source_image.convert("RGB"))
        if self.is_native:
            square = config["patch_size"] * config["merge_size"]
            size = smart_size(*image.shape[1:], square, config["size"]["shortest_edge"], config["size"]["longest_edge"])
        else:
            size = [config["size"]["shortest_edge"]]
        image = functional.resize(image, size, self.v2.InterpolationMode.BICUBIC, antialias=True)
        if not self.is_native:
            image = functional.center_crop(image, [config["crop_size"]["height"], config["crop_size"]["width"]])
        image = functional.normalize(functional.to_dtype(image, torch.float32, scale=True), config["image_mean"], config["image_std"])
        tokens = 1
        if self.is_native:
            image = self.patches(image)
            tokens = image.shape[0] // config["merge_size"] ** 2
        question, answer = question_and_answer(record)
        ids = self.tokenizer.encode(f"USER: {question} ASSISTANT: {answer}").ids
        return image, torch.tensor([0] * tokens + ids)

    def patches(self, image):
        patch, merge, frames = (self.config[key] for key in ("patch_size", "merge_size", "temporal_patch_size"))
        channels, height, width = image.shape
        rows, columns = height // patch, width // patch
        image = image.expand(frames, channels, height, width)
        image = image.view(frames, channels, rows // merge, merge, patch, columns // merge, merge, patch)
        return image.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(rows * columns, -1)

    def join(self, samples):
        images, ids = zip(*samples)
        return {"pixel_values": torch.cat(images) if self.is_native else torch.stack(images),
                "input_ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True), "images": len(images)}


class ProcessorSamples(torch.utils.data.Dataset):
    def __init__(self, checkpoint, records, image_root):
        import datasets
        from transformers import AutoProcessor

        self.processor = AutoProcessor.from_pretrained(checkpoint)
        rows = [dict(zip(("question", "answer"), question_and_answer(record))) | {"image": str(Path(image_root) / record["image"])} for record in records]
        self.rows = datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def join(self, rows):
        texts = [self.processor.apply_chat_template([
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": row["question"]}]},
            {"role": "assistant", "content": [{"type": "text", "text": row["answer"]}]}]) for row in rows]
        images = [[row["image"].convert("RGB")] for row in rows]
        return dict(self.processor(text=texts, images=images, padding=True, return_tensors="pt")) | {"images": len(rows)}


def main():
    kind, checkpoint, data, image_root = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    workers, batch, batches = (int(word) for word in sys.argv[5:8])
    records = json.loads(data.read_text())
    samples = {"torchvision": TorchvisionSamples, "datasets": ProcessorSamples}[kind](checkpoint, records, image_root)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sampler = torch.utils.data.RandomSampler(samples, replacement=False, num_samples=batch * batches)
    images, checksum = 0, 0.0
    start = time.perf_counter()
    for loaded in torch.utils.data.DataLoader(samples, batch_size=batch, sampler=sampler, num_workers=workers, collate_fn=samples.join):
        images += loaded["images"]
        checksum += float(loaded["pixel_values"].flatten()[0])
    seconds = time.perf_counter() - start
    most = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1000
    print(json.dumps({"images": images, "seconds": seconds, "checksum": checksum, "most_mb": most}))


if __name__ == "__main__":
    main()
