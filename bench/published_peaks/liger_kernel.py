"""Layers and losses in plain PyTorch, the baselines of Liger Kernel's benchmarks on A100, H100, B200 and RTX 4090.

linkedin/Liger-Kernel, benchmark/data/all_benchmark_data.csv: rows with metric "memory" and provider "huggingface" or "torch";
benchmark/scripts/benchmark_*.py at the date of the row, and _test_memory in utils.py: the median over ten runs of the peak
of allocated memory, in MiB (2^20), resident memory included, with gradients accumulated from run to run. If a script also
creates the Liger module, its parameters are resident here too. All scripts except tvd's measure speed first, at all sizes.
Here each size runs once before the first is measured, because the allocator's cached segments decide how blocks are split.
"""

import statistics
from functools import partial

from published_peaks.common import MIB, Point, Process, measure_peak

RUNS = 10


def median_peak(run):
    return int(statistics.median(measure_peak(run) for _ in range(RUNS)))


def full(forward, gradient=None):
    """Runs forward and backward, with a new gradient if none is given."""
    import torch

    y = forward()
    y.backward(torch.randn_like(y) if gradient is None else gradient, retain_graph=True)


def linear(hidden, outputs, dtype):
    import torch

    return torch.nn.Linear(hidden, outputs, bias=False, device="cuda", dtype=dtype)


def fused_linear_cross_entropy(tokens):
    import torch

    hidden, vocabulary, dtype = 4096, 128_256, torch.bfloat16
    head = linear(hidden, vocabulary, dtype)
    other = linear(hidden, vocabulary, dtype)  # Liger's
    x = torch.randn(tokens, hidden, device="cuda", dtype=dtype, requires_grad=True)
    targets = torch.randint(vocabulary, (tokens,), device="cuda")
    loss = torch.nn.CrossEntropyLoss()
    peak = median_peak(lambda: loss(head(x), targets).backward())
    del other
    return peak


def cross_entropy(vocabulary):
    import torch

    x = torch.randn(8 * 2048, vocabulary, device="cuda", requires_grad=True)
    targets = torch.randint(vocabulary, (8 * 2048,), device="cuda")
    loss = torch.nn.CrossEntropyLoss()
    return median_peak(lambda: loss(x, targets).backward())


def gated_mlp(batch, hidden, inner, activation, mode, tokens):
    """Llama's MLP in bf16; mode is full, forward or backward."""
    import torch
    from torch.nn import functional

    act = {"silu": functional.silu, "gelu": partial(functional.gelu, approximate="tanh")}[activation]
    x = torch.randn(batch, tokens, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    gate, up = (linear(hidden, inner, torch.bfloat16) for _ in range(2))
    down = linear(inner, hidden, torch.bfloat16)

    def forward():
        return down(act(gate(x)) * up(x))

    if mode == "full":
        return median_peak(lambda: full(forward))
    if mode == "forward":
        return median_peak(forward)
    gradient = torch.randn_like(x)
    y = forward()
    return median_peak(lambda: y.backward(gradient, retain_graph=True))


def rms_norm(hidden):
    """Llama's RMSNorm: bf16 input, float32 weight."""
    import torch

    weight = torch.nn.Parameter(torch.ones(hidden, device="cuda"))
    other = torch.ones(hidden, device="cuda")  # Liger's
    x = torch.randn(2048, hidden, device="cuda", dtype=torch.bfloat16)
    gradient = torch.randn_like(x)
    x.requires_grad_(True)

    def forward():
        h = x.to(torch.float32)
        variance = h.pow(2).mean(-1, keepdim=True)
        h = h * torch.rsqrt(variance + 1e-6)
        return weight * h.to(x.dtype)

    peak = median_peak(lambda: full(forward, gradient))
    del other
    return peak


def native_norm(module, shape, parameters):
    """torch.nn's LayerNorm or GroupNorm in float32."""
    import torch

    norm = module().cuda()
    others = [torch.ones(parameters, device="cuda") for _ in range(2)]  # Liger's weight and bias
    x = torch.randn(shape, device="cuda")
    gradient = torch.randn_like(x)
    x.requires_grad_(True)
    peak = median_peak(lambda: full(lambda: norm(x), gradient))
    del others
    return peak


def layer_norm(hidden):
    import torch

    return native_norm(lambda: torch.nn.LayerNorm(hidden, eps=1e-6), (4096, hidden), hidden)


def group_norm(channels):
    import torch

    return native_norm(lambda: torch.nn.GroupNorm(channels // 4, channels, eps=1e-6), (128, channels, 512), channels)


def jensen_shannon(log_q, log_p, dtype):
    """Returns the Jensen-Shannon divergence of log probabilities with weight 1/2, averaged over the rows."""
    import torch

    kl = torch.nn.KLDivLoss(reduction="none", log_target=True)
    log_p, log_q = log_p.to(torch.float), log_q.to(torch.float)
    m = torch.lerp(torch.exp(log_q), torch.exp(log_p), 0.5)
    loss = 0.5 * kl(torch.log(m), log_p).sum(dim=-1) + 0.5 * kl(torch.log(m), log_q).sum(dim=-1)
    return (loss / log_q.shape[0]).sum().to(dtype)


def fused_linear_jsd(tokens):
    import torch

    hidden, vocabulary, dtype = 4096, 128_256, torch.bfloat16
    student_head, teacher_head = (linear(hidden, vocabulary, dtype) for _ in range(2))
    student = torch.rand(tokens, hidden, device="cuda", dtype=dtype, requires_grad=True)
    teacher = torch.rand(tokens, hidden, device="cuda", dtype=dtype)

    def forward():
        student_logits = student_head(student)
        teacher_logits = teacher_head(teacher)
        log_q = torch.log_softmax(student_logits / 1.0, dim=-1)
        log_p = torch.log_softmax(teacher_logits / 1.0, dim=-1)
        return jensen_shannon(log_q, log_p, dtype)

    return median_peak(lambda: forward().backward())


def jsd(tokens):
    import torch

    vocabulary = 128_256
    log_q = torch.randn(tokens, vocabulary, device="cuda", requires_grad=True).log_softmax(dim=-1)
    log_p = torch.randn(tokens, vocabulary, device="cuda").log_softmax(dim=-1)
    return median_peak(lambda: full(lambda: jensen_shannon(log_q, log_p, torch.float)))


def total_variation(vocabulary):
    import torch

    q = torch.randn(8 * 2048, vocabulary, device="cuda", requires_grad=True).softmax(dim=-1)
    p = torch.randn(8 * 2048, vocabulary, device="cuda").softmax(dim=-1)
    return median_peak(lambda: (torch.sum(torch.abs(q - p) / 2.0) / q.size(0)).backward(retain_graph=True))


A100, H100, B200, RTX4090 = ("A100-SXM4-80GB", "a100-80"), ("H100 80GB HBM3", "h100"), ("B200", "b200"), ("RTX 4090", "rtx4090")


def process(name, gpu, run, variable, published, speed_first=True):
    """Returns a process. published: {value of the variable: MiB}, measured in sequence in one process."""
    return modes_process(name, gpu, {"full": run}, variable, {"full": published}, speed_first)


def modes_process(name, gpu, runs, variable, published, speed_first=True):
    """Returns a process. published: {mode: {value of the variable: MiB}}, in the order of the script."""

    def measure():
        calls = [(runs[mode], value) for mode, row in published.items() for value in row]
        if speed_first:
            for run, value in calls:
                run(value)
        return [run(value) for run, value in calls]

    return Process(
        title=f"Liger Kernel, {name}",
        stated_gpu=gpu[0],
        gpu=gpu[1],
        unit="MiB",
        unit_bytes=MIB,
        points=[Point(f"{mode}, {value} {variable}", mib) for mode, row in published.items() for value, mib in row.items()],
        measure=measure,
    )


def mlp_process(name, gpu, batch, hidden, inner, activation, published):
    runs = {mode: partial(gated_mlp, batch, hidden, inner, activation, mode) for mode in published}
    return modes_process(name, gpu, runs, "tokens", published)


GEGLU = {1024: 1992.25, 2048: 3452.25, 4096: 6372.25, 8192: 12212.25}
LAYER_NORM = {1024: 80.0625, 2048: 160.09375, 4096: 320.15625, 8192: 640.28125, 16384: 1280.53125}
TILED = {1024: 264.25, 2048: 400.25, 4096: 688.25, 8192: 1264.25, 16384: 2416.25}
TILED_MODES = {
    "full": TILED,
    "forward": {1024: 144.25, 2048: 224.25, 4096: 384.25, 8192: 704.25, 16384: 1344.25},
    "backward": TILED,
}

PROCESSES = [
    process(
        "fused_linear_cross_entropy (Llama 3 8B head, bf16)",
        A100,
        fused_linear_cross_entropy,
        "tokens",
        {4096: 6092.2822265625, 8192: 9162.3134765625, 16384: 15302.3759765625, 32768: 27582.5},
    ),
    process(
        "cross_entropy (16,384 tokens, fp32)",
        A100,
        cross_entropy,
        "words",
        {
            4096: 1280.1259765625,
            8192: 2560.1259765625,
            16384: 5120.1259765625,
            32768: 10240.1259765625,
            65536: 20480.125,
            131072: 40960.125,
        },
    ),
    mlp_process(
        "swiglu (batch 4, 4096 × 11008, bf16)",
        A100,
        4,
        4096,
        11008,
        "silu",
        {"full": {1024: 1294.25, 2048: 1992.25, 4096: 3452.25, 8192: 6372.25}},
    ),
    mlp_process(
        "geglu (batch 8, 4096 × 11008, bf16)",
        A100,
        8,
        4096,
        11008,
        "gelu",
        {"full": GEGLU, "forward": {1024: 1090.25, 2048: 1906.25, 4096: 3538.25, 8192: 6802.25}, "backward": GEGLU},
    ),
    process(
        "rms_norm (2,048 tokens, bf16)",
        A100,
        rms_norm,
        "hidden",
        {1024: 80.01953125, 2048: 160.03125, 4096: 320.0546875, 8192: 640.1015625, 16384: 1280.1953125, 32768: 2560.3828125},
    ),
    process("layer_norm (4,096 tokens, fp32)", A100, layer_norm, "hidden", LAYER_NORM),
    process("layer_norm (4,096 tokens, fp32)", H100, layer_norm, "hidden", LAYER_NORM),
    process(
        "fused_linear_jsd (Llama 3 8B heads, bf16)",
        H100,
        fused_linear_jsd,
        "tokens",
        {1024: 10609.005859375, 2048: 17146.009765625, 4096: 30220.017578125, 8192: 56368.015625},
    ),
    process(
        "tvd (16,384 tokens, fp32)",
        H100,
        total_variation,
        "words",
        {
            4096: 2048.0009765625,
            8192: 4096.0009765625,
            16384: 8192.0009765625,
            32768: 16384.0,
            65536: 32768.0,
            131072: 65536.0,
        },
        speed_first=False,
    ),
    process(
        "jsd (128,256 words, fp32)",
        B200,
        jsd,
        "tokens",
        {1024: 6526.0009765625, 2048: 13026.0009765625, 4096: 26052.0, 8192: 52104.0},
    ),
    process(
        "group_norm (128 × 512, groups of 4, fp32)",
        B200,
        group_norm,
        "channels",
        {
            32: 40.06640625,
            64: 80.12890625,
            128: 160.25390625,
            256: 320.5078125,
            512: 641.015625,
            1024: 1282.03125,
            2048: 2564.0625,
        },
    ),
    mlp_process("tiled_geglu (batch 2, 2048 × 4096, bf16)", RTX4090, 2, 2048, 4096, "gelu", TILED_MODES),
    mlp_process("tiled_swiglu (batch 2, 2048 × 4096, bf16)", RTX4090, 2, 2048, 4096, "silu", TILED_MODES),
]
