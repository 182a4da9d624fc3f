"""transformers on the same records: losses of tokens, and greedy answers."""

import os
import sys

import torch

from bench import ROOT
from formats import VALUES, quantize_linears

sys.path.insert(0, str(ROOT / "bench"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


class WideRMSNorm(torch.nn.Module):
    """RMSNorm in the type of its input, for float64: transformers' own rounds to fp32."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.is_gemma = norm, type(norm).__name__.startswith("Gemma")

    def forward(self, x):
        epsilon = self.norm.eps if self.is_gemma else self.norm.variance_epsilon
        gain = 1 + self.norm.weight if self.is_gemma else self.norm.weight
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * gain


def widen(model):
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm") and not isinstance(child, WideRMSNorm):
                setattr(module, name, WideRMSNorm(child))
    return model.double()


class Peer:
    """A model of transformers. `quantization` is none or a name of formats.VALUES; the type of the dequantized weights is `dtype`."""

    def __init__(self, bench, model, dtype, quantization=None, device=None):
        from peer_transformers import Batches
        from transformers import AutoModelForImageTextToText, AutoProcessor

        torch.set_num_threads(bench.threads)
        checkpoint = bench.checkpoint(model)
        self.device = device or bench.device
        self.processor = AutoProcessor.from_pretrained(checkpoint)
        self.model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
        if quantization:
            quantize_linears(self.model, VALUES[quantization])
        self.model = widen(self.model) if dtype == "fp64" else self.model.to(DTYPES[dtype])
        self.model.to(self.device)
        self.records = bench.records("eval")
        self.batches = Batches(self.processor, self.records, bench.image_root, [[record["id"]] for record in self.records])

    def to_device(self, batch):
        return {name: value.to(self.device, self.model.dtype if value.is_floating_point() else None) for name, value in batch.items()}

    @torch.no_grad()
    def token_losses(self):
        """Of each record: float64 [label tokens]."""
        losses = []
        for place in range(len(self.records)):
            batch = self.to_device(self.batches[place])
            labels = batch.pop("labels")[0, 1:]
            is_label = labels >= 0
            logits = self.model(**batch, use_cache=False).logits[0, :-1][is_label].double()
            losses.append(torch.nn.functional.cross_entropy(logits, labels[is_label], reduction="none").cpu())
        return losses

    def question(self, record):
        """The inputs that ask for the record's answer."""
        messages = self.batches_messages(record)[:-1]
        batch = self.batches.encode([messages], [record["id"]], add_generation_prompt=True)
        del batch["labels"]
        return self.to_device(batch)

    def batches_messages(self, record):
        from library.idefics3_format import to_messages

        return to_messages(record)

    @torch.no_grad()
    def answer(self, record, max_new_tokens):
        inputs = self.question(record)
        generated = self.model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False, top_k=None, top_p=None)
        return self.processor.tokenizer.decode(generated[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    @torch.no_grad()
    def margin(self, record, ours, theirs):
        """Returns by how much the logit of the peer's token exceeds that of vlmtrain's, where two answers part; and where that is."""
        tokenizer = self.processor.tokenizer
        end = self.batches.end_of_turn
        ours, theirs = ([*tokenizer(text, add_special_tokens=False)["input_ids"], end] for text in (ours, theirs))
        place = next(index for index, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
        inputs = self.question(record)
        common = torch.tensor([ours[:place]], device=self.device, dtype=torch.long)
        inputs["input_ids"] = torch.cat([inputs["input_ids"], common], 1)
        for name in ("attention_mask", "token_type_ids"):
            if name in inputs:
                value = 1 if name == "attention_mask" else 0
                inputs[name] = torch.nn.functional.pad(inputs[name], (0, place), value=value)
        logits = self.model(**inputs, use_cache=False).logits[0, -1].double()
        return (logits[theirs[place]] - logits[ours[place]]).item(), place
