"""Makes gradnorm.json: five steps of GradNorm (Chen et al. 2018, algorithm 1) by autograd, in fp64.

The loss of a step is sum_i w_i L_i, where L_i is the cross-entropy of the rows of task i over the number of all rows.
W is a scale of the features that enter the output projection, at 1. L_grad = sum_i |G_i - mean(G) r_i^alpha|, whose
target is held constant, is differentiated with respect to w, and w is scaled to add up to the number of tasks. Rows of
a task that is not in a step leave its weight as it is.

    python make_gradnorm.py > gradnorm.json
"""
import json

import torch

TASKS, FEATURES, VOCABULARY, ALPHA, LEARNING_RATE = 3, 4, 6, 1.5, 0.25

torch.manual_seed(3)
output = torch.randn(VOCABULARY, FEATURES, dtype=torch.float64)
weights = torch.ones(TASKS, dtype=torch.float64)
first = [None] * TASKS
steps = []
for tasks in ([0, 0, 1, 2, 2], [0, 1, 1, 2, 2, 2], [1, 2, 0], [0, 1, 1, 0], [2, 2, 1, 0, 0, 1]):
    tasks = torch.tensor(tasks)
    hidden = torch.randn(len(tasks), FEATURES, dtype=torch.float64)
    labels = torch.randint(VOCABULARY, (len(tasks),))
    scale = torch.ones(FEATURES, dtype=torch.float64, requires_grad=True)
    w = weights.clone().requires_grad_()
    entropies = torch.nn.functional.cross_entropy((hidden * scale) @ output.t(), labels, reduction="none")
    present = [task for task in range(TASKS) if (tasks == task).any()]
    norms, lags = [], []
    for task in present:
        share = entropies[tasks == task].sum() / len(tasks)
        (gradient,) = torch.autograd.grad(w[task] * share, scale, create_graph=True)
        norms.append(gradient.norm())
        mean = entropies[tasks == task].mean().item()
        first[task] = first[task] or mean
        lags.append(mean / first[task])
    norms = torch.stack(norms)
    lags = torch.tensor(lags, dtype=torch.float64)
    target = (norms.mean() * (lags / lags.mean()) ** ALPHA).detach()
    (slope,) = torch.autograd.grad((norms - target).abs().sum(), w)
    moved = weights - LEARNING_RATE * slope
    moved[present] *= weights[present].sum() / moved[present].sum()
    weights = moved.detach()
    steps.append({"tasks": tasks.tolist(), "hidden": hidden.tolist(), "labels": labels.tolist(),
                  "norms": norms.tolist(), "weights_after": weights.tolist()})
print(json.dumps({"tasks": TASKS, "alpha": ALPHA, "learning_rate": LEARNING_RATE, "output": output.tolist(),
                  "steps": steps}, indent=1))
