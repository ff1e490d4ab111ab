"The published TFNet, number by number: its parts, five outputs, losses and gradients."

import numpy as np
import pytest
import torch
from goldens import Goldens, arr, entries, weight

from mshnet.signs.ctc import beam_search, ctc_loss, distil, greedy, signing_loss
from mshnet.signs.networks import (
    BiLSTM,
    Frames,
    Gate,
    NormLinear,
    TemporalConv,
    TwoBranch,
    out_lengths,
    spectrum,
)
from mshnet.weights import fit_weights

GOLDEN = Goldens("signs")
golden = GOLDEN.arrays


def made(key, shape):
    "The golden weight of this name."
    if key.startswith("classifier"):
        return arr({"2": "classifier1.weight", "4": "classifier3.weight"}.get(key[10], key), shape)
    if "rnn.weight" in key:
        return arr(key, shape, 1 / np.sqrt(shape[1]))
    return weight(key, shape)


def filled(model):
    "A model with the golden weights, in eval mode."
    fit_weights(model, {k: made(k, tuple(v.shape)) for k, v in model.state_dict().items()})
    return model.eval()


def close(found, wanted, most=1e-5):
    "Equal up to rounding, as a fraction of the largest value."
    assert found.shape == wanted.shape
    assert (found.detach() - wanted).abs().max() < most * wanted.abs().max()


@pytest.fixture(scope="module")
def batch():
    "Two clips of 12 and 5 frames, padded as published, and their lengths."
    clips = [arr("clip0", (12, 3, 64, 64)), arr("clip1", (5, 3, 64, 64))]
    rows = [np.clip(np.arange(24) - 6, 0, len(clip) - 1) for clip in clips]
    both = torch.stack([clip[row] for clip, row in zip(clips, rows, strict=True)])
    return both, torch.tensor([24, 20])


@pytest.fixture(scope="module")
def network():
    "TFNet with 32 channels and 11 glosses."
    return filled(TwoBranch(Frames(), 12, hidden=32))


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("h32_v11", lambda: TwoBranch(Frames(), 12, hidden=32)),
        ("gate", lambda: Gate(3, 16)),
        ("conv", lambda: TemporalConv(7, 9)),
        ("lstm", lambda: BiLSTM(7, 12)),
    ],
)
def test_names_shapes_and_order_are_the_published_ones(name, make):
    "So published weights load."
    assert entries(make()) == GOLDEN.listed(f"state_dict_{name}.json")


def test_frames_branches_and_the_five_outputs(network, batch):
    "The whole network, from pictures to logits, in eval mode."
    want, seen = golden("model_h32_v11.npz"), {}
    parts = {"frames": network.conv2d, "time_conv": network.conv1d, "freq_conv": network.conv1d1}
    parts |= {"time_lstm": network.temporal_model, "freq_lstm": network.temporal_model1}
    for name, part in parts.items():
        part.register_forward_hook(lambda _, __, found, name=name: seen.update({name: found}))
    with torch.no_grad():
        outputs = network(*batch)
    assert out_lengths(batch[1]).tolist() == want["out_lengths"].tolist()
    close(seen["frames"].transpose(1, 2).flatten(0, 1), want["mid_frames"])
    close(spectrum(seen["frames"]), want["mid_freq_in"])
    for name in ("time_conv", "freq_conv"):
        close(seen[name], want[f"mid_{name}"])
    for name in ("time_lstm", "freq_lstm"):
        close(seen[name].transpose(0, 1), want[f"mid_{name}"])
    for i, found in enumerate(outputs.values(), 1):
        close(found.transpose(0, 1), want[f"z{i}"])


@pytest.mark.parametrize("how", ["published", "detached"])
def test_losses_and_gradients(batch, how):
    "Training mode: five CTC losses, two distillations, and the gradient of each parameter."
    want, model = golden("loss.npz"), filled(TwoBranch(Frames(), 12, hidden=32)).train()
    labels = torch.tensor([[3, 7], [5, 0]])
    outputs = model(*batch)
    steps = out_lengths(batch[1])
    parts = signing_loss(outputs, steps, labels, torch.tensor([2, 1]), how)
    key = "official" if how == "published" else "teacher_detached"
    ctc = torch.stack([v for k, v in parts.items() if k.startswith("ctc")])
    close(ctc, want[f"{key}_ctc"])
    if how == "detached":  # the golden ones are averaged over padded steps too
        pairs = [("time_conv", "time"), ("frequency_conv", "frequency")]
        padded = [25 * distil(outputs[a], outputs[b].detach()) for a, b in pairs]
        parts |= {f"distil_{a}": x for (a, _), x in zip(pairs, padded, strict=True)}
    kd = torch.stack([v for k, v in parts.items() if k.startswith("distil")])
    close(kd, want[f"{key}_kd"], 3e-5)
    sum(parts.values()).backward()
    found = {k: v.grad.double().norm().item() for k, v in model.named_parameters()}
    assert list(found) == GOLDEN.listed("parameters_h32_v11.json")
    wanted = want[f"{key}_grad_norms"]
    large = wanted > 1e-3  # biases before a batch norm have no gradient but rounding
    apart = ((torch.tensor(list(found.values())) - wanted).abs() / wanted)[large]
    assert apart.median() < 1e-3 and apart.max() < 0.02  # in float64 the golden ones are 0.003 off
    close(model.conv2d.bn1.running_mean, want["bn1_running_mean_after"])


def test_the_parts():
    "Gate, convolutions, the last layer, the BiLSTM without packing, and the length law."
    want = golden("parts.npz")
    found = filled(Gate(3, 16))(arr("gate_x", (2, 3, 6, 5, 5)).transpose(1, 2).flatten(0, 1), 6)
    close(found.view(2, 6, 3, 5, 5).transpose(1, 2), want["gate"])
    close(filled(TemporalConv(7, 9))(arr("conv_x", (2, 7, 29))), want["conv"])
    last = NormLinear(6, 5)
    last.weight.data = arr("norm_linear", (6, 5))
    close(last(arr("nl_x", (4, 6))), want["norm_linear"])
    found = filled(BiLSTM(7, 12))(arr("lstm_x", (9, 3, 7)).transpose(0, 1), torch.tensor([9, 6, 4]))
    close(found.transpose(0, 1), want["lstm"])
    assert out_lengths(want["lengths_in"]).tolist() == want["lengths_out"].tolist()


def test_beams_find_the_most_probable_sentence():
    "All 20 of those whose 243 paths were enumerated; with narrow beams as many as published."
    cases = GOLDEN.listed("ctc.json")
    rows = [arr(f"ctc{i}", (5, 3), 1.5).log_softmax(1) for i in range(len(cases))]
    for width, exact in ((64, 20), (8, 20), (2, 14)):
        found = [beam_search(x.numpy(), width) for x in rows]
        assert sum(f == c["best"] for f, c in zip(found, cases, strict=True)) == exact
    for x, case in zip(rows, cases, strict=True):
        assert greedy(x.numpy()) == case["greedy"]
        loss = ctc_loss(x[None], *(torch.tensor(v) for v in ([5], [[1, 2]], [2])))
        assert loss.item() == pytest.approx(case["loss_12"], abs=1e-6)
