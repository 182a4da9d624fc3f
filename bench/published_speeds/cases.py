"""Published speeds and their settings. docs/benchmarks/published.md has the rule of selection and the exclusions."""

from dataclasses import dataclass

LLMQ = "https://github.com/IST-DASLab/llmq/blob/b77d969164ac/"
AUTOMODEL = "https://github.com/NVIDIA-NeMo/Automodel/blob/2861c4143cd3/docs/performance-summary.mdx"
FMS = "https://github.com/foundation-model-stack/fms-fsdp/blob/5a296afe42f9/README.md"
TINYLLAMA = "https://github.com/jzhang38/TinyLlama/blob/bf122247c486/README.md"
TORCHTUNE = "https://github.com/meta-pytorch/torchtune/blob/7d470bfae5be/README.md"
TORCHTITAN = "https://github.com/pytorch/torchtitan/blob/041336434916/docs/performance.md"
QWEN = "https://github.com/QwenLM/Qwen/blob/03cd81f5e4da/README.md"


@dataclass(frozen=True)
class Case:
    """A published run. `tokens_per_second`: of one GPU. `kernels`: fused or eager, which decides the bytes work.py counts."""

    who: str
    source: str
    gpu: str  # name in vlmtrain's table
    model: str
    tokens: int  # per sample
    samples: int  # per micro-batch
    passes: int  # micro-batches per optimizer step
    tokens_per_second: float
    kernels: str = "fused"
    lora_rank: int = 0  # 0: full training
    recomputed: float = 0  # fraction of the blocks
    ranks: int = 1  # ranks that share weights and optimizer states
    state_bytes: int = 16  # bytes that the optimizer moves per trained parameter, gradient included

    @property
    def key(self):
        return (self.gpu, self.who, self.model, self.tokens, self.recomputed)


def llmq(gpu, model, samples, tokens_per_second, file="README.md"):
    """Returns an LLMQ case: 2^19 tokens a step, bf16 weights and moments, no recomputation, no offloading."""
    return Case("LLMQ", LLMQ + file, gpu, model, 1024, samples, 512 // samples, tokens_per_second)


CASES = [
    llmq("h100", "Qwen2.5-0.5B", 32, 149e3, "benchmarks/H100x1.md"),
    llmq("h100", "Qwen2.5-1.5B", 32, 58.8e3, "benchmarks/H100x1.md"),
    llmq("h100", "Qwen2.5-3B", 16, 30.9e3, "benchmarks/H100x1.md"),
    llmq("h100", "Qwen2.5-7B", 4, 13.8e3, "benchmarks/H100x1.md"),
    llmq("rtx-pro-6000", "Qwen2.5-0.5B", 32, 86.2e3, "benchmarks/Pro6000x1.md"),
    llmq("rtx-pro-6000", "Qwen2.5-1.5B", 32, 32.4e3, "benchmarks/Pro6000x1.md"),
    llmq("rtx-pro-6000", "Qwen2.5-3B", 16, 17.2e3, "benchmarks/Pro6000x1.md"),
    llmq("rtx-pro-6000", "Qwen2.5-7B", 8, 8.08e3, "benchmarks/Pro6000x1.md"),
    llmq("rtx4090", "Qwen2.5-0.5B", 16, 39.8e3, "benchmarks/4090x1.md"),
    llmq("rtx4090", "Qwen2.5-1.5B", 4, 14.1e3, "benchmarks/4090x1.md"),
    llmq("rtx5060ti-16", "Qwen2.5-0.5B", 10, 13.0e3, "benchmarks/5060Ti.md"),
    llmq("rtx5090", "Qwen2.5-0.5B", 16, 55e3),
    llmq("l40s", "Qwen2.5-0.5B", 16, 44e3),
    llmq("l40s", "Qwen2.5-1.5B", 8, 17e3),
    llmq("l40s", "Qwen2.5-3B", 4, 8.9e3),
    # Liger's kernels and FlashAttention-2; the Trainer's gradient checkpointing is LLaMA-Factory's default.
    Case("LLaMA-Factory + Liger", LLMQ + "benchmarks/4090x1.md", "rtx4090", "Qwen2.5-0.5B", 1024, 128, 4, 30183,
         recomputed=1),
    Case("LLaMA-Factory + Liger", LLMQ + "benchmarks/4090x1.md", "rtx4090", "Qwen2.5-1.5B", 1024, 32, 16, 9419,
         recomputed=1),
    Case("Automodel", AUTOMODEL, "h100", "Llama-3-8B", 4096, 2, 16, 12472.87, lora_rank=16),
    Case("Automodel", AUTOMODEL, "h100", "Qwen2.5-7B", 4096, 2, 16, 14110.05, lora_rank=16),
    # 128 A100 with 400 Gbit/s and 96 H100 with 800 Gbit/s a machine; torch.compile, no recomputation.
    Case("fms-fsdp", FMS, "a100-80", "Llama-2-7B", 4096, 2, 1, 4550, ranks=128, state_bytes=28),
    Case("fms-fsdp", FMS, "h100", "Llama-2-7B", 4096, 2, 1, 9600, ranks=96, state_bytes=28),
    # 16 A100 with FSDP; FlashAttention's and xformers' fused kernels.
    Case("TinyLlama", TINYLLAMA, "a100-40", "TinyLlama-1.1B", 2048, 8, 8, 24e3, ranks=16, state_bytes=28),
    # Packed, compiled, loss in chunks; then with all blocks recomputed.
    Case("torchtune", TORCHTUNE, "a100-80", "Llama-3.2-3B", 4096, 2, 1, 9174),
    Case("torchtune", TORCHTUNE, "a100-80", "Llama-3.2-3B", 4096, 2, 1, 7210, recomputed=1),
    # 64 A100 with FSDP2; PyTorch's own operations, one block of two recomputed with Llama 3.
    Case("torchtitan", TORCHTITAN, "a100-80", "Llama-2-13B", 4096, 2, 1, 2162, kernels="eager", ranks=64,
         state_bytes=28),
    Case("torchtitan", TORCHTITAN, "a100-80", "Llama-3-8B", 8192, 1, 1, 2904, kernels="eager", recomputed=0.5, ranks=64,
         state_bytes=28),
    # Its finetune.py: transformers' Trainer and PEFT, gradient checkpointing, rank 64, FlashAttention-2.
    Case("Qwen", QWEN, "a100-80", "Qwen-1.8B", 8192, 1, 8, 8 * 8192 / 6.8, kernels="eager", lora_rank=64, recomputed=1),
    Case("Qwen", QWEN, "a100-80", "Qwen-7B", 4096, 1, 8, 8 * 4096 / 10.1, kernels="eager", lora_rank=64, recomputed=1),
    Case("Qwen", QWEN, "a100-80", "Qwen-14B", 4096, 1, 8, 8 * 4096 / 17.0, kernels="eager", lora_rank=64, recomputed=1),
]  # fmt: skip


def halves():
    """Returns the cases in the order of their keys, split into fitted and held-out ones alternately."""
    ordered = sorted(CASES, key=lambda case: case.key)
    return ordered[0::2], ordered[1::2]
