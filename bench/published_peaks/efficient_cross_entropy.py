"""A Linear and CrossEntropyLoss in float32, the "torch" rows of three CSV files that are exact to the byte.

mgmalek/efficient_cross_entropy, benchmark_data/{n_classes,n_tokens,dim}.csv with benchmark.py and modules.py (February 2024),
in GB (10^9). The GPU is not stated; 3.3 TFLOP in 0.188 s are 17.6 TFLOP/s in float32, an A100's. A figure is the growth of
the peak over the memory allocated before input, module, forward and backward; the points run in sequence in one process.
"""

from published_peaks.common import GB, Point, Process

# (tokens, hidden size, classes): published; in the order of the script.
SWEEPS = {
    "classes": {
        (8192, 2048, 2048): 0.293798912,
        (8192, 2048, 4096): 0.50338304,
        (8192, 2048, 8192): 0.939590656,
        (8192, 2048, 16384): 1.812005888,
        (8192, 2048, 32768): 3.556836352,
        (8192, 2048, 65536): 7.04649728,
    },
    "tokens": {
        (1024, 2048, 32768): 0.687875072,
        (2048, 2048, 32768): 1.090536448,
        (4096, 2048, 32768): 1.912636416,
        (8192, 2048, 32768): 3.556836352,
        (16384, 2048, 32768): 6.845236224,
    },
    "hidden size": {
        (8192, 1024, 32768): 3.389064192,
        (8192, 2048, 32768): 3.556836352,
        (8192, 4096, 32768): 3.892380672,
        (8192, 8192, 32768): 4.563469312,
    },
}


def measure():
    import torch

    def grown(tokens, hidden, classes):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.max_memory_allocated()
        features = torch.randn(tokens, hidden, device="cuda", requires_grad=True)
        targets = torch.randint(classes, (tokens,), device="cuda")
        head = torch.nn.Linear(hidden, classes, bias=False).cuda()
        torch.nn.CrossEntropyLoss()(head(features), targets).mean().backward()
        return torch.cuda.max_memory_allocated() - before

    return [grown(*sizes) for sweep in SWEEPS.values() for sizes in sweep]


PROCESSES = [
    Process(
        title="efficient_cross_entropy, torch",
        stated_gpu="not stated",
        gpu="a100-80",
        unit="GB",
        unit_bytes=GB,
        points=[
            Point(f"{tokens} tokens, hidden {hidden}, {classes} classes ({name})", published)
            for name, sweep in SWEEPS.items()
            for (tokens, hidden, classes), published in sweep.items()
        ],
        measure=measure,
    )
]
