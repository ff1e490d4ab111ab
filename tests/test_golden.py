"Parity with the official code (Lliu666/MSHNet at 46cdfd4), number by number."

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SHARED
from goldens import arr, entries, weight

from mshnet.augment import AugmentParams, augment, resize_square
from mshnet.data import read_image, read_mask
from mshnet.loss import mshnet_loss, sls_loss, soft_iou_loss
from mshnet.metrics import Histogram, score
from mshnet.model import MSHNet

GOLDEN = Path(__file__).parent / "golden"


def golden_model():
    "MSHNet with the golden weights."
    table = json.loads((GOLDEN / "state_dict.json").read_text())
    model = MSHNet()
    model.load_state_dict({key: weight(key, shape) for key, shape, _ in table})
    return model


def golden(name):
    "The arrays of a golden file as tensors."
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {key: torch.tensor(file[key]) for key in file.files}


def close(have, want, rtol=1e-4, atol=1e-4):
    "Equal to float32 tolerance; the golden numbers come from another torch version."
    torch.testing.assert_close(have, want.to(have.dtype), rtol=rtol, atol=atol)


def test_state_dict_is_the_published_one():
    "Names, order, shapes and types: published weights load without a translation."
    assert entries(MSHNet()) == json.loads((GOLDEN / "state_dict.json").read_text())
    names = [name for name, _ in MSHNet().named_parameters()]
    assert names == json.loads((GOLDEN / "parameters.json").read_text())


@pytest.fixture(scope="module")
def numbers():
    return golden("model")


def test_forward_in_evaluation_mode(numbers):
    "All heads, the fused prediction, and the warm-up's single head."
    model, image = golden_model().eval(), arr("x", (2, 3, 96, 64))
    with torch.no_grad():
        masks, logits = model(image)
        none, warm = model(image, deep=False)
    for i, mask in enumerate(masks):
        close(mask, numbers[f"eval_mask{i}"])
    close(logits, numbers["eval_pred"])
    close(warm, numbers["eval_warm_pred"])
    assert none == []


def test_training_pass_gradients_and_batch_norm_state(numbers):
    "One pass in training mode: outputs, loss, norm of every gradient, running statistics."
    model, image = golden_model().train(), arr("x", (2, 3, 96, 64))
    mask = torch.zeros(2, 1, 96, 64)
    mask[0, 0, 10:14, 20:25] = 1
    mask[0, 0, 70:73, 50:52] = 1
    mask[1, 0, 40:49, 30:37] = 1
    masks, logits = model(image)
    for i, head in enumerate(masks):
        close(head, numbers[f"train_mask{i}"])
    close(logits, numbers["train_pred"])
    bn = model.encoder_0[0].bn1
    close(bn.running_mean, numbers["bn_running_mean_after"])
    close(bn.running_var, numbers["bn_running_var_after"])
    loss = mshnet_loss(masks, logits, mask).mean()
    close(loss, numbers["total_loss"], rtol=1e-5)
    loss.backward()
    norms = torch.stack([p.grad.norm() for p in model.parameters()])
    close(norms, numbers["grad_norms"], rtol=1e-3, atol=1e-5)


CASES = {
    "warm": partial(sls_loss, scale=False, location=False),
    "sls": sls_loss,
    "sls_noshape": partial(sls_loss, location=False),
    "softiou": soft_iou_loss,
}


@pytest.mark.parametrize("case", CASES)
def test_loss_and_its_gradient(case):
    "The value of the batch, of each image alone, and the gradient; the last image has no target."
    want = golden("loss")
    logits = want["logits"].clone().requires_grad_()
    losses = CASES[case](logits, want["target"])
    if case != "softiou":  # of which the batch alone is known
        close(losses, want[f"{case}_per_sample"], rtol=1e-5, atol=1e-6)
    close(losses.mean(), want[f"{case}_loss"], rtol=1e-5, atol=1e-6)
    losses.mean().backward()
    close(logits.grad, want[f"{case}_grad"], rtol=1e-4, atol=1e-8)


def six_steps(dtype):
    "Two warm-up steps and four with all heads: losses, and sums over each tensor of the weights."
    model = golden_model().train().to(dtype)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05, initial_accumulator_value=0.1)
    losses = []
    for step in range(6):
        mask = torch.zeros(4, 1, 64, 64)
        for b in range(4):
            mask[b, 0, 5 + 7 * b : 9 + 7 * b, 10 + 3 * step : 14 + 3 * step + b] = 1
        masks, logits = model(arr(f"step{step}", (4, 3, 64, 64)).to(dtype), deep=step > 1)
        loss = mshnet_loss(masks, logits, mask).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    floats = [v.double() for v in model.state_dict().values() if v.is_floating_point()]
    return losses, [v.sum().item() for v in floats], [v.abs().sum().item() for v in floats]


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-6), (torch.float32, 1e-4)])
def test_six_training_steps(dtype, near):
    """Losses and final weights of six steps equal the official code's, on every machine.

    Adagrad's sums begin at 0.1. From zero, its first step moves every weight by the rate times the
    *sign* of its gradient; biases before a batch norm have a gradient of zero but for rounding, so
    the last digit would decide and six steps would be chaotic (experiments/parity.md).
    """
    want = golden("recipe64")
    losses, sums, sizes = six_steps(dtype)
    assert losses == pytest.approx(want["losses"].tolist(), abs=near)
    scale = want["param_abs"] + 1  # a sum is as exact as the sum of the sizes
    for have, name in ((sums, "param_sum"), (sizes, "param_abs")):
        assert ((torch.tensor(have) - want[name]).abs() / scale).max() < 10 * near


@pytest.fixture(scope="module")
def noisy():
    "Fourteen images: noise, misses, an area coincidence, a diagonal target."
    want = golden("metrics")
    return want, want["logits"].float(), want["target"].float()


def test_pixel_scores(noisy):
    "IoU over the set and per image."
    want, logits, mask = noisy
    assert score(logits, mask).iou == pytest.approx(want["iou"].item(), abs=1e-9)
    per_image = [score(logits[i : i + 1], mask[i : i + 1]).iou for i in range(len(mask))]
    per_image = [0 if np.isnan(v) else v for v in per_image]  # no union: nothing, there 0
    assert per_image == pytest.approx(want["iou_per_image"].tolist(), abs=1e-9)


def test_object_scores_by_the_reference_rule(noisy):
    "Pd and Fa as the published scripts compute them, faults included."
    want, logits, mask = noisy
    have = score(logits, mask, rule="reference")
    assert have.targets == want["official_targets"].item()
    assert have.pd == pytest.approx(want["official_pd"].item(), abs=1e-12)
    assert have.fa / 1e6 == pytest.approx(want["official_fa"].item(), abs=1e-12)


def test_pixel_curve_at_ten_thresholds(noisy):
    "True and false positive rate and precision, which the reference divides by counts plus 1e-3."
    want, logits, mask = noisy
    histogram = Histogram()
    histogram.add(torch.sigmoid(logits).double().numpy(), mask.numpy() > 0)
    curve = histogram.curve()
    at = [round(i * 100) for i in range(10)]  # probabilities 0, 0.1 .. 0.9
    names = {"recall": "roc_tpr", "fpr": "roc_fpr", "precision": "roc_precision"}
    for key, golden_key in names.items():
        wanted = want[golden_key][:10].numpy()
        np.testing.assert_allclose(curve[key][at], wanted, rtol=1e-5, atol=1e-8)


TRANSFORMS = SHARED / "golden" / "transforms.npz"


@pytest.mark.skipif(not TRANSFORMS.exists(), reason="needs pictures of the data (MSHNET_SHARED)")
def test_transforms_to_the_last_pixel(sirst):
    "Validation and training transforms of the official code, for its draws."
    want = np.load(TRANSFORMS)
    for row in json.loads(TRANSFORMS.with_suffix(".json").read_text()):
        image, *_ = read_image(sirst / "images" / f"{row['name']}.png")
        mask, _ = read_mask(sirst / "masks" / f"{row['name']}.png", image.shape[:2])
        image_want, mask_want = want[f"{row['key']}_image"], want[f"{row['key']}_mask"]
        spare = [max(side - 256, 0) for side in row["resized"]]
        place = [(row[k] + 0.5) / (s + 1) for k, s in zip(("y1", "x1"), spare, strict=True)]
        drawn = AugmentParams(row["flip"], row["long_size"], *place, row["blur_radius"] or 0)
        check_pixels(augment(image, mask, drawn, 256), (image_want, mask_want))
        scored = want[f"val_image_{row['name']}"], want[f"val_mask_{row['name']}"]
        check_pixels(resize_square(image, mask, 256), scored)


def check_pixels(have, want):
    "Image and mask equal the official ones; ours may be grey, theirs is RGB, theirs has 0 and 255."
    image = have[0] if have[0].ndim == 3 else np.repeat(have[0][..., None], 3, 2)
    np.testing.assert_array_equal(image, want[0])
    np.testing.assert_array_equal(have[1] > 0, want[1] > 127)
