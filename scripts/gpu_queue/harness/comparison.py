"""Distances between a run on the GPU and the same run on the CPU, and their bounds.

Two sums of n rounded terms in different orders differ by about sqrt(n) units of roundoff. A tiny model's gradients are sums of
some thousand terms that pass through about sixteen operations: in fp32 (a unit is 2^-24) that is 64 * 16 units, FP32_GRADIENT.
The loss is a mean over label tokens, in which most of the error cancels: an eighth of that.

In 16 bits, and with compressed moments, no such bound is tight. There the bound is a few times the distance between the CPU's
less exact and exact arithmetic, because the GPU never rounds in the same way.
"""

import math

from harness import tensors

UNIT_FP32 = 2.0 ** -24
FP32_GRADIENT = 64 * 16 * UNIT_FP32
FP32_LOSS = FP32_GRADIENT / 8
# AdamW divides by the root of the second moment: an element whose gradient is only rounding moves by the whole learning rate
# in either direction. Such elements are few, so the losses of later steps and the weights diverge slowly.
FP32_LATER_LOSS = 4 * FP32_GRADIENT
FP32_WEIGHTS = 128 * FP32_GRADIENT


def has_true_gradient(name):
    """Returns whether a parameter's gradient is more than rounding. Without RoPE, a key's bias adds a constant to all scores of a
    query, which softmax ignores."""
    return not ("vision" in name and name.endswith("self_attn.k_proj.bias"))


def finite(value):
    return value is not None and math.isfinite(value)


def losses_apart(gpu, reference):
    """Returns the relative difference of each step's loss; infinite if a value is missing."""
    pairs = list(zip([line["loss"] for line in gpu.lines()], [line["loss"] for line in reference.lines()]))
    if not pairs:
        return [math.inf]
    return [abs(a - b) / abs(b) if finite(a) and finite(b) and b != 0 else math.inf for a, b in pairs]


def moments(run, step):
    """Returns the first moments after a step, without those that are only rounding."""
    return {name: values for name, values in run.optimizer(step).items()
            if name.startswith("first_moment.") and has_true_gradient(name)}


def first_gradients(run):
    """Returns the first moments after one step, which are a tenth of the unclipped gradients."""
    return moments(run, 1)


def gradients_apart(gpu, reference):
    """Returns (relative distance, name) of the worst tensor. The distance is relative to at least a hundredth of the total norm."""
    a, b = first_gradients(gpu), first_gradients(reference)
    difference = tensors.same_names(a, b)
    if difference or not b:
        return math.inf, difference or "no moments"
    least = tensors.whole_norm(b) / 100
    if not math.isfinite(least) or least == 0:
        return math.inf, "the reference has no finite gradient"
    worst = max(((tensors.distance(a[name], b[name]) / max(tensors.norm(b[name]), least), name) for name in b),
                key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0])
    return (math.inf if math.isnan(worst[0]) else worst[0]), worst[1]


def whole_gradients_apart(gpu, reference, step=1):
    a, b = moments(gpu, step), moments(reference, step)
    if tensors.same_names(a, b) or not b:
        return math.inf
    ratio = tensors.whole_distance(a, b) / tensors.whole_norm(b)
    return math.inf if math.isnan(ratio) else ratio


def weights_apart(gpu, reference, steps, first=1):
    """Returns the distance between the weights of two runs, relative to the distance between the reference's `first` and last
    checkpoints. REQUIRES: both have the same precision and tensor names."""
    a, b, start = ({name: values for name, values in weights.items() if has_true_gradient(name)}
                   for weights in (gpu.weights(steps), reference.weights(steps), reference.weights(first)))
    if tensors.same_names(a, b):
        return math.inf
    way = tensors.whole_distance(b, start)
    ratio = tensors.whole_distance(a, b) / way if way > 0 else math.inf
    return math.inf if math.isnan(ratio) else ratio


class Verdict:
    """Measured figures and their bounds; `bad` lists the figures that violate theirs."""

    def __init__(self):
        self.parts, self.figures, self.bad = [], {}, []

    def at_most(self, bound, measured, name, where=""):
        self.figures[name] = {"measured": measured, "at_most": bound}
        self.parts.append(f"{name} {measured:.1e} (at most {bound:.1e})" + (f" {where}" if where else ""))
        if not measured <= bound or not math.isfinite(bound):
            self.bad.append(name)

    def at_least(self, bound, measured, name):
        self.figures[name] = {"measured": measured, "at_least": bound}
        self.parts.append(f"{name} {measured:.1e} (at least {bound:.1e})")
        if not measured >= bound:
            self.bad.append(name)

    def text(self):
        return "; ".join(self.parts)
