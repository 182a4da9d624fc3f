"""Trains matrices with torch.optim.Muon of LibTorch's wheel, for muon_test.cpp: muon_steps.py LIBTORCH OUT.pt.

Writes {CASE.STEP: weight after the step} for the cases and steps below. Starting weights and gradients are those of at::randn with the
seeds of muon_test.cpp. Exit code 77: this Python cannot import torch.
"""

import sys

sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True

try:
    import torch
except ImportError as error:
    print(f"muon_steps: {error}", file=sys.stderr)
    sys.exit(77)

# As in muon_test.cpp: name, rows, columns, gradients per step, learning rate adjustment.
CASES = (("square", 64, 64, 1, "match_rms_adamw"), ("wide", 48, 160, 1, "match_rms_adamw"), ("tall", 160, 48, 1, "match_rms_adamw"),
         ("tied", 40, 56, 2, "match_rms_adamw"), ("lora_a", 8, 96, 1, "original"), ("lora_b", 96, 8, 1, "original"))
STEPS = 20


def train(number, rows, columns, gradients_per_step, adjustment):
    torch.manual_seed(number)
    weight = torch.nn.Parameter(torch.randn(rows, columns))
    if rows == 96:
        torch.nn.init.zeros_(weight)  # as LoRA's B
    muon = torch.optim.Muon([weight], lr=1e-2, weight_decay=0.1, adjust_lr_fn=adjustment)
    for step in range(STEPS):
        weight.grad = torch.zeros(rows, columns)
        for use in range(gradients_per_step):
            torch.manual_seed(1000 + 100 * number + 2 * step + use)
            gradient = torch.randn(rows, columns)
            weight.grad = gradient if use == 0 else weight.grad + gradient
        muon.step()
        yield weight.detach().clone()


torch.set_num_threads(1)
torch.save({f"{name}.{step}": weight for number, (name, *case) in enumerate(CASES) for step, weight in enumerate(train(number, *case))}, sys.argv[2])
