"The loss: finite everywhere, each image for itself, float32 always, equal to its formula."

import math

import pytest
import torch
from torch.nn import functional as F

from mshnet.loss import LOSSES, location_loss, mshnet_loss, sls_loss, soft_iou_loss

FORMS = {
    "warm": lambda logits, mask: sls_loss(logits, mask, scale=False, location=False),
    "sls": sls_loss,
    "no location": lambda logits, mask: sls_loss(logits, mask, location=False),
    "all heads": lambda logits, mask: mshnet_loss(
        [F.avg_pool2d(logits, 2**i) for i in range(4)], logits, mask
    ),
    "soft": soft_iou_loss,
    "default": LOSSES["soft_iou+bce"],
}
forms = pytest.mark.parametrize("form", FORMS)


def noise(seed, *shape):
    "Random logits."
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def targets(count, size=32):
    "A mask with one target in each image, each elsewhere and of another size."
    mask = torch.zeros(count, 1, size, size)
    for i in range(count):
        mask[i, 0, 3 + 5 * i : 6 + 6 * i, 20 - 4 * i : 24 - 4 * i] = 1
    return mask


def graded(form, logits, mask):
    "Losses and the gradient of their sum, so that no image's share depends on the batch size."
    logits = logits.clone().requires_grad_()
    losses = FORMS[form](logits, mask)
    losses.sum().backward()
    return losses.detach(), logits.grad


@forms
@pytest.mark.parametrize("sure", [-1e4, -200.0, -9.0, 0.0, 9.0, 200.0, 1e4])
def test_a_target_free_image_does_not_change_its_neighbours(form, sure):
    "0 * NaN is NaN: a guard after a division would poison the batch; a NaN gradient ends a run."
    logits, mask = noise(0, 2, 1, 32, 32), targets(2)
    empty, nothing = torch.full((1, 1, 32, 32), sure), torch.zeros(1, 1, 32, 32)
    want, want_grad = graded(form, logits, mask)
    have, grad = graded(form, torch.cat([logits, empty]), torch.cat([mask, nothing]))
    torch.testing.assert_close(have[:2], want)
    torch.testing.assert_close(grad[:2], want_grad)
    assert have.isfinite().all()
    assert grad.isfinite().all()


@forms
def test_an_image_has_the_same_loss_alone_and_in_company(form):
    "Devices that share a batch, and batches that are filled, rely on it."
    logits, mask = noise(1, 4, 1, 32, 32), targets(4)
    together = FORMS[form](logits, mask)
    alone = [FORMS[form](logits[i : i + 1], mask[i : i + 1]) for i in range(4)]
    torch.testing.assert_close(together, torch.cat(alone))


@forms
def test_autocast_does_not_reach_the_loss(form):
    "The scale term passes 1e8, where bfloat16 has a step of half a million."
    logits, mask = noise(2, 2, 1, 64, 64), targets(2, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = FORMS[form](logits, mask)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, FORMS[form](logits, mask))


@pytest.mark.parametrize("form", [f for f in FORMS if f != "all heads"])
def test_bfloat16_logits_are_computed_on_in_float32(form):
    "A model under autocast hands over bfloat16: the loss is that of the same numbers in float32."
    logits, mask = noise(3, 2, 1, 64, 64).bfloat16(), targets(2, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = FORMS[form](logits, mask.bfloat16())
    assert inside.dtype == torch.float32
    assert torch.equal(inside, FORMS[form](logits.float(), mask))


@forms
def test_a_perfect_prediction_costs_almost_nothing(form):
    "Elsewhere the loss has a floor that hides progress. Each head is perfect at its own scale."
    mask = torch.zeros(1, 1, 32, 32)
    mask[..., 8:16, 16:24] = 1
    assert FORMS[form]((mask - 0.5) * 60, mask).item() == pytest.approx(0, abs=1e-4)


def slow_location(prob, mask):
    "The location term of one image as design 5 writes it, in loops and double precision."
    height, width = prob.shape

    def centre(values):
        cells = [(r, c, float(values[r, c])) for r in range(height) for c in range(width)]
        x = math.fsum(v * c / width for _, c, v in cells) / len(cells)
        y = math.fsum(v * r / height for r, _, v in cells) / len(cells)
        return x, y, math.sqrt(x * x + y * y + 1e-8), math.atan(y / (x + 1e-8))

    (*_, r1, a1), (*_, r2, a2) = centre(prob), centre(mask)
    return 1 - min(r1, r2) / (max(r1, r2) + 1e-8) + 4 / math.pi**2 * (a1 - a2) ** 2


@pytest.mark.parametrize("shape", [(16, 16), (16, 24)])
@pytest.mark.parametrize("seed", range(3))
def test_location_term_is_its_formula(seed, shape):
    "Width and height are easily swapped, and a square image would not show it."
    gen = torch.Generator().manual_seed(seed)
    prob = torch.rand(3, 1, *shape, generator=gen) ** 8
    mask = (torch.rand(3, 1, *shape, generator=gen) < 0.02).float()
    mask[2] = 0  # no target: the centre is the corner
    want = [slow_location(prob[i, 0], mask[i, 0]) for i in range(3)]
    assert location_loss(prob, mask).tolist() == pytest.approx(want, rel=1e-4)


def test_all_heads_count_the_same_and_see_the_pooled_mask():
    "Mean of five: a one-pixel target must still be there at stride 8."
    mask = torch.zeros(1, 1, 32, 32)
    mask[..., 9, 21] = 1
    logits, masks = noise(4, 1, 1, 32, 32), [noise(5 + i, 1, 1, 32 >> i, 32 >> i) for i in range(4)]
    small = [torch.zeros(1, 1, 32 >> i, 32 >> i) for i in range(4)]
    for i, truth in enumerate(small):
        truth[..., 9 >> i, 21 >> i] = 1
    pairs = [(logits, mask), *zip(masks, small, strict=True)]
    want = sum(sls_loss(x, t).item() for x, t in pairs) / 5
    assert mshnet_loss(masks, logits, mask).item() == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("shape", [(1, 1, 8, 1), (1, 1, 1, 8), (2, 1, 8, 8)])
def test_shapes_that_would_broadcast_are_refused(shape):
    "Broadcasting would quietly compare the wrong pixels."
    for loss in (sls_loss, soft_iou_loss):
        with pytest.raises(ValueError, match="differ"):
            loss(torch.zeros(1, 1, 8, 8), torch.zeros(shape))
