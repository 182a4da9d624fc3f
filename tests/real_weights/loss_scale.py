"""Training in fp16: the loss scale falls until gradients do not overflow, and stays there."""

import math

import results
from bench import read_lines

STEPS = 40
LEARNING_RATE = 1e-5


def check(bench, model):
    run = bench.train(model, f"{model}-fp16", {"training.precision": "fp16", "training.max_steps": STEPS,
                                               "training.learning_rate": LEARNING_RATE})
    lines = read_lines(run / "metrics.jsonl")
    if bench.is_virtual:
        return results.measured(f"{len(lines)} steps on a virtual GPU, which computes no values")
    scales, skipped = [line["loss_scale"] for line in lines], [line["skipped"] for line in lines]
    last = max((line["step"] for line in lines if line["skipped"]), default=0)
    losses = [line["loss"] for line in lines]
    text = (f"{STEPS} steps, loss scale {scales[0]:.0f} to {scales[-1]:.0f}, {sum(skipped)} steps skipped, the last of them step {last}; "
            f"loss {losses[0]:.4f} to {losses[-1]:.4f}")
    settled = last <= STEPS // 2 and len(set(scales[last + 1 :])) == 1 and scales[-1] >= 1
    return results.judged(settled and all(map(math.isfinite, losses)), text, loss_scales=scales, skipped=sum(skipped), losses=losses)
