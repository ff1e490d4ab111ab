# %% [markdown]
# # The loss
#
# > The SLS loss: an IoU that is sensitive to a target's scale, and a term that is sensitive to its location.
#
# A target covers a few dozen of 65,536 pixels. A loss that counts pixels is nearly satisfied by an empty mask; a loss of the IoU (overlap / union) is not. But the IoU says little about two things that a person sees at once: whether the predicted blob has the right *size*, and how far it is from the target once it misses. The scale and location sensitive loss of MSHNet (Liu et al., CVPR 2024, arXiv:2403.19366) adds both:
#
# $$L = 1 - a \cdot \mathrm{IoU} + L_{\mathrm{loc}}$$
#
# with the scale factor $a$ and the location loss $L_{\mathrm{loc}}$. We build the three terms one by one and draw them. Then we ask what the loss does to a prediction that is wrong everywhere. There it fails, and the default recipe uses a different loss.

# %%
#| hide
#| default_exp loss
import matplotlib.pyplot as plt

# %%
#| export
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


# %% [markdown]
# ## IoU
#
# Probabilities replace the thresholded mask to give the IoU a gradient. The left half of a 2x2 target has an IoU of 1/2, and so has a probability of 1/2 in all four pixels. If an image has no target and all probabilities are 0, the union is empty. Its IoU is 0 with gradient 0, without a division by zero.

# %%
#| export
def _sums(prob: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # [B,1,H,W] -> [B]
    "Pixels of the overlap, of the prediction and of the truth in each image."
    return (prob * mask).sum((1, 2, 3)), prob.sum((1, 2, 3)), mask.sum((1, 2, 3))


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    "`part / whole`; 0 with gradient 0 where `whole` is 0."
    empty = whole == 0
    return torch.where(empty, torch.zeros_like(part), part / whole.masked_fill(empty, 1))


# %% [markdown]
# ## Scale
#
# The factor $a = \frac{\min(P, T) + d}{\max(P, T) + d}$ with $d = \left(\frac{P - T}{2}\right)^2$ compares the predicted area $P$ with the true area $T$. It is 1 where they agree.

# %%
#| export
def scale_factor(pred: Tensor, truth: Tensor) -> Tensor:  # areas in pixels, [B] -> [B] 0..1
    "How well the areas agree; 1 where they are equal (arXiv:2403.19366, the weight of the IoU)."
    d = ((pred - truth) / 2) ** 2
    return _ratio(torch.minimum(pred, truth) + d, torch.maximum(pred, truth) + d)


# %% [markdown]
# ## Location
#
# The centres of prediction and truth are compared in polar form, by their distance $r$ from the top left corner and by their angle $\theta$:
#
# $$L_{\mathrm{loc}} = 1 - \frac{\min(r_P, r_T)}{\max(r_P, r_T)} + \frac{4}{\pi^2} (\theta_P - \theta_T)^2$$
#
# Both angles lie between 0 and $\pi/2$, so the factor $4/\pi^2$ limits the second part to 1. For a centre, the authors' code divides the sum of `prob * x / W` by the *number of pixels*, not by the sum of `prob`. It thereby mixes place with area: the right centre with twice the area has twice the $r$, and a loss of 1/2. We keep it, because published results were made with it.

# %%
#| export
def _centre(weight: Tensor) -> tuple[Tensor, Tensor]:  # [B,1,H,W] -> x and y, each [B]
    "Mean over all pixels of weight times position, positions in 0..1 from the top left."
    height, width = weight.shape[-2:]
    x = torch.arange(width, device=weight.device, dtype=weight.dtype) / width
    y = torch.arange(height, device=weight.device, dtype=weight.dtype)[:, None] / height
    return (weight * x).mean((1, 2, 3)), (weight * y).mean((1, 2, 3))


def location_loss(
    prob: Tensor,  # [B,1,H,W] probability of target, 0..1
    mask: Tensor,  # [B,1,H,W] truth, 0 or 1
) -> Tensor:  # [B] 0 where the sums of weighted positions agree; a wrong area costs, too
    "Difference of the centres in polar form: distance from the corner, and angle."
    (x1, y1), (x2, y2) = _centre(prob), _centre(mask)
    r1 = torch.sqrt(x1**2 + y1**2 + 1e-8)
    r2 = torch.sqrt(x2**2 + y2**2 + 1e-8)
    length = torch.minimum(r1, r2) / (torch.maximum(r1, r2) + 1e-8)
    angle = torch.atan(y1 / (x1 + 1e-8)) - torch.atan(y2 / (x2 + 1e-8))
    return 1 - length + (4 / math.pi**2) * angle**2


# %% [markdown]
# ## Both terms in one figure
#
# A square target of 5x5 pixels lies in the middle of an image. On the left the prediction has the right centre and the wrong area. On the right it has the right area and the wrong place.

# %%
pixel = torch.arange(64.0)


def square(side, y=32.0, x=32.0):
    "Probabilities of a square; a pixel that is partly covered gets a part of 1."
    rows, columns = ((side / 2 + 0.5 - (pixel - at).abs()).clamp(0, 1) for at in (y, x))
    return (rows[:, None] * columns)[None, None]


def iou(prob):
    "IoU with the true square."
    inter, pred, truth = _sums(prob, square(5))
    return _ratio(inter, pred + truth - inter)


areas, shifts = torch.arange(4, 76, 0.5), torch.arange(0, 25)
grown = torch.cat([square(area**0.5) for area in areas])
steps = shifts * 0.5**0.5  # along a diagonal
away, around = (torch.cat([square(5, 32 + k * n, 32 + n) for n in steps]) for k in (1, -1))
factor = scale_factor(grown.sum((1, 2, 3)), torch.tensor(25.0))
figure = plt.figure(figsize=(10, 4), layout="constrained")
scale, place = figure.subplots(1, 2)
scale.plot(areas, factor, "--", color="gray", label="scale factor $a$")
scale.plot(areas, 1 - iou(grown), label="plain: 1 - IoU")
scale.plot(areas, 1 - factor * iou(grown), label="scale sensitive: 1 - $a$ IoU")
scale.plot(areas, location_loss(grown, square(5)), "k:", lw=2.5, label="location loss")
scale.set(title="Scale", xlabel="predicted area in pixels (the target has 25)")
place.plot(shifts, 1 - iou(away), label="plain: 1 - IoU")
place.plot(shifts, location_loss(away, square(5)), "C1--", label="location, on the diagonal")
place.plot(shifts, location_loss(around, square(5)), "k:", label="location, on the antidiagonal")
place.set(title="Location", xlabel="distance from the target in pixels")
for axes in (scale, place):
    axes.set(ylim=(0, 1.05), ylabel="loss")
    axes.legend()


# %% [markdown]
# *Scale.* An error of a few pixels costs more than with plain IoU. For large errors `d` dominates, the factor *a* returns towards 1, and only the IoU penalises them. The location loss is not 0 although the centre is right: it sees the wrong area and is as large as 1 - IoU.
#
# *Location.* Plain IoU is flat as soon as the prediction misses, and offers no way back. The location loss keeps growing. The surprise is the polar form: on the antidiagonal the distance from the corner hardly changes at first, and the angle counts squared, so a small shift costs little.
#
# ## One loss per image
#
# `scale=False, location=False` is the plain IoU loss of the warm-up. The function returns one loss per image, which cannot depend on the other images of the batch. It computes in float32, because the scale term squares pixel counts and exceeds $10^8$, where bfloat16 has steps of half a million.

# %%
#| export
def _expect_equal_shapes(name: str, logits: Tensor, mask: Tensor) -> None:
    "ValueError for shapes that differ, which broadcasting would hide, or are not [B,1,H,W]."
    if logits.shape != mask.shape or logits.ndim != 4:
        shapes = f"logits {tuple(logits.shape)} and mask {tuple(mask.shape)}"
        raise ValueError(f"{name}: {shapes} differ, or are not [B,1,H,W]")


def sls_loss(
    logits: Tensor,  # [B,1,H,W]
    mask: Tensor,  # [B,1,H,W] truth, 0 or 1 (divide 255 first)
    scale: bool = True,  # weigh the IoU by the agreement of the areas
    location: bool = True,  # add the location loss
) -> Tensor:  # [B] float32, one loss per image
    """Scale and location sensitive loss of each image, always in float32.

    Source: Liu et al., arXiv:2403.19366. Where the union is empty the IoU part is 1 with
    gradient 0. Raises ValueError if the shapes differ (broadcasting would hide it).
    """
    _expect_equal_shapes("sls_loss", logits, mask)
    prob, truth = torch.sigmoid(logits.float()), mask.float()
    inter, pred_area, true_area = _sums(prob, truth)
    iou = _ratio(inter, pred_area + true_area - inter)
    if scale:
        iou = scale_factor(pred_area, true_area) * iou
    loss = 1 - iou
    return loss + location_loss(prob, truth) if location else loss


# %% [markdown]
# ## Where a loss gets stuck
#
# How strongly does a loss pull on a prediction that is wrong everywhere? Take one target of 20 pixels in an image of 256x256, and give every pixel the same logit $z$. The gradient with respect to $z$, the *pull*, shows how fast the whole prediction rises (negative gradient) or falls (positive).
#
# We compare five losses: plain IoU and SLS, which the paper uses; **cross-entropy**, which counts pixels; **soft IoU**, which adds 1 to overlap and union, so an empty image has a loss, too; and the sum of the last two, the default of this library.

# %%
#| export
def soft_iou_loss(logits: Tensor, mask: Tensor) -> Tensor:  # [B,1,H,W], 0 or 1 -> [B]
    """1 - (overlap + 1) / (union + 1) of each image, in float32.

    Adding 1 gives an image without a target a loss that falls with the predicted area.
    Source: the loss of ACM (Dai et al., WACV 2021), and the official code of MSHNet; DNANet sums
    over the batch. Raises ValueError if the shapes differ.
    """
    _expect_equal_shapes("soft_iou_loss", logits, mask)
    inter, pred, truth = _sums(torch.sigmoid(logits.float()), mask.float())
    return 1 - (inter + 1) / (pred + truth - inter + 1)


def bce_loss(logits: Tensor, mask: Tensor) -> Tensor:  # [B,1,H,W], 0 or 1 -> [B]
    "Binary cross-entropy of each image, the mean over its pixels, in float32."
    pixels = F.binary_cross_entropy_with_logits(logits.float(), mask.float(), reduction="none")
    return pixels.mean((1, 2, 3))


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sls": sls_loss,
    "soft_iou": soft_iou_loss,
    "bce": bce_loss,
    "soft_iou+bce": lambda logits, mask: soft_iou_loss(logits, mask) + bce_loss(logits, mask),
}

# %% [markdown]
# The figure names the losses as the setting `loss` does. A solid line is a pull downwards (the prediction shrinks), a dotted one a pull upwards. The light red curve is `sls` for a target that lies 160 rows further down. The vertical scale is logarithmic and spans nine orders of magnitude. The three numbers are the pulls at $z = 0$, a probability of 0.5 everywhere:

# %%
target, lower = torch.zeros(2, 1, 1, 256, 256)
target[..., 40:44, 180:185] = lower[..., 200:204, 180:185] = 1


def pull(loss, z):
    "Gradient of a loss when all logits shift together."
    shift = torch.tensor(z, requires_grad=True)
    loss(shift.expand_as(target), target).mean().backward()
    return shift.grad.item()


losses = {
    "plain IoU": lambda logits, mask: sls_loss(logits, mask, scale=False, location=False),
    "sls, lower target": lambda logits, mask: sls_loss(logits, lower),
    **LOSSES,
}
colors = ["C7", "salmon", "C3", "C0", "C1", "k"]
logits = torch.arange(-16, 4.1, 0.25)
figure = plt.figure(figsize=(9, 4.2), layout="constrained")
axes = figure.subplots()
for (name, loss), color in zip(losses.items(), colors, strict=True):
    pulls = torch.tensor([pull(loss, z) for z in logits.tolist()])
    for sign, style in ((1, "-"), (-1, ":")):
        part = torch.where(pulls * sign > 0, pulls.abs(), torch.nan)
        axes.semilogy(logits, part, style, color=color, lw=2, label=name if sign > 0 else None)
axes.axvline(-8.1, color="0.8", zorder=0)
axes.text(-8, 3e-9, "the predicted area\nis right", color="0.4")
axes.set(ylabel="size of the gradient", ylim=(1e-9, 3))
axes.set_xlabel("logit $z$ of every pixel: nothing is predicted ... everything")
axes.set_title("How a loss pulls on a prediction that is wrong everywhere")
figure.legend(loc="outside right center", title="solid: downwards\ndotted: upwards")
print({loss.__name__: f"{pull(loss, 0.0):.1e}" for loss in (sls_loss, soft_iou_loss, bce_loss)})


# %% [markdown]
# Plain IoU pulls upwards everywhere, but by 1e-4 at most. The SLS loss pulls towards the right area: with 0.8 if the predicted area is nearly right, but with less than 0.0004 if every pixel has the probability 0.5.
#
# On an empty prediction only the location term acts. In `y / (x + 1e-8)` the x of an empty prediction is hardly larger than 1e-8. The emptier it is, the nearer to 0 is its angle, as if it moved to the upper edge. At $z$ near -16 this lowers the logits if the target is near that edge (red), and raises them if it is in a lower row (light red). What happens to an empty prediction thus depends on where the target is.
#
# Adagrad divides by the root of the sum of all squared gradients so far, and after a gradient of 0.8 its steps are far too small to come back. "Everything" and "nothing" are both traps, and the paper's recipe [collapses](41_detection.ipynb) into one of them for some seeds.
#
# Cross-entropy pulls with 0.5 to 1 on a full prediction, and with 3e-4 on an empty one. But it counts pixels, and a target has few. Soft IoU counts a target's pixels and false pixels alike, whatever the size of the image. But its gradient vanishes for a full and for an empty prediction, and it pulls downwards everywhere, even where too little is predicted. The sum of the two keeps what is good in each: it pulls with at least 0.0067 on every prediction that is too large, and upwards on an empty one. Near -13 the two pulls cancel. There one logit for all pixels can do no better, and the network has to tell pixels apart.
#
# ## The machinery: all outputs at once
#
# The network predicts at four scales and fuses them. Each of the five outputs is compared with the truth at its own size. A target must not vanish when the truth is halved, so each 2x2 patch keeps its maximum. (By the mean, a target of one pixel would be 1/64 after three halvings.) The loss is the mean of the five. In the paper's warm-up only the full-size head is trained, by plain IoU. Below, the "good" prediction is right at full size, and the four heads are averages of it. For "inverse" only the fused logits change their sign. The heads at strides 4 and 8 miss the small target, so some loss remains.

# %%
#| export
def mshnet_loss(
    masks: list[Tensor],  # logits (not masks) at strides 1, 2, 4, 8; [] in the warm-up
    logits: Tensor,  # [B,1,H,W] the prediction
    mask: Tensor,  # [B,1,H,W] truth, 0 or 1
    loss: str = "sls",  # a key of LOSSES
) -> Tensor:  # [B] float32, one loss per image
    """Mean loss of the five outputs.

    In the warm-up it is the loss of only the full-size head, for "sls" the plain IoU loss.
    """
    if not masks and loss == "sls":
        return sls_loss(logits, mask, scale=False, location=False)
    losses = [LOSSES[loss](logits, mask)]
    for i, head in enumerate(masks):
        losses.append(LOSSES[loss](head, F.max_pool2d(mask.float(), 2**i)))
    return torch.stack(losses).mean(0)


# %%
truth = (square(4, 15.5, 15.5) > 0.5)[..., :32, :32].float()
good = torch.where(truth > 0, 9.0, -9.0)
heads = [F.avg_pool2d(good, 2**i) for i in range(4)]
assert mshnet_loss([], good, truth) == sls_loss(good, truth, scale=False, location=False)
for name in LOSSES:
    right, inverse = (mshnet_loss(heads, x, truth, name).item() for x in (good, -good))
    print(f"{name:13} good {right:.3f}   inverse {inverse:.3f}")

# %% [markdown]
# ## Questions
#
# 1. An image has no target and the prediction is empty. What would 0/0 in its IoU do to the other images of the batch?
#    <details><summary>Answer</summary>The mean over the batch would be NaN, and with it every gradient and every weight after the next step. <code>_ratio</code> returns 0 with gradient 0 instead, so the image has no influence through the IoU.</details>
# 2. At z = -16 the gradient of the SLS loss is positive. What does one step of an optimizer do to an empty prediction?
#    <details><summary>Answer</summary>It lowers all logits, so the prediction becomes emptier. That goes on until z is about -19, left of the figure, where the sign changes. There the prediction stays: empty. For the target mirrored at the diagonal the gradient is negative, and the step raises all logits.</details>
