"""Loss, logits, gradients and AdamW steps of transformers, in float32 or float64.

transformers computes some things in float32 whatever the model's type (RMSNorm, the loss). In float64 those are computed in
float64 here, so that the difference between the two runs is the rounding of a float32 run. The rotary tables are float32 in both:
they are constants of the model.
"""

from dataclasses import dataclass, replace
from types import MethodType

import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gemma4 import modeling_gemma4
from transformers.models.gemma4_unified import modeling_gemma4_unified
from transformers.models.internvl.modeling_internvl import InternVLVisionRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen2_vl import modeling_qwen2_vl
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_vl import modeling_qwen3_vl
from transformers.models.smollm3.modeling_smollm3 import SmolLM3RMSNorm

# Those that compute in float32 whatever the type of their input.
NORMS = (
    LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, modeling_qwen2_5_vl.Qwen2_5_VLRMSNorm, modeling_qwen2_vl.Qwen2VLRMSNorm,
    Qwen3RMSNorm, modeling_qwen3_vl.Qwen3VLTextRMSNorm, InternVLVisionRMSNorm, SmolLM3RMSNorm,
)
TEXT_MODEL_TYPES = ("gemma3_text", "llama", "qwen3", "qwen3_5_text", "smollm3")
L2_EPSILON = 1e-6  # of the norms of queries and keys in gated delta nets
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.1
MAX_GRAD_NORM = 1.0
STEPS = 5
# The settings of the steps in case.json.
SETTINGS = {
    "learning_rate": LEARNING_RATE, "adam_betas": [0.9, 0.999], "adam_epsilon": 1e-8, "weight_decay": WEIGHT_DECAY,
    "max_grad_norm": MAX_GRAD_NORM, "steps": STEPS,
}


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

    def renamed(self, names):
        """Returns it with `names` applied to what is by name. names: of a dict."""
        without = list(names(dict.fromkeys(self.without_gradient)))
        return replace(self, gradients=names(self.gradients), parameters=names(self.parameters), without_gradient=without)

    def tensors(self):
        """Returns them as expected.safetensors names them."""
        tensors = {f"sample.{index}.logits": logits for index, logits in enumerate(self.sample_logits)}
        tensors |= {"loss": self.loss, "step_losses": self.step_losses, "step_grad_norms": self.step_grad_norms}
        tensors |= {f"gradient.{name}": value for name, value in self.gradients.items()}
        return tensors | {f"parameter.{name}": value for name, value in self.parameters.items() if name in self.gradients}


class WideRMSNorm(torch.nn.Module):
    """The text models' RMSNorm without its cast to float32."""

    def __init__(self, norm):
        super().__init__()
        self.weight = norm.weight
        self.epsilon = norm.variance_epsilon

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)


def wide_norm(self, x):
    """Gemma3RMSNorm.forward without its cast to float32; in float32 it is the same."""
    return self._norm(x) * (1.0 + self.weight)


def wide_rotary(q, k, cos, sin):
    """apply_rotary_pos_emb_vision of Qwen without its cast to float32; in float32 it is the same."""
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    rotated = modeling_qwen2_vl.rotate_half
    return (q * cos) + (rotated(q) * sin), (k * cos) + (rotated(k) * sin)


def wide_qwen_norm(self, x):
    """Qwen3_5RMSNorm.forward without its cast to float32; in float32 it is the same."""
    return self._norm(x) * (1.0 + self.weight)


def wide_gemma4_norm(self, x):
    """Gemma4RMSNorm.forward without its cast to float32; in float32 it is the same."""
    return self._norm(x) * self.weight if self.with_scale else self._norm(x)


def wide_pooling(self, hidden_states, pixel_position_ids, padding_positions, output_length=None):
    """Gemma4VisionPooler.forward without its cast to float32; in float32 it is the same."""
    side = int((hidden_states.shape[1] // output_length) ** 0.5)
    positions = pixel_position_ids.clamp(min=0)
    columns = positions[..., 0].amax(-1, keepdim=True) + 1
    squares = positions // side
    index = squares[..., 0] + columns // side * squares[..., 1]
    shares = functional.one_hot(index, output_length).to(hidden_states.dtype) * ~padding_positions[..., None] / side**2
    return shares.transpose(1, 2) @ hidden_states * self.root_hidden_size, ~(shares == 0).all(1)


# The gated delta net of Qwen3.5 from its definition, row by row.


def normalized(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPSILON)


def delta_rule(query, key, value, log_decay, beta):
    """Returns the output [rows, heads, value_dim] of the recurrence over the rows of one sample."""
    state = torch.zeros(*key.shape[1:], value.shape[-1], dtype=value.dtype)
    outputs = []
    for q, k, v, g, b in zip(query, key, value, log_decay, beta):
        state = state * g.exp()[:, None, None]
        correction = (v - torch.einsum("hkv,hk->hv", state, k)) * b[:, None]
        state = state + torch.einsum("hk,hv->hkv", k, correction)
        outputs.append(torch.einsum("hkv,hk->hv", state, q))
    return torch.stack(outputs)


def wide_delta_net(self, hidden_states, cache=None, attention_mask=None, **kwargs):
    """Qwen3_5GatedDeltaNet.forward for one sample without a cache."""
    x = hidden_states[0]
    channels = self.in_proj_qkv(x).T[None]
    rows = functional.conv1d(channels, self.conv1d.weight, padding=self.conv_kernel_size - 1, groups=self.conv_dim)
    rows = functional.silu(rows[0, :, : len(x)].T)
    query, key, value = rows.split([self.key_dim, self.key_dim, self.value_dim], -1)
    repeats = self.num_v_heads // self.num_k_heads
    query, key = (normalized(part.unflatten(-1, (-1, self.head_k_dim))).repeat_interleave(repeats, 1) for part in (query, key))
    output = delta_rule(
        query * self.head_k_dim**-0.5,
        key,
        value.unflatten(-1, (-1, self.head_v_dim)),
        -self.A_log.exp() * functional.softplus(self.in_proj_a(x) + self.dt_bias),
        self.in_proj_b(x).sigmoid(),
    )
    normed = output * torch.rsqrt(output.square().mean(-1, keepdim=True) + self.norm.variance_epsilon) * self.norm.weight
    gate = functional.silu(self.in_proj_z(x).unflatten(-1, (-1, self.head_v_dim)))
    return self.out_proj((normed * gate).flatten(1))[None]


def widen_delta_nets(model):
    """Makes the gated delta nets of a model compute in its own type."""
    for module in model.modules():
        if isinstance(module, modeling_qwen3_5.Qwen3_5GatedDeltaNet):
            module.forward = MethodType(wide_delta_net, module)


modeling_gemma3.Gemma3RMSNorm.forward = wide_norm
modeling_gemma4.Gemma4RMSNorm.forward = wide_gemma4_norm
modeling_gemma4.Gemma4VisionPooler.forward = wide_pooling
modeling_gemma4_unified.Gemma4UnifiedRMSNorm.forward = wide_gemma4_norm
modeling_qwen3_5.Qwen3_5RMSNorm.forward = wide_qwen_norm
for modeling in (modeling_qwen2_vl, modeling_qwen2_5_vl, modeling_qwen3_vl, modeling_qwen3_5):
    modeling.apply_rotary_pos_emb_vision = wide_rotary


def in_float64(model):
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NORMS):
                setattr(module, name, WideRMSNorm(child))
    widen_delta_nets(model)
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
    inputs = {"input_ids": sample.input_ids[None]} | sample.model_inputs
    return {name: value.to(dtype) if name.startswith("pixel_values") else value for name, value in inputs.items()}


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


def run(model, samples, saved_name=lambda name: name):
    """Returns the result of training what has a gradient. saved_name: of a parameter in the file."""
    parameters = [(saved_name(name), p) for name, p in model.named_parameters() if p.requires_grad]
    adamw = optimizer(model)
    losses, norms = [], []
    for step in range(STEPS):
        loss, logits = batch_loss(model, samples)
        adamw.zero_grad()
        loss.backward()
        if step == 0:
            first_logits = [value.detach() for value in logits]
            gradients = {name: p.grad.clone() for name, p in parameters if p.grad is not None}
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_([p for _, p in parameters], MAX_GRAD_NORM))
        adamw.step()
    return Result(
        loss=losses[0],
        sample_logits=first_logits,
        gradients=gradients,
        without_gradient=[name for name, _ in parameters if name not in gradients],
        step_losses=torch.stack(losses),
        step_grad_norms=torch.stack(norms),
        parameters={name: p.detach() for name, p in parameters},
    )


def padded_loss(model, samples, pad_id):
    """What transformers itself answers for the whole batch: padded on the right, labels -100 elsewhere."""
    pad = torch.nn.utils.rnn.pad_sequence
    inputs = {
        "input_ids": pad([s.input_ids for s in samples], True, pad_id),
        "attention_mask": pad([torch.ones_like(s.input_ids) for s in samples], True, 0),
        "labels": pad([s.input_ids.where(s.label_mask, -100) for s in samples], True, -100),
    }
    with_images = [s.model_inputs for s in samples if s.model_inputs]
    for name in with_images[0] if with_images else ():
        empty = with_images[0][name][0, :0]
        inputs[name] = pad([s.model_inputs[name][0] if s.model_inputs else empty for s in samples], True)
    with torch.no_grad():
        return model(**inputs, use_cache=False).loss


def generate(model, inputs, tokens, ends):
    """Returns greedy token ids, and the smallest lead of a chosen token over the next best one."""
    if not ends:
        model.generation_config.eos_token_id = None
    output = model.generate(
        **inputs, do_sample=False, max_new_tokens=tokens, output_logits=True, return_dict_in_generate=True
    )
    new_ids = output.sequences[0, inputs["input_ids"].shape[1] :]
    best = torch.stack(output.logits)[:, 0].topk(2).values
    return new_ids, (best[:, 0] - best[:, 1]).min().item()
