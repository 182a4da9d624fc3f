"""How far transformers in float32 is from itself in float64: the scale for the tolerances of the parity tests."""


def largest(a, b):
    return (a.double() - b.double()).abs().max().item()


def mean(a, b):
    return (a.double() - b.double()).abs().mean().item()


def compare(single, double):
    """Absolute differences; for each gradient also the largest value, which they are relative to."""
    return {
        "loss": abs(single.loss.item() - double.loss.item()),
        "logits": max(largest(a, b) for a, b in zip(single.sample_logits, double.sample_logits)),
        "largest_logit": max(value.abs().max().item() for value in double.sample_logits),
        "step_losses": largest(single.step_losses, double.step_losses),
        "step_grad_norms": largest(single.step_grad_norms, double.step_grad_norms),
        "gradients": {
            name: {"difference": largest(value, double.gradients[name]), "largest": double.gradients[name].abs().max().item()}
            for name, value in single.gradients.items()
        },
        "parameters": {
            name: {"largest": largest(value, double.parameters[name]), "mean": mean(value, double.parameters[name])}
            for name, value in single.parameters.items()
        },
    }


def is_zero_gradient(name):
    """A key's bias shifts all scores of a query alike, which softmax takes away again."""
    return name.endswith(("self_attn.k_proj.bias", "attention.k_proj.bias"))


def relative(gradient):
    return gradient["difference"] / gradient["largest"]


HEADER = """# Expected results

Written by `../reference/make_reference.py` (its head says what the files hold); do not edit. The tests need neither Python nor
a network. To make them again: a virtual environment with `../reference/requirements.txt`, then `python make_reference.py`.
The cases `llava_*` are made by `python make_llava_reference.py`, `nanovlm_*` by `python make_nanovlm_reference.py`, `qwen2*` by
`python make_qwen_reference.py`, `internvl*` by `python make_internvl_reference.py`, `smolvlm_video` by `python make_smolvlm_video_reference.py`, `*_text` by `python make_text_reference.py`; their `case.json` says under `deviation` how far float32 is from float64.

Large gradients, parameters and logits are stored in part, with projections of the whole (`../reference/library/thin.py`). The tests hold the
stored elements one by one, and the others by the projections (`../stored_tensor.h`).

## How far transformers is from itself
Float32 (stored here) against the same in float64; absolute differences, gradients relative to the largest value of their tensor.
A tolerance of a test should be a small multiple of these. `deviations.json` has every tensor.

| case | loss | logits (largest) | gradient: worst tensor | parameters after 5 steps: largest, worst mean of a tensor | eager instead of sdpa: loss | as one padded batch: loss |
|---|---|---|---|---|---|---|
"""

NOTES = """
Left out of the two worst-of columns, because their true gradient is zero: the vision tower's `self_attn.k_proj.bias`. A key's bias
adds the same number to all scores of a query, and softmax is blind to that. What float32 shows there is rounding:

| case | k_proj.bias: largest gradient, float64 | float32 | after 5 steps: worst difference |
|---|---|---|---|
{keys}

AdamW divides a gradient by its own size, so it turns this noise into steps of up to the learning rate: the k biases after the
steps cannot be compared, their gradients only with an absolute tolerance. Nothing else in the model depends on them.

- The largest difference after 5 steps belongs to a few elements whose gradient is near its rounding error: AdamW moves them by up to
  the learning rate in either direction. The mean over a tensor is the sharper test.
- `text_only`: transformers leaves `.grad` of the vision tower and connector None; AdamW then skips them, weight decay
  included, and they stay as they were. `case.json` lists them; `gradient.` and `parameter.` are left out for them.
- Rows of `embed_tokens` for tokens that do not occur have zero gradient where embeddings are not tied. The row of `<image>`
  never has one from the input side: its embedding is overwritten by the image features.
- `vision_positions.json`: for a number of patches along a tile's side, the row of the position table (along that side) which each
  patch takes. It is 0, 1, 2, ... for the tiles of all published checkpoints (26, 27, 32 patches), but not for every number: for
  19, 25, 29, 31, 38, ... rounding in float32 puts two patches into one row.

## LoRA
`lora/` is written by `../reference/make_lora_reference.py`: adapters of the checkpoints here, as peft 0.21.2 saves them, and what it
computes with them. Each `case.json` has the difference of float32 from float64 for its case. In `text_only` a few elements of
`lora_A` have a gradient near its rounding error, and end up to 4e-5 apart.

## Quantised weights
`quantization/` is written by `../reference/make_quantization_reference.py`: what bitsandbytes
0.50.2 makes of ten matrices, and adapters that peft computes on quantized bases.

## Answers
`answers.json` is written by `../reference/make_answers.py`: greedy answers of 64 tokens to the first turn of every conversation, and
how close the closest choice was. One question, that of `one` in `llava_original`, is another one: two tokens were as good as equal.
"""


def report(deviations_by_case):
    rows, keys = "", []
    for case, values in deviations_by_case.items():
        gradients = {n: g for n, g in values["gradients"].items() if not is_zero_gradient(n)}
        worst = max(gradients, key=lambda name: relative(gradients[name]))
        parameters = [d for n, d in values["parameters"].items() if not is_zero_gradient(n)]
        moved = max(d["largest"] for d in parameters), max(d["mean"] for d in parameters)
        rows += (
            f"| {case} | {values['loss']:.1e} | {values['logits']:.1e} ({values['largest_logit']:.1f}) "
            f"| {relative(gradients[worst]):.1e} `{worst}` | {moved[0]:.1e}, {moved[1]:.1e} "
            f"| {values['eager_loss']:.1e} | {values['padded_batch_loss']:.1e} |\n"
        )
        zero = [(g, values["parameters"][n]["largest"]) for n, g in values["gradients"].items() if is_zero_gradient(n)]
        if zero:
            exact = max(g["largest"] for g, _ in zero)
            noise = max(g["difference"] for g, _ in zero)
            keys.append(f"| {case} | {exact:.0e} | {noise:.0e} | {max(d for _, d in zero):.0e} |")
    return HEADER + rows + NOTES.format(keys="\n".join(keys))
