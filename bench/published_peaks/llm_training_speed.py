"""Training steps of GPT-2 124M with AdamW, from textbook code to PyTorch's layers and attention.

Sebastian Raschka, LLMs-from-scratch, ch05/10_llm-training-speed: README.md with 00_orig.py and 01_opt_single_gpu.py (A100,
PyTorch 2.6.0, CUDA 12.4). The figures are memory_reserved() and memory_allocated() after the first epoch, in GiB (2^30):
51 steps on batches of 8 × 1,024, an evaluation of a batch of each set after every 15th step, and 50 tokens generated at the
end. Only the first and the last version of the code are published; the others are written from their description.
"""

from functools import partial

from published_peaks.common import GIB, Point, Process

LAYERS, HIDDEN, HEADS, CONTEXT, DROPOUT = 12, 768, 12, 1024, 0.1
BATCH, STEPS, EVALUATE_EVERY, WORDS = 8, 51, 15, 50


def model(vocabulary, stored_mask, native_layers, native_attention):
    import torch
    from torch import nn

    class ScratchNorm(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(size))
            self.shift = nn.Parameter(torch.zeros(size))

        def forward(self, x):
            mean = x.mean(dim=-1, keepdim=True)
            variance = x.var(dim=-1, keepdim=True, unbiased=False)
            return self.scale * ((x - mean) / torch.sqrt(variance + 1e-5)) + self.shift

    class ScratchGelu(nn.Module):
        def forward(self, x):
            inner = torch.sqrt(torch.tensor(2.0 / torch.pi)) * (x + 0.044715 * torch.pow(x, 3))
            return 0.5 * x * (1 + torch.tanh(inner))

    class ScratchAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3))
            self.out = nn.Linear(HIDDEN, HIDDEN)
            self.dropout = nn.Dropout(DROPOUT)
            if stored_mask:
                self.register_buffer("mask", torch.triu(torch.ones(CONTEXT, CONTEXT), diagonal=1))

        def forward(self, x):
            batch, tokens, _ = x.shape
            keys, queries, values = self.key(x), self.query(x), self.value(x)
            keys, values, queries = (
                t.view(batch, tokens, HEADS, HIDDEN // HEADS).transpose(1, 2) for t in (keys, values, queries)
            )
            scores = queries @ keys.transpose(2, 3)
            if stored_mask:
                mask = self.mask.bool()[:tokens, :tokens]
            else:
                mask = torch.triu(torch.ones(tokens, tokens, dtype=torch.bool, device=x.device), diagonal=1)
            scores.masked_fill_(mask, -torch.inf)
            weights = self.dropout(torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1))
            context = (weights @ values).transpose(1, 2)
            context = context.reshape(batch, tokens, HIDDEN)
            return self.out(context)

    class NativeAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
            self.out = nn.Linear(HIDDEN, HIDDEN)

        def forward(self, x):
            batch, tokens, _ = x.shape
            qkv = self.qkv(x)
            qkv = qkv.view(batch, tokens, 3, HEADS, HIDDEN // HEADS)
            qkv = qkv.permute(2, 0, 3, 1, 4)
            queries, keys, values = qkv
            context = nn.functional.scaled_dot_product_attention(
                queries, keys, values, dropout_p=DROPOUT if self.training else 0.0, is_causal=True
            )
            context = context.transpose(1, 2).contiguous().view(batch, tokens, HIDDEN)
            return self.out(context)

    norm = nn.LayerNorm if native_layers else ScratchNorm

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = NativeAttention() if native_attention else ScratchAttention()
            gelu = nn.GELU(approximate="tanh") if native_layers else ScratchGelu()
            self.mlp = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), gelu, nn.Linear(4 * HIDDEN, HIDDEN))
            self.norm1, self.norm2 = norm(HIDDEN), norm(HIDDEN)
            self.dropout = nn.Dropout(DROPOUT)

        def forward(self, x):
            shortcut = x
            x = self.norm1(x)
            x = self.attention(x)
            x = self.dropout(x)
            x = x + shortcut
            shortcut = x
            x = self.norm2(x)
            x = self.mlp(x)
            x = self.dropout(x)
            return x + shortcut

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.positions = nn.Embedding(vocabulary, HIDDEN), nn.Embedding(CONTEXT, HIDDEN)
            self.dropout = nn.Dropout(DROPOUT)
            self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
            self.norm = norm(HIDDEN)
            self.head = nn.Linear(HIDDEN, vocabulary, bias=False)

        def forward(self, ids):
            words = self.words(ids)
            positions = self.positions(torch.arange(ids.shape[1], device=ids.device))
            x = words + positions
            x = self.dropout(x)
            x = self.blocks(x)
            x = self.norm(x)
            return self.head(x)

    return Gpt()


def after_an_epoch(stored_mask=False, fused=True, bf16=False, native_layers=False, native_attention=False):
    """Returns (reserved, allocated) bytes after the first epoch."""
    import torch

    vocabulary = 50_257
    gpt = model(vocabulary, stored_mask, native_layers, native_attention).to("cuda")
    if bf16:
        gpt.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=5e-4, weight_decay=0.1, fused=fused or None)

    def loss_of_a_batch():
        inputs, targets = (torch.randint(vocabulary, (BATCH, CONTEXT)).to("cuda") for _ in range(2))
        logits = gpt(inputs)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def evaluate():
        gpt.eval()
        with torch.no_grad():
            for _ in range(2):
                loss_of_a_batch().item()
        gpt.train()

    def generate():
        gpt.eval()
        ids = torch.randint(vocabulary, (1, 4)).to("cuda")
        with torch.no_grad():
            for _ in range(WORDS):
                logits = gpt(ids[:, -CONTEXT:])
                logits = logits[:, -1, :]
                ids = torch.cat((ids, torch.argmax(logits, dim=-1, keepdim=True)), dim=1)

    gpt.train()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of_a_batch()
        loss.backward()
        optimizer.step()
        if step % EVALUATE_EVERY == 0:
            evaluate()
    generate()
    return [torch.cuda.memory_reserved(), torch.cuda.memory_allocated()]


def process(setting, reserved, allocated=None, **how):
    points = [Point(f"{setting}, reserved", reserved)]
    if allocated is not None:
        points.append(Point(f"{setting}, allocated afterwards", allocated))
    return Process(
        title="GPT-2 124M training speed",
        stated_gpu="A100",
        gpu="a100-80",
        unit="GiB",
        unit_bytes=GIB,
        points=points,
        measure=lambda: partial(after_an_epoch, **how)()[: len(points)],
    )


PROCESSES = [
    process("0: as in the book, fp32", 26.2617, 2.5069, stored_mask=True, fused=False),
    process("1: causal mask made on the fly", 26.2422, fused=False),
    process("3: fused AdamW", 26.2422),
    process("5: bf16", 13.7871, bf16=True),
    process("6: PyTorch's LayerNorm and GELU", 11.5645, bf16=True, native_layers=True),
    process("7: PyTorch's attention", 5.9004, bf16=True, native_layers=True, native_attention=True),
]
