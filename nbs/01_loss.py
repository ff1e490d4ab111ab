# %% [markdown]
# # loss
#
# > The SLS loss: overlap that is sensitive to a target's scale, and a term that is sensitive to its location.

# %%
#| default_exp loss

# %%
#| hide
from fastcore.test import expect_fail, test_close, test_eq

# %%
#| export
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


# %% [markdown]
# A target covers a few dozen of 65,536 pixels, so a loss that counts pixels is nearly satisfied by an empty mask. Overlap is not. But overlap alone is blind to two things that a person sees at once: whether the predicted blob has the right *size*, and whether it is in the right *place* once it does not overlap at all. The scale and location sensitive loss of MSHNet (Liu et al., CVPR 2024, arXiv:2403.19366) adds both:
#
# $$L = 1 - a \cdot \mathrm{IoU} + L_{\mathrm{loc}}$$
#
# Everything here is computed in float32, whatever the model computed in: the scale term squares pixel counts and passes $10^8$, where bfloat16 has a step of half a million.
#
# ## Overlap
#
# Probabilities take the place of the thresholded mask, so that overlap has a gradient. An image without a target and without any predicted probability has an empty union. It gets overlap 0 with gradient 0: nothing to learn from it, and no division by zero in its neighbours.

# %%
#| export
def sums(
    prob: Tensor,  # [B,1,H,W] probability of target, 0..1
    mask: Tensor,  # [B,1,H,W] truth, 0 or 1
) -> tuple[Tensor, Tensor, Tensor]:  # each [B], in pixels
    "Sums over the pixels of each image: of the overlap, the prediction and the truth."
    return (prob * mask).sum((1, 2, 3)), prob.sum((1, 2, 3)), mask.sum((1, 2, 3))


def ratio(
    part: Tensor,
    whole: Tensor,
) -> Tensor:
    "`part / whole`, and 0 with gradient 0 where `whole` is 0."
    empty = whole == 0
    return torch.where(empty, torch.zeros_like(part), part / whole.masked_fill(empty, 1))


# %% [markdown]
# Take a 2x2 target. Its left half overlaps by 1/2; so does being half sure of all four pixels.

# %%
mask = F.pad(torch.ones(1, 1, 2, 2), (1, 1, 1, 1))
left = F.pad(torch.ones(1, 1, 2, 1), (1, 2, 1, 1))
for prob in (left, mask / 2):
    inter, pred, truth = sums(prob, mask)
    test_close(ratio(inter, pred + truth - inter), 0.5)
test_eq(ratio(torch.zeros(1), torch.zeros(1)).item(), 0)


# %% [markdown]
# ## Scale
#
# The factor $a = \frac{\min(P, T) + d}{\max(P, T) + d}$ with $d = \left(\frac{P - T}{2}\right)^2$ compares the predicted area $P$ with the true area $T$. It is 1 where they agree.

# %%
#| export
def scale_factor(
    pred: Tensor,  # [B] predicted area in pixels
    truth: Tensor,  # [B] true area in pixels
) -> Tensor:  # [B] 1 where the areas agree, less where they do not
    "How well the areas agree (arXiv:2403.19366, the weight of the IoU)."
    spread = ((pred - truth) / 2) ** 2
    return ratio(torch.minimum(pred, truth) + spread, torch.maximum(pred, truth) + spread)


# %% [markdown]
# The curve is not what one might expect: `d` grows with the square of the error, so the factor falls at first and then rises back to 1. It punishes being a little wrong about a small target, which is where overlap alone is generous, and leaves gross errors to the overlap.

# %%
areas = torch.tensor([20.0, 21, 22, 25, 30, 60, 200])
factors = scale_factor(areas, torch.full_like(areas, 20.0))
test_eq(factors[0].item(), 1)
assert factors.argmin().item() not in (0, len(areas) - 1)
[(int(a), round(f.item(), 3)) for a, f in zip(areas, factors, strict=True)]


# %% [markdown]
# ## Location
#
# The centres of prediction and truth are compared in polar form, by distance from the corner and by angle. What the authors' code calls the centre is the sum of `prob * x / W` *divided by the number of pixels*, not by the mass: it mixes place with area. We keep that, because published results were made with it, and say so.

# %%
#| export
def centre(
    weight: Tensor,  # [B,1,H,W] non-negative, such as probabilities
) -> tuple[Tensor, Tensor]:  # x and y, each [B]
    "Mean over all pixels of weight times position, positions in 0..1 from the top left."
    height, width = weight.shape[-2:]
    x = torch.arange(width, device=weight.device, dtype=weight.dtype) / width
    y = torch.arange(height, device=weight.device, dtype=weight.dtype)[:, None] / height
    return (weight * x).mean((1, 2, 3)), (weight * y).mean((1, 2, 3))


def location_loss(
    prob: Tensor,  # [B,1,H,W] probability of target, 0..1
    mask: Tensor,  # [B,1,H,W] truth, 0 or 1
) -> Tensor:  # [B] 0 where the centres agree
    "Difference of the centres in polar form: distance from the corner, and angle."
    (x1, y1), (x2, y2) = centre(prob), centre(mask)
    r1 = torch.sqrt(x1**2 + y1**2 + 1e-8)
    r2 = torch.sqrt(x2**2 + y2**2 + 1e-8)
    length = torch.minimum(r1, r2) / (torch.maximum(r1, r2) + 1e-8)
    angle = torch.atan(y1 / (x1 + 1e-8)) - torch.atan(y2 / (x2 + 1e-8))
    return 1 - length + (4 / math.pi**2) * angle**2


# %% [markdown]
# Overlap is 0 as soon as a prediction misses, and stays 0 however far away it is. The location term goes on growing, so there is a way back:

# %%
truth = torch.zeros(1, 1, 32, 32)
truth[..., 14:18, 14:18] = 1
shifts = [0, 4, 8, 12]
away = [location_loss(truth.roll(s, -1), truth).item() for s in shifts]
assert away == sorted(away) and away[0] < 1e-3
test_close(centre(torch.ones(1, 1, 4, 4))[0], 0.375)
[round(a, 3) for a in away]


# %% [markdown]
# ## One loss per image
#
# `scale=False, location=False` is the plain IoU loss of the warm-up. The function returns one value per image: an average is then a choice of the caller, and an image's loss cannot depend on its neighbours.

# %%
#| export
def sls_loss(
    logits: Tensor,  # [B,1,H,W]
    mask: Tensor,  # [B,1,H,W] truth, 0 or 1
    scale: bool = True,  # weigh the overlap by the agreement of the areas
    location: bool = True,  # add the distance of the centres
) -> Tensor:  # [B] float32, one loss per image
    """Scale and location sensitive loss of each image, always in float32.

    Source: Liu et al., arXiv:2403.19366. Where the union is empty the overlap part is 1 with
    gradient 0. Raises ValueError if the shapes differ (broadcasting would hide it).
    """
    if logits.shape != mask.shape:
        raise ValueError(
            f"sls_loss: logits {tuple(logits.shape)} and mask {tuple(mask.shape)} differ"
        )
    with torch.autocast(logits.device.type, enabled=False):
        prob, truth = torch.sigmoid(logits.float()), mask.float()
        inter, pred_area, true_area = sums(prob, truth)
        overlap = ratio(inter, pred_area + true_area - inter)
        if scale:
            overlap = scale_factor(pred_area, true_area) * overlap
        loss = 1 - overlap
        return loss + location_loss(prob, truth) if location else loss


# %%
good = torch.where(truth > 0, 9.0, -9.0)
losses = torch.cat([sls_loss(x, truth) for x in (good, good.roll(2, -1), good.roll(8, -1), -good)])
assert losses.tolist() == sorted(losses.tolist())
losses

# %% [markdown]
# Target-free images are normal in practice. They give finite losses and gradients, alone or in company, and however sure the network is:

# %%
for sure in (-200.0, -9.0, 0.0, 9.0):
    logits = torch.full((2, 1, 32, 32), sure, requires_grad=True)
    loss = sls_loss(logits, torch.cat([truth, torch.zeros_like(truth)]))
    loss.mean().backward()
    assert loss.isfinite().all() and logits.grad.isfinite().all()
with expect_fail(ValueError, contains="differ"):
    sls_loss(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 3))


# %% [markdown]
# ## Losses that cannot get stuck
#
# How strongly does a loss pull on a prediction that is wrong everywhere? Take one target of 20 pixels, in the upper right of an image of 256x256, and give every pixel the same logit $z$. The gradient with respect to $z$ says how fast the whole prediction rises (negative) or falls (positive).
#
# | $z$ | plain IoU | SLS | soft IoU | cross-entropy |
# |---|---|---|---|---|
# | +4, everything is predicted | -1.7e-9 | 6.3e-6 | 2.8e-7 | **0.98** |
# | 0, half of everything | -9.3e-8 | 3.5e-4 | 1.5e-5 | 0.50 |
# | -8, the area is right | -7.6e-5 | **0.81** | 1.2e-2 | 3.0e-5 |
# | -12 | -5.9e-6 | -3.3e-5 | 8.7e-4 | -3.0e-4 |
# | -16, nothing is predicted | -1.1e-7 | +2.9e-2 | 1.7e-5 | **-3.1e-4** |
#
# The SLS loss pulls with 0.81 at the right area, and thousands of times less on either side; at -16 it points the wrong way, because the small constant in its angle is larger than the predicted mass. After a gradient of 0.8 an optimizer that never forgets (Adagrad) takes steps far too small to come back. So "everything" and "nothing" are both traps, and the paper's recipe falls into one of them for some seeds. Cross-entropy pulls with 0.5 to 1 on a full prediction and with 3e-4, never less, on an empty one. It counts pixels, though, and a target has few.
#
# **Soft IoU** weighs a target as much as its background, but fades on both sides. The sum of the two has neither weakness: overlap where there is some, a way back from everywhere else.

# %%
#| export
def soft_iou_loss(
    logits: Tensor,  # [B,1,H,W]
    mask: Tensor,  # [B,1,H,W] truth, 0 or 1
) -> Tensor:  # [B] float32, one loss per image
    """1 - (overlap + 1) / (union + 1) of each image, in float32.

    The ones keep an image without a target defined: its loss falls with the predicted area.
    Source: the loss of ACM (Dai et al., WACV 2021), DNANet and others.
    """
    with torch.autocast(logits.device.type, enabled=False):
        inter, pred, truth = sums(torch.sigmoid(logits.float()), mask.float())
        return 1 - (inter + 1) / (pred + truth - inter + 1)


def bce_loss(
    logits: Tensor,  # [B,1,H,W]
    mask: Tensor,  # [B,1,H,W] truth, 0 or 1
) -> Tensor:  # [B] float32, one loss per image
    "Binary cross-entropy of each image, the mean over its pixels, in float32."
    with torch.autocast(logits.device.type, enabled=False):
        pixels = F.binary_cross_entropy_with_logits(logits.float(), mask.float(), reduction="none")
        return pixels.mean((1, 2, 3))


# %% [markdown]
# The table, computed. A shift of all logits is one number, and autograd gives its gradient:

# %%
target = torch.zeros(1, 1, 256, 256)
target[..., 40:44, 180:185] = 1


def pull(loss, z):
    "Gradient of a loss when all logits shift together."
    shift = torch.tensor(z, requires_grad=True)
    loss(shift.expand_as(target), target).mean().backward()
    return shift.grad.item()


losses = [sls_loss, soft_iou_loss, bce_loss]
pulls = {z: [pull(loss, z) for loss in losses] for z in (4.0, 0.0, -8.0, -12.0, -16.0)}
assert pulls[-8.0][0] > 0.8 and abs(pulls[-12.0][0]) < 1e-4 and pulls[-16.0][0] > 0.02
assert pulls[4.0][2] > 0.9 and pulls[-16.0][2] < -3e-4
test_eq(soft_iou_loss(torch.full((1, 1, 8, 8), -200.0), torch.zeros(1, 1, 8, 8)).item(), 0)
pulls

# %% [markdown]
# ## All outputs at once
#
# The network predicts at four scales and fuses them, and each of the five outputs is compared with the truth at its own size. A target must not vanish when the truth is halved, so each 2x2 patch keeps its maximum. The loss is the mean of the five. In the paper's warm-up there is only the full-size head, trained by plain IoU.

# %%
#| export
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sls": sls_loss,
    "soft_iou": soft_iou_loss,
    "bce": bce_loss,
    "soft_iou+bce": lambda logits, mask: soft_iou_loss(logits, mask) + bce_loss(logits, mask),
}


def mshnet_loss(
    masks: list[Tensor],  # logits at strides 1, 2, 4, 8; [] in the warm-up
    logits: Tensor,  # [B,1,H,W] the prediction
    mask: Tensor,  # [B,1,H,W] truth, 0 or 1
    loss: str = "sls",  # of LOSSES
) -> Tensor:  # [B] float32, one loss per image
    "Mean loss of all five outputs; in the warm-up that of one, which for sls is plain IoU."
    if not masks and loss == "sls":
        return sls_loss(logits, mask, scale=False, location=False)
    losses = [LOSSES[loss](logits, mask)]
    truth = mask.float()
    for i, head in enumerate(masks):
        truth = F.max_pool2d(truth, 2) if i else truth
        losses.append(LOSSES[loss](head, truth))
    return torch.stack(losses).mean(0)


# %%
heads = [F.avg_pool2d(good, 2**i) for i in range(4)]
test_close(mshnet_loss([], good, truth), sls_loss(good, truth, scale=False, location=False))
for name in LOSSES:
    test_eq(mshnet_loss(heads, good, truth, name).shape, (1,))
    assert mshnet_loss(heads, good, truth, name) < mshnet_loss(heads, -good, truth, name)
