"""The work of a step of a published run: products and attention, counted by vlmtrain's dry run, and the bytes that the
published program's kernels move, computed from the model's sizes."""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .models import MODELS

ELEMENT_BYTES = 2  # bf16


@dataclass(frozen=True)
class Work:
    products: float  # operations per token
    attention: float  # operations per token
    moved: float  # bytes per token
    own_tokens_per_second: float  # prediction of vlmtrain's plan with its fused kernels
    trained_parameters: int


def block_elements(kernels, model):
    """Returns the elements that the element-wise kernels of a block read and write per token, forward and backward.

    fused: RMSNorm with the preceding residual addition, RoPE of queries and keys, and SwiGLU take one kernel each.
    eager: separate additions; RoPE in fp32 (a cast, a product, a cast); separate SiLU and product.
    """
    h, f = model.hidden_size, model.intermediate_size
    rotated = model.query_width + model.key_width
    if kernels == "fused":
        return 8 * h + 2 * rotated + 3 * f, 8 * h + 2 * rotated + 5 * f
    return 10 * h + 10 * rotated + 5 * f, 12 * h + 10 * rotated + 9 * f


def loss_elements(kernels, model):
    """Returns the elements that the loss moves per token. fused: logits are read and overwritten by their gradients. eager: a cast to fp32,
    log-softmax, and their backward passes."""
    return (3 if kernels == "fused" else 16) * model.vocab_size


def lora_elements(model):
    """Returns the elements that LoRA moves per linear layer: it reads the input for A, forward and backward, adds to the
    input's gradient and to the output, and reads the output's gradient for B."""
    return sum(4 * inputs + 3 * outputs for inputs, outputs in model.linears)


def moved_bytes(case):
    """A token."""
    model = MODELS[case.model]
    forward, backward = block_elements(case.kernels, model)
    block = forward * (1 + case.recomputed) + backward
    if case.lora_rank:
        block += lora_elements(model)
    elements = block * model.num_hidden_layers + loss_elements(case.kernels, model)
    trained = 0 if case.lora_rank else model.parameters / case.ranks
    return elements * ELEMENT_BYTES + trained * case.state_bytes / (case.tokens * case.samples * case.passes)


def dry_run(case, build):
    """Returns a plan with every choice fixed, whether or not it fits the GPU."""
    model = MODELS[case.model]
    blocks = round(model.num_hidden_layers * case.recomputed)
    method = ["--finetune", "lora", f"lora.rank={case.lora_rank}"] if case.lora_rank else ["--finetune", "full"]
    with tempfile.TemporaryDirectory() as folder:
        model.write(Path(folder))
        command = [
            str(build / "vlmtrain"), "plan", "--gpu", case.gpu, "--model", folder, *method, "--images", "0",
            "--text-tokens", str(case.tokens), "--answer-tokens", str(case.tokens - 1),
            "--micro-batch", str(case.samples), "--global-batch", str(case.samples * case.passes),
            "--recompute", str(blocks) if blocks else "none", "--json", "memory.vision_tiles_per_pass=0",
            "memory.loss_chunk_rows=512", "model.freeze_vision_tower=true", f"data.max_length={case.tokens}",
        ]  # fmt: skip
        environment = os.environ | {"OMP_NUM_THREADS": "1", "VLMTRAIN_PAST_RUNS": "off"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{case.who}, {case.model} on {case.gpu}: {done.stderr.strip() or done.stdout.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def make_work(case, build):
    plan = dry_run(case, build)
    if plan["tokens_per_sample"] != case.tokens:
        raise SystemExit(f"{case.model}: a sample of the plan has {plan['tokens_per_sample']} tokens")
    cost = plan["dry_run_step_cost"]
    tokens = case.tokens * case.samples * min(2, case.passes)
    return Work(
        products=cost["matmul_operations"] / tokens,
        attention=cost["attention_operations"] / tokens,
        moved=moved_bytes(case),
        own_tokens_per_second=plan["tokens_per_second"],
        trained_parameters=plan["trained_parameters"],
    )
