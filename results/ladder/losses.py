"""Train with a changed loss: python losses.py scr|hard train ...

scr: the soft IoU term of each image is weighted by 1 + (1 - SCR / (SCR + 2)), where SCR is the
difference of the mean grey level between targets and the 10 pixels around them, divided by the
standard deviation there (after arXiv:2606.18783). hard: the cross-entropy is the mean over the
tenth of the pixels where it is largest.
"""

import sys

import torch
from torch import Tensor
from torch.nn import functional as F

from mshnet.cli import main
from mshnet.detection import Detection, normalise
from mshnet.loss import soft_iou_loss


def weight(
    image: Tensor,  # [B,3,S,S] uint8
    mask: Tensor,  # [B,1,S,S] uint8, 0 or 1
) -> Tensor:  # [B] 1..2; 1 without a target
    "More for a target of low contrast."
    grey, truth = image.float().mean(1, keepdim=True), mask.float()
    ring = (F.max_pool2d(truth, 21, 1, 10) - truth).clamp(min=0)
    inside, around = truth.sum((1, 2, 3)), ring.sum((1, 2, 3)).clamp(min=1)
    mean = (grey * ring).sum((1, 2, 3)) / around
    spread = ((grey - mean[:, None, None, None]) ** 2 * ring).sum((1, 2, 3)) / around
    contrast = (grey * truth).sum((1, 2, 3)) / inside.clamp(min=1) - mean
    scr = contrast.abs() / (spread.sqrt() + 1e-3)
    return torch.where(inside > 0, 2 - scr / (scr + 2), 1.0)


def loss(self: Detection, model: torch.nn.Module, batch: tuple, phase: str) -> Tensor:
    "The loss of `soft_iou+bce` with one term changed, mean of the five outputs."
    heads, fused = model(normalise(batch.image), deep=True)
    more = weight(batch.image, batch.mask) if CHANGE == "scr" else 1.0
    losses, truth = [], batch.mask.float()
    for i, logits in enumerate([fused, *heads]):
        truth = F.max_pool2d(truth, 2) if i > 1 else truth
        pixels = F.binary_cross_entropy_with_logits(logits.float(), truth, reduction="none")
        pixels = pixels.flatten(1)
        if CHANGE == "hard":
            pixels = pixels.topk(pixels.shape[1] // 10).values
        losses.append(soft_iou_loss(logits, truth) * more + pixels.mean(1))
    return torch.stack(losses).mean()


if __name__ == "__main__":
    CHANGE = sys.argv[1]
    Detection.loss = loss  # type: ignore[method-assign, assignment]
    sys.exit(main(sys.argv[2:]))
