"""Loss, logits, gradients and AdamW steps of transformers, in float32 or float64.

transformers computes some things in float32 whatever the model's type (RMSNorm, the loss). In float64 those are computed in
float64 here, so that the difference between the two runs is the rounding of a float32 run. The rotary tables are float32 in both:
they are constants of the model.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.internvl.modeling_internvl import InternVLVisionRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRMSNorm
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRMSNorm
from transformers.models.smollm3.modeling_smollm3 import SmolLM3RMSNorm

# Those that compute in float32 whatever the type of their input.
NORMS = (
    LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen2_5_VLRMSNorm, Qwen2VLRMSNorm, Qwen3RMSNorm, Qwen3VLTextRMSNorm,
    InternVLVisionRMSNorm, SmolLM3RMSNorm,
)
TEXT_MODEL_TYPES = ("gemma3_text", "llama", "qwen3", "smollm3")
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.1
MAX_GRAD_NORM = 1.0
STEPS = 5


@dataclass
class Result:
    """sample_logits: one [label tokens, vocabulary] each; steps start from the checkpoint's weights."""

    loss: torch.Tensor
    sample_logits: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]
    without_gradient: list[str]
    step_losses: torch.Tensor
    step_grad_norms: torch.Tensor
    parameters: dict[str, torch.Tensor]


class WideRMSNorm(torch.nn.Module):
    """The text models' RMSNorm without its cast to float32."""

    def __init__(self, norm):
        super().__init__()
        self.weight = norm.weight
        self.epsilon = norm.variance_epsilon

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)


def in_float64(model):
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NORMS):
                setattr(module, name, WideRMSNorm(child))
    return model.double()


def load(checkpoint, dtype, attention="sdpa"):
    is_text_model = AutoConfig.from_pretrained(checkpoint).model_type in TEXT_MODEL_TYPES
    model, info = (AutoModelForCausalLM if is_text_model else AutoModelForImageTextToText).from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation=attention, output_loading_info=True
    )
    problems = {key: value for key, value in info.items() if value}
    assert not problems, f"{checkpoint} does not load cleanly: {problems}"
    return (in_float64(model) if dtype == torch.float64 else model).eval()


def forward_inputs(sample, dtype):
    inputs = {"input_ids": sample.input_ids[None]}
    if hasattr(sample, "model_inputs"):  # Qwen2-VL: patches of any number
        as_weights = {name: value.to(dtype) for name, value in sample.model_inputs.items() if name.startswith("pixel_values")}
        return inputs | sample.model_inputs | as_weights
    if sample.pixel_values is not None:
        if hasattr(sample, "image_places"):  # nanoVLM
            inputs["image_places"] = sample.image_places
        if sample.pixel_attention_mask is None:  # LLaVA: one image after the other, all of one size
            return inputs | {"pixel_values": sample.pixel_values.to(dtype)}
        inputs["pixel_values"] = sample.pixel_values[None].to(dtype)
        inputs["pixel_attention_mask"] = sample.pixel_attention_mask[None]
    return inputs


def label_logits(model, sample):
    """Logits at the positions that predict labels: the one before each label."""
    logits = model(**forward_inputs(sample, model.dtype), use_cache=False).logits[0]
    return logits[:-1][sample.label_mask[1:]]


def batch_loss(model, samples):
    """The sum of all token losses over all samples, divided by the number of all label tokens."""
    logits = [label_logits(model, sample) for sample in samples]
    labels = torch.cat([sample.input_ids[sample.label_mask] for sample in samples])
    total = functional.cross_entropy(torch.cat(logits), labels, reduction="sum")
    return total / len(labels), logits


def optimizer(model):
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.999), eps=1e-8, foreach=False)


def run(checkpoint, samples, dtype, attention="sdpa"):
    return run_model(load(checkpoint, dtype, attention), samples)


def run_model(model, samples):
    adamw = optimizer(model)
    losses, norms = [], []
    for step in range(STEPS):
        loss, logits = batch_loss(model, samples)
        adamw.zero_grad()
        loss.backward()
        if step == 0:
            first_logits = [value.detach() for value in logits]
            gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
            without = [n for n, p in model.named_parameters() if p.grad is None]
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM))
        adamw.step()
    return Result(
        loss=losses[0],
        sample_logits=first_logits,
        gradients=gradients,
        without_gradient=without,
        step_losses=torch.stack(losses),
        step_grad_norms=torch.stack(norms),
        parameters={n: p.detach() for n, p in model.named_parameters()},
    )


def padded_loss(checkpoint, samples, pad_id):
    """What transformers itself answers for the whole batch: padded on the right, labels -100 elsewhere."""
    model = load(checkpoint, torch.float32)
    pad = torch.nn.utils.rnn.pad_sequence
    inputs = {
        "input_ids": pad([s.input_ids for s in samples], True, pad_id),
        "attention_mask": pad([torch.ones_like(s.input_ids) for s in samples], True, 0),
        "labels": pad([s.input_ids.where(s.label_mask, -100) for s in samples], True, -100),
    }
    if any(s.pixel_values is not None for s in samples):
        like = next(s for s in samples if s.pixel_values is not None)
        empty = like.pixel_values[:0], like.pixel_attention_mask[:0]
        tiles = [(s.pixel_values, s.pixel_attention_mask) if s.pixel_values is not None else empty for s in samples]
        inputs["pixel_values"] = pad([pixels for pixels, _ in tiles], True)
        inputs["pixel_attention_mask"] = pad([mask for _, mask in tiles], True)
    with torch.no_grad():
        return model(**inputs, use_cache=False).loss


def generate(checkpoint, inputs, tokens):
    """Greedy tokens, and the smallest lead of a chosen token over the next best one."""
    model = load(checkpoint, torch.float32)
    output = model.generate(
        **inputs, do_sample=False, max_new_tokens=tokens, output_logits=True, return_dict_in_generate=True
    )
    new_ids = output.sequences[0, inputs["input_ids"].shape[1] :]
    best = torch.stack(output.logits)[:, 0].topk(2).values
    return new_ids, (best[:, 0] - best[:, 1]).min().item()
