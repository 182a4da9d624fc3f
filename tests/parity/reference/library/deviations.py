"""How far transformers in float32 is from itself in float64: the scale for the tolerances of the parity tests."""

import re

from library.cases import read_json, write_json


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


def is_zero_in_vision(name):
    return "vision" in name and is_zero_gradient(name)


def relative(gradient):
    return gradient["difference"] / gradient["largest"]


def summary(deviation):
    """Returns the largest deviations of compare()."""
    gradients = {n: relative(g) for n, g in deviation["gradients"].items() if not is_zero_in_vision(n)}
    parameters = {n: p["mean"] for n, p in deviation["parameters"].items() if not is_zero_in_vision(n)}
    return {key: deviation[key] for key in ("loss", "logits", "largest_logit")} | {
        "worst_gradient": max(gradients.values()), "worst_mean_of_a_parameter_after_steps": max(parameters.values()),
    }


def store(data, case, deviation):
    """Puts the deviations of a case into deviations.json and into the two tables of README.md."""
    content = read_json(data / "deviations.json") | {case: deviation}
    write_json(data / "deviations.json", content, indent=1)
    page = (data / "README.md").read_text()
    for row in filter(None, (worst_row(case, deviation), zero_row(case, deviation))):
        same_table = rf"^\| {case} \|" + r"[^|\n]*\|" * (row.count("|") - 2) + "$"
        page, count = re.subn(same_table, lambda _: row, page, flags=re.MULTILINE)
        assert count == 1, f"README.md has {count} rows for {case}: {row}"
    (data / "README.md").write_text(page)


def worst_row(case, values):
    gradients = {n: g for n, g in values["gradients"].items() if not is_zero_gradient(n)}
    worst = max(gradients, key=lambda name: relative(gradients[name]))
    parameters = [d for n, d in values["parameters"].items() if not is_zero_gradient(n)]
    moved = max(d["largest"] for d in parameters), max(d["mean"] for d in parameters)
    return (
        f"| {case} | {values['loss']:.1e} | {values['logits']:.1e} ({values['largest_logit']:.1f}) "
        f"| {relative(gradients[worst]):.1e} `{worst}` | {moved[0]:.1e}, {moved[1]:.1e} "
        f"| {values['eager_loss']:.1e} | {values['padded_batch_loss']:.1e} |"
    )


def zero_row(case, values):
    """Of the gradients that are zero; None if the case has none."""
    zero = [(g, values["parameters"][n]["largest"]) for n, g in values["gradients"].items() if is_zero_gradient(n)]
    if not zero:
        return None
    exact, noise = (max(g[key] for g, _ in zero) for key in ("largest", "difference"))
    return f"| {case} | {exact:.0e} | {noise:.0e} | {max(d for _, d in zero):.0e} |"
