"""Logits and loss of Gemma 2 2B, without the rest of the model.

Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models (ICLR 2025): the "baseline" rows that the README of
apple/ml-cross-entropy prints for `python -m benchmark` (A100 SXM4, PyTorch 2.4.1, CUDA 12.4), in MiB (2^20). They are the
method of the paper's table 1. A figure is the growth of the peak of allocated memory over its value before the run.

8,192 tokens without ignored ones, hidden size 2,304, vocabulary 256,000, soft cap 30, bf16, gradients for both operands.
"""

from published_peaks.common import MIB, Point, Process

TOKENS, HIDDEN, VOCABULARY, SOFT_CAP = 8 * 1024, 2304, 256_000, 30.0


def measure():
    import torch
    from torch.nn.functional import cross_entropy

    def head(embedding, classifier, targets):
        logits = torch.tanh(embedding @ classifier.T / SOFT_CAP) * SOFT_CAP
        return cross_entropy(logits.float(), targets)

    def grown(run):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.max_memory_allocated()
        result = run()
        return torch.cuda.max_memory_allocated() - before, result

    def repetition():
        embedding = torch.randn(TOKENS, HIDDEN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        classifier = torch.randn(VOCABULARY, HIDDEN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        targets = torch.randint(VOCABULARY, (TOKENS,), device="cuda")

        def clear():
            embedding.grad = classifier.grad = None

        forward, _ = grown(lambda: head(embedding, classifier, targets))
        clear()
        loss = head(embedding, classifier, targets)
        backward, _ = grown(loss.backward)
        del loss
        clear()
        both, _ = grown(lambda: head(embedding, classifier, targets).backward())
        return [forward, backward, both]

    repetition()  # a warm-up run, as theirs has; it allocates the products' workspaces
    return repetition()


PROCESSES = [
    Process(
        title="Cut Cross-Entropy, baseline",
        stated_gpu="A100 SXM4 80 GB",
        gpu="a100-80",
        unit="MiB",
        unit_bytes=MIB,
        points=[
            Point("Gemma 2 2B head, loss", 24000.0),
            Point("Gemma 2 2B head, gradient", 16000.0),
            Point("Gemma 2 2B head, loss and gradient", 28000.0),
        ],
        measure=measure,
    )
]
