"""The peer in the speed comparison: the same training as vlmtrain's, written as one does with transformers.

    python bench/peer_transformers.py --checkpoint DIR --data train.json --image-root DIR --order order.json

Float32 on the CPU (or --device cuda, --precision bf16: float32 weights under autocast), transformers' default attention (sdpa), fused AdamW, padded batches made ahead by a loader process, no accumulation, no
grouping by length (off by default there too). An optimizer step takes the samples that --order (a JSON list of lists of ids)
names for it. Prints one JSON line; a token is a token of a sample, padding does not count. --metrics gets a line for each step.
"""

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "parity" / "reference"))

import llava  # noqa: E402

IGNORED = -100
# The end of a turn and the start of an answer, of Idefics3 and of ChatML (Qwen). The first whose end is a token counts.
TURNS = {llava.END_OF_UTTERANCE: "Assistant:", "<|im_end|>": "<|im_start|>assistant\n"}


def seconds_since_process_start():
    """From the kernel's account, so that interpreter start and imports count."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


class Batches(torch.utils.data.Dataset):
    """Item i is the padded batch of step i, with labels."""

    def __init__(self, processor, samples, image_root, order):
        self.processor = processor
        self.samples = {sample["id"]: sample for sample in samples}
        self.image_root = image_root
        self.order = order
        end_of_turn = next(token for token in TURNS if token in processor.tokenizer.get_vocab())
        self.end_of_turn = processor.tokenizer.convert_tokens_to_ids(end_of_turn)
        self.answer_start = processor.tokenizer(TURNS[end_of_turn])["input_ids"]
        self.newline = processor.tokenizer("\n")["input_ids"]

    def __len__(self):
        return len(self.order)

    def __getitem__(self, step):
        return self.make_batch(self.order[step])

    def make_batch(self, names):
        samples = [self.samples[name] for name in names]
        prompts = [self.processor.apply_chat_template(llava.to_messages(sample)) for sample in samples]
        images = [[Image.open(p) for p in llava.image_paths(sample, self.image_root)] for sample in samples]
        batch = self.processor(
            text=prompts, images=images if any(images) else None, padding=True, return_tensors="pt"
        )
        batch["labels"] = batch["input_ids"].where(self.label_mask(batch["input_ids"]), IGNORED)
        return dict(batch)

    def label_mask(self, input_ids):
        """Every turn ends with an end-of-turn token and a newline; answers are the turns that begin as TURNS has it."""
        mask = torch.zeros_like(input_ids, dtype=torch.bool)
        for row, ids in enumerate(input_ids.tolist()):
            start = 0
            for end in [position for position, token in enumerate(ids) if token == self.end_of_turn]:
                answer = start + len(self.answer_start)
                if ids[start:answer] == self.answer_start:
                    mask[row, answer : end + 1] = True
                start = end + 1 + len(self.newline)
        return mask


def make_optimizer(model, learning_rate, weight_decay):
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, fused=True)


def train_step(model, optimizer, batch, max_grad_norm, precision):
    with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
        loss = model(**batch, use_cache=False).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item(), norm.item()


def peak_rss_bytes(who):
    return resource.getrusage(who).ru_maxrss * 1024


def train(arguments):
    torch.set_num_threads(arguments.threads)
    order = json.loads(arguments.order.read_text())[: arguments.steps]
    processor = AutoProcessor.from_pretrained(arguments.checkpoint)
    model = AutoModelForImageTextToText.from_pretrained(arguments.checkpoint, dtype=torch.float32).train()
    model.to(arguments.device)
    optimizer = make_optimizer(model, arguments.learning_rate, arguments.weight_decay)
    samples = json.loads(arguments.data.read_text())
    batches = Batches(processor, samples, arguments.image_root, order)
    loader = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=arguments.workers, prefetch_factor=4,
                                         pin_memory=model.device.type == "cuda")

    metrics = []
    with open(arguments.metrics or os.devnull, "w") as log:
        began = time.perf_counter()
        for step, batch in enumerate(loader, start=1):
            batch = {name: tensor.to(model.device, non_blocking=True) for name, tensor in batch.items()}
            loss, norm = train_step(model, optimizer, batch, arguments.max_grad_norm, arguments.precision)
            ended = time.perf_counter()
            line = {
                "step": step,
                "loss": loss,
                "grad_norm": norm,
                "tokens": int(batch["attention_mask"].sum()),
                "padded_tokens": batch["attention_mask"].numel(),
                "label_tokens": int((batch["labels"] != IGNORED).sum()),
                "step_seconds": ended - began,
                "seconds_since_start": seconds_since_process_start(),
                "reserved_peak_bytes": torch.cuda.max_memory_reserved() if model.device.type == "cuda" else 0,
            }
            began = ended
            metrics.append(line)
            print(json.dumps(line), file=log, flush=True)
    return metrics


def summary(metrics, warmup):
    measured = metrics[warmup:]
    tokens = sum(line["tokens"] for line in measured)
    return {
        "steps": len(metrics),
        "warmup_steps": warmup,
        "tokens_per_second": tokens / sum(line["step_seconds"] for line in measured),
        "padding_share": 1 - tokens / sum(line["padded_tokens"] for line in measured),
        "first_step_seconds": metrics[0]["seconds_since_start"],
        "peak_rss_bytes": peak_rss_bytes(resource.RUSAGE_SELF),
        "loader_peak_rss_bytes": peak_rss_bytes(resource.RUSAGE_CHILDREN),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--image-root", type=Path, required=True)
    parser.add_argument("--order", type=Path, required=True)
    parser.add_argument("--steps", type=int, help="at most so many steps of the order")
    parser.add_argument("--warmup", type=int, default=3, help="steps that the speed leaves out")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--max-grad-norm", type=float, default=1.0)
    parser.add_argument("--metrics", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    arguments = parser.parse_args()
    print(json.dumps(summary(train(arguments), arguments.warmup)))


if __name__ == "__main__":
    main()
