"""Fine-tuning ViT-L/16 at 224 × 224 on one A100: precision, batch size, accumulation, optimizer.

Sebastian Raschka, pytorch-memory-optim (logs.md, 01_pytorch-vit.py to 06_sgd-with-scheduler.py; July 2023, PyTorch 2.1
nightly with CUDA 11.8; the blog post "Optimizing Memory Usage for Training LLMs and Vision Transformers in PyTorch" names
the A100). The figures are max_memory_reserved() after training and validation, in GB (10^9).

The virtual GPU has no cuDNN, so the patch embedding uses PyTorch's own convolution. It runs once in a step; cuDNN's
workspace for it is unknown and not replayed. The model is torchvision's, the optimizer PyTorch's Adam.
"""

from functools import partial

from published_peaks.common import GB, Point, Process

TRAINING_IMAGES, VALIDATION_IMAGES, CLASSES = 45_000, 5_000, 10
STEPS = 12


def train(batch, precision="fp32", accumulate=1, sgd=False):
    """Returns the reserved peak. precision: fp32, fp16-mixed (autocast and loss scaling) or bf16 (weights too). accumulate = 1:
    gradients are cleared between forward and backward; otherwise after each optimizer step, the first after one batch."""
    import torch
    from torchvision.models import vit_l_16

    torch.backends.cudnn.enabled = False
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    mixed = precision == "fp16-mixed"
    model = vit_l_16()
    model.heads.head = torch.nn.Linear(1024, CLASSES)
    model.to("cuda", dtype)
    if sgd:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-5)
    scaler = torch.amp.GradScaler(enabled=mixed)

    def classify(images, targets):
        with torch.autocast("cuda", torch.float16, enabled=mixed):
            logits = model(images)
        if mixed:
            logits = logits.float()
        return logits, torch.nn.functional.cross_entropy(logits, targets) / accumulate

    def make_batch(size):
        images = torch.empty(size, 3, 224, 224).to("cuda").to(dtype)
        return images, torch.zeros(size, dtype=torch.int64).to("cuda")

    for step in range(STEPS):
        model.train()
        images, targets = make_batch(batch)
        logits, loss = classify(images, targets)
        if accumulate == 1:
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        if step % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            if accumulate > 1:
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            torch.argmax(logits, 1)
    with torch.no_grad():
        for size in (batch, batch, VALIDATION_IMAGES % batch or batch):
            images, targets = make_batch(size)
            classify(images, targets)
    return [torch.cuda.max_memory_reserved()]


def process(setting, published, **how):
    return Process(
        title="ViT-L/16 fine-tuning",
        stated_gpu="A100",
        gpu="a100-80",
        unit="GB",
        unit_bytes=GB,
        points=[Point(setting, published)],
        measure=partial(train, **how),
        packages={},
    )


PROCESSES = [
    process("01: fp32, batch 64, Adam", 26.79, batch=64),
    process("02: fp16 mixed precision", 18.21, batch=64, precision="fp16-mixed"),
    process("03: bf16", 13.82, batch=64, precision="bf16"),
    process("04: batch 16", 5.69, batch=16, precision="bf16"),
    process("05: batch 4, accumulated 4 times", 3.91, batch=4, precision="bf16", accumulate=4),
    process("06: SGD", 2.02, batch=4, precision="bf16", accumulate=4, sgd=True),
]
