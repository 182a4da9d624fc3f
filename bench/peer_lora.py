"""LoRA training of a vision-language model with transformers and PEFT: the peer of vlmtrain on a GPU.

    python bench/peer_lora.py --checkpoint DIR --data train.json --image-root DIR --order order.json --micro-batches 1,4
        [--quantization nf4] [--liger] [--device cuda] [--precision bf16]

The base is in --precision or in NF4 (bitsandbytes, double quantization). Adapters are in fp32, and with bf16 the forward pass runs under
autocast, as in transformers' Trainer. Attention is SDPA, nothing is recomputed, the optimizer is fused AdamW. Batches are padded.

A search runs two steps with each micro-batch size and each SDPA backend, and times the second. The fastest combination trains the
steps from --from-step on, timed; then the same steps run with adapters in bf16 and without autocast. A step takes the samples that
--order (a JSON list of lists of ids) lists for it; its loss is the mean over the label tokens of all its micro-batches. Padding does
not count as tokens. Prints one JSON object.
"""

import argparse
import contextlib
import json
import os
import time
from importlib import metadata
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from peer_transformers import IGNORED, Batches

BACKENDS = {"default": None, "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
            "cudnn": SDPBackend.CUDNN_ATTENTION}
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "liger-kernel")
# Messages of steps that cannot run: no backend supports a padding mask, or memory runs out.
REFUSALS = ("No available kernel", "out of memory", "No viable backend", "cuDNN")
SEARCH_STEPS = 2
WARM_UP_STEPS = 3


class QwenProcessor:
    """Replaces AutoProcessor for images of Qwen's models if its video processor lacks torchvision."""

    def __init__(self, checkpoint):
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self.image_processor = Qwen2VLImageProcessorPil.from_pretrained(checkpoint)
        self.image_token = "<|image_pad|>"
        self.apply_chat_template = lambda messages: self.tokenizer.apply_chat_template(messages, tokenize=False)

    def __call__(self, text, images, padding, return_tensors):
        pixels = dict(self.image_processor(images=sum(images, []), return_tensors="pt")) if images else {}
        counts = iter((pixels["image_grid_thw"].prod(-1) // self.image_processor.merge_size**2).tolist() if images else [])
        expanded = [self.expand(each, counts) for each in text]
        batch = dict(self.tokenizer(expanded, padding=padding, return_tensors=return_tensors))
        image_id = self.tokenizer.convert_tokens_to_ids(self.image_token)
        return {**batch, **pixels, "mm_token_type_ids": (batch["input_ids"] == image_id).int()}

    def expand(self, text, counts):
        first, *others = text.split(self.image_token)
        return first + "".join(self.image_token * next(counts) + part for part in others)


def load_processor(checkpoint):
    try:
        processor = AutoProcessor.from_pretrained(checkpoint)
    except ImportError:
        processor = QwenProcessor(checkpoint)
    processor.tokenizer.padding_side = "right"  # labels are found from the start of a row
    return processor


class Steps(torch.utils.data.Dataset):
    """Item i: the padded micro-batches of a step, and their label tokens. `chosen`: pairs of a step and a micro-batch size."""

    def __init__(self, batches, schedule):
        self.batches, self.schedule = batches, schedule

    def __len__(self):
        return len(self.schedule)

    def __getitem__(self, place):
        step, size = self.schedule[place]
        names = self.batches.order[step]
        built_items = [self.batches.make_batch(names[i : i + size]) for i in range(0, len(names), size)]
        return built_items, sum(label_count(batch) for batch in built_items)


def label_count(batch):
    return int((batch["labels"] != IGNORED).sum())


def apply_liger():
    from liger_kernel.transformers import apply_liger_kernel_to_qwen2_5_vl

    apply_liger_kernel_to_qwen2_5_vl()


def quantization_config(dtype):
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype)


def load_model(arguments):
    """Returns the model with adapters for all Linears but the output projection."""
    if arguments.liger:
        apply_liger()
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    quantized = {}
    if arguments.quantization == "nf4":
        quantized = {"quantization_config": quantization_config(dtype), "device_map": {"": arguments.device}}
    model = AutoModelForImageTextToText.from_pretrained(arguments.checkpoint, dtype=dtype, attn_implementation="sdpa", **quantized)
    if not quantized:
        model.to(arguments.device)
    config = LoraConfig(r=arguments.rank, lora_alpha=arguments.alpha, lora_dropout=0.0, target_modules="all-linear")
    return get_peft_model(model, config).train()


def make_optimizer(model, arguments):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=arguments.learning_rate, weight_decay=arguments.weight_decay, fused=True)


def train_step(model, optimizer, step, backend, precision):
    """Returns the loss: the mean over the label tokens of all micro-batches."""
    batches, labels = step
    total = torch.zeros((), device=model.device)
    for batch in batches:
        share = label_count(batch) / labels
        batch = {name: tensor.to(model.device, non_blocking=True) for name, tensor in batch.items()}
        attention = sdpa_kernel(backend) if backend else contextlib.nullcontext()
        with attention, torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = model(**batch, use_cache=False).loss * share
            loss.backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total.item()


def load_steps(batches, schedule, arguments):
    """Returns a loader that makes steps ahead in worker processes."""
    ahead = {"num_workers": arguments.workers, "prefetch_factor": 2} if arguments.workers else {}
    on_gpu = torch.device(arguments.device).type == "cuda"
    return torch.utils.data.DataLoader(Steps(batches, schedule), batch_size=None, pin_memory=on_gpu, **ahead)


def token_counts(step):
    batches, labels = step
    return {"tokens": sum(int(batch["attention_mask"].sum()) for batch in batches),
            "padded_tokens": sum(batch["attention_mask"].numel() for batch in batches), "label_tokens": labels}


def timed_steps(model, optimizer, steps, backend, precision):
    """Yields a step's loss, tokens and seconds, the wait for its data included."""
    began = time.perf_counter()
    for step in steps:
        loss = train_step(model, optimizer, step, backend, precision)
        ended = time.perf_counter()
        yield {"loss": loss, **token_counts(step), "step_seconds": ended - began}
        began = ended


def is_refusal(error):
    return any(words in str(error) for words in REFUSALS)


def search(model, optimizer, batches, arguments):
    """Returns a line per micro-batch size and backend: the seconds of its second step, or why it cannot run."""
    step_rows = []
    on_gpu = model.device.type == "cuda"
    for size in arguments.micro_batches:
        steps = list(load_steps(batches, [(step, size) for step in range(SEARCH_STEPS)], arguments))
        for name, backend in BACKENDS.items() if on_gpu else [("default", None)]:
            line = {"micro_batch": size, "attention": name}
            try:
                lines = list(timed_steps(model, optimizer, steps, backend, arguments.precision))
                line.update(seconds=lines[-1]["step_seconds"], tokens=lines[-1]["tokens"], losses=[each["loss"] for each in lines],
                            first_tokens=lines[0]["tokens"])
            except RuntimeError as error:
                if not is_refusal(error):
                    raise
                line["refused"] = str(error).strip().splitlines()[0][:200]
                optimizer.zero_grad(set_to_none=True)
                if on_gpu:
                    torch.cuda.empty_cache()
            step_rows.append(line)
    return step_rows


def measure(model, optimizer, batches, best, arguments, precision):
    """Returns lines of the steps from `from_step` on; up to three steps before them warm up."""
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    first = max(0, arguments.from_step - WARM_UP_STEPS)
    schedule = [(step, best["micro_batch"]) for step in range(first, len(batches.order))]
    steps = load_steps(batches, schedule, arguments)
    return list(timed_steps(model, optimizer, steps, BACKENDS[best["attention"]], precision))[arguments.from_step - first:]


def tokens_per_second(lines):
    return sum(line["tokens"] for line in lines) / sum(line["step_seconds"] for line in lines)


def adapters_to_bf16(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)


def versions():
    step_rows = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            step_rows[name] = metadata.version(name)
    return step_rows


def train(arguments):
    torch.set_num_threads(arguments.threads)
    order = json.loads(arguments.order.read_text())
    batches = Batches(load_processor(arguments.checkpoint), json.loads(arguments.data.read_text()), arguments.image_root, order)
    model = load_model(arguments)
    optimizer = make_optimizer(model, arguments)
    step_rows = search(model, optimizer, batches, arguments)
    usable = [line for line in step_rows if "seconds" in line]
    if not usable:
        raise SystemExit(f"peer_lora: no micro-batch size and backend works: {step_rows}")
    best = min(usable, key=lambda line: line["seconds"])
    lines = measure(model, optimizer, batches, best, arguments, arguments.precision)
    result = {"search": step_rows, "micro_batch": best["micro_batch"], "attention": best["attention"], "first_loss": usable[0]["losses"][0],
              "first_tokens": usable[0]["first_tokens"], "lines": lines, "tokens_per_second": tokens_per_second(lines),
              "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
              "processor": type(batches.processor).__name__, "versions": versions()}
    if model.device.type == "cuda":
        result.update(reserved_peak_bytes=torch.cuda.max_memory_reserved(), allocated_peak_bytes=torch.cuda.max_memory_allocated())
    if arguments.precision == "bf16":
        adapters_to_bf16(model)
        fast = measure(model, make_optimizer(model, arguments), batches, best, arguments, "as it is")
        result["bf16_adapters_tokens_per_second"] = tokens_per_second(fast)
        if model.device.type == "cuda":
            result["bf16_adapters_reserved_peak_bytes"] = torch.cuda.max_memory_reserved()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--image-root", type=Path, required=True)
    parser.add_argument("--order", type=Path, required=True)
    parser.add_argument("--from-step", type=int, default=3, help="first timed step, counted from 0")
    parser.add_argument("--micro-batches", type=lambda text: [int(size) for size in text.split(",")], default=[1, 4], metavar="N,N")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--alpha", type=float, default=16)
    parser.add_argument("--quantization", choices=["none", "nf4"], default="none")
    parser.add_argument("--liger", action="store_true", help="use Liger's kernels for Qwen2.5-VL")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    print(json.dumps(train(parser.parse_args())))


if __name__ == "__main__":
    main()
