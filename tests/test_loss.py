"The loss: finite everywhere, each image for itself, float32 always, equal to its formula."

import pytest
import torch
from torch.nn import functional as F

from mshnet.loss import LOSSES, mshnet_loss, sls_loss, soft_iou_loss

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
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_the_loss_is_computed_in_float32_under_autocast(form, kind):
    "The scale term passes 1e8, where bfloat16 has a step of half a million."
    logits, mask = noise(2, 2, 1, 64, 64).to(kind), targets(2, 64).to(kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = FORMS[form](logits, mask)
    assert inside.dtype == torch.float32
    if kind == torch.float32 or form != "all heads":  # its heads are pooled in bfloat16 here
        assert torch.equal(inside, FORMS[form](logits.float(), mask.float()))


@forms
def test_a_perfect_prediction_costs_almost_nothing(form):
    "Elsewhere the loss has a floor that hides progress. Each head is perfect at its own scale."
    mask = torch.zeros(1, 1, 32, 32)
    mask[..., 8:16, 16:24] = 1
    assert FORMS[form]((mask - 0.5) * 60, mask).item() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("shape", [(1, 1, 8, 1), (1, 1, 1, 8), (2, 1, 8, 8)])
def test_shapes_that_would_broadcast_are_refused(shape):
    "Broadcasting would quietly compare the wrong pixels."
    for loss in (sls_loss, soft_iou_loss):
        with pytest.raises(ValueError, match="differ"):
            loss(torch.zeros(1, 1, 8, 8), torch.zeros(shape))
