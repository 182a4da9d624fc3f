"""The peer of the speed comparison: the same training as vlmtrain's, with plain transformers.

    python bench/peer_transformers.py --checkpoint DIR --data train.json --image-root DIR --order order.json

Float32 on the CPU (or --device cuda, --precision bf16: float32 weights under autocast), transformers' default attention (sdpa),
fused AdamW, padded batches prefetched by a loader process, no accumulation, no grouping by length (its default). An optimizer step takes the samples that --order (a JSON list of lists of ids)
lists for it. --adapter trains a PEFT adapter on the checkpoint instead of its weights. Prints one JSON line; padding does not count as
tokens. --metrics gets a line for each step.
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

from library.conversation import image_paths  # noqa: E402
from library.idefics3_format import to_messages  # noqa: E402

IGNORED = -100


def seconds_since_process_start():
    """Returns the process's start time from the kernel, so that interpreter start and imports count."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def turn_marks(processor):
    """Reads from the chat template the token ids that open an answer, the one that ends it, and those between two turns."""
    question = {"role": "user", "content": [{"type": "text", "text": "question"}]}
    answer = {"role": "assistant", "content": [{"type": "text", "text": "answer"}]}
    prompt = processor.apply_chat_template([question])
    start = processor.apply_chat_template([question], add_generation_prompt=True).removeprefix(prompt)
    end = processor.apply_chat_template([question, answer]).removeprefix(prompt).partition("answer")[2]
    start, end = (processor.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (start, end))
    return start, end[0], end[1:]


class Batches(torch.utils.data.Dataset):
    """Item i is the padded batch of step i, with labels."""

    def __init__(self, processor, samples, image_root, order):
        self.processor = processor
        self.processor.tokenizer.padding_side = "right"
        self.samples = {sample["id"]: sample for sample in samples}
        self.image_root = image_root
        self.order = order
        self.answer_start, self.end_of_turn, self.between_turns = turn_marks(processor)

    def __len__(self):
        return len(self.order)

    def __getitem__(self, step):
        return self.make_batch(self.order[step])

    def make_batch(self, names):
        return self.encode([to_messages(self.samples[name]) for name in names], names)

    def encode(self, conversations, names, **template_options):
        prompts = [self.processor.apply_chat_template(messages, **template_options) for messages in conversations]
        paths = [image_paths(self.samples[name], self.image_root) for name in names]
        images = [[Image.open(path).convert("RGB") for path in of_sample] for of_sample in paths]
        # Some templates already write the token that the tokenizer would prepend.
        has_beginning = prompts[0].startswith(self.processor.tokenizer.bos_token or "\0")
        batch = self.processor(
            text=prompts, images=images if any(images) else None, padding=True, return_tensors="pt", add_special_tokens=not has_beginning
        )
        batch["labels"] = batch["input_ids"].where(self.label_mask(batch["input_ids"]), IGNORED)
        return dict(batch)

    def label_mask(self, input_ids):
        """Returns labels for the answers, which end with the end-of-turn token."""
        mask = torch.zeros_like(input_ids, dtype=torch.bool)
        for row, ids in enumerate(input_ids.tolist()):
            start = 0
            for end in [position for position, token in enumerate(ids) if token == self.end_of_turn]:
                answer = start + len(self.answer_start)
                if ids[start:answer] == self.answer_start:
                    mask[row, answer : end + 1] = True
                start = end + 1 + len(self.between_turns)
        return mask


def make_optimizer(model, learning_rate, weight_decay):
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() >= 2]
    others = [p for p in trained if p.dim() < 2]
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
    if arguments.adapter:
        import peft

        model = peft.PeftModel.from_pretrained(model, arguments.adapter, is_trainable=True)
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
    parser.add_argument("--adapter", type=Path, help="PEFT adapter to train; the checkpoint's weights stay frozen")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--image-root", type=Path, required=True)
    parser.add_argument("--order", type=Path, required=True)
    parser.add_argument("--steps", type=int, help="maximum number of steps")
    parser.add_argument("--warmup", type=int, default=3, help="number of first steps that the speed ignores")
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
