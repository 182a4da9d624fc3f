"""nn/data/mask_loss.json: what MONAI and PyTorch compute for the loss of masks.

{"height", "width" (of the logits), "rows", "columns" (of the targets), "logits", "targets" (flat), "bce" (sum of
BCEWithLogitsLoss over pixels), "dice" (sum over masks of monai.losses.DiceLoss(sigmoid=True)), "bce_gradient", "dice_gradient" (of
the logits)}. Logits are resized by F.interpolate; all in float64. The last target is empty.
"""

import monai
import torch
import torch.nn.functional as F

from library.cases import write_json

MASKS, HEIGHT, WIDTH, ROWS, COLUMNS = 3, 4, 5, 12, 10


def make(tests):
    torch.manual_seed(0)
    logits = (2 * torch.randn(MASKS, HEIGHT, WIDTH, dtype=torch.float64)).float().double().requires_grad_()
    targets = (torch.rand(MASKS, ROWS, COLUMNS) < 0.4).double()
    targets[-1] = 0
    resized = F.interpolate(logits.unsqueeze(1), (ROWS, COLUMNS), mode="bilinear", align_corners=False)
    bce = torch.nn.BCEWithLogitsLoss(reduction="sum")(resized, targets.unsqueeze(1))
    dice = monai.losses.DiceLoss(sigmoid=True, reduction="sum")(resized, targets.unsqueeze(1))
    (bce_gradient,) = torch.autograd.grad(bce, logits, retain_graph=True)
    (dice_gradient,) = torch.autograd.grad(dice, logits)
    write_json(tests / "nn" / "data" / "mask_loss.json", {
        "height": HEIGHT, "width": WIDTH, "rows": ROWS, "columns": COLUMNS,
        "logits": logits.flatten().tolist(), "targets": targets.flatten().int().tolist(),
        "bce": bce.item(), "dice": dice.item(),
        "bce_gradient": bce_gradient.flatten().tolist(), "dice_gradient": dice_gradient.flatten().tolist(),
    }, indent=None)
