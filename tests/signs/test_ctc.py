"The CTC loss beside PyTorch's, distillation, decoders, and the networks' promises."

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mshnet.signs.ctc import (
    Bigram,
    beam_search,
    collapse,
    ctc_loss,
    distil,
    least_frames,
    signing_loss,
)
from mshnet.signs.networks import Frames, OneBranch, Tracks, TwoBranch, spectrum


def batch(seed, size=6, steps=30, classes=40, most=7, dtype=torch.float64):
    "Random logits, frames, labels with repeats, and lengths from 0 on."
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(size, steps, classes, generator=generator, dtype=dtype)
    frames = torch.randint(2 * most, steps + 1, (size,), generator=generator)
    lengths = torch.randint(0, most + 1, (size,), generator=generator)
    labels = torch.randint(1, 4, (size, most), generator=generator)
    labels *= torch.arange(most)[None] < lengths[:, None]
    return logits.requires_grad_(), frames, labels, lengths


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sizes", [(6, 30, 40, 7), (2, 60, 3516, 9)])
def test_values_and_gradients_are_those_of_torch(seed, sizes):
    "With repeats, padding and an empty sentence; a gradient is rounded as logarithms of up to 500."
    logits, *rest = batch(seed, *sizes, dtype=torch.float32)
    own, (frames, labels, lengths) = ctc_loss(logits, *rest), rest
    log_probs = logits.double().log_softmax(2).transpose(0, 1)
    wanted = F.ctc_loss(log_probs, labels, frames, lengths, reduction="none")
    torch.testing.assert_close(own.double(), wanted, rtol=1e-6, atol=1e-5)
    gradients = [torch.autograd.grad(x.sum(), logits, retain_graph=True)[0] for x in (own, wanted)]
    room = 2 * torch.finfo(torch.float32).eps * wanted.max().item()
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=room)


def test_a_clip_that_is_too_short_is_infinite_and_disturbs_nobody():
    "Exactly where `least_frames` says so; its gradient is zero, that of the others unchanged."
    labels = torch.tensor([[1, 1, 2], [1, 2, 3]])
    for frames in range(1, 7):
        logits = torch.randn(2, 6, 5, requires_grad=True)
        loss = ctc_loss(logits, torch.tensor([frames, frames]), labels, torch.tensor([3, 3]))
        least = torch.tensor([least_frames(row) for row in labels.tolist()])
        assert (loss.isinf() == (frames < least)).all() and least.tolist() == [4, 3]
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        assert gradient.isfinite().all()
        assert (gradient.abs().sum((1, 2)) == 0).eq(loss.isinf()).all()


def probability(log_probs, sentence):
    "The sum over all paths, one by one."
    steps, classes = log_probs.shape
    paths = itertools.product(range(classes), repeat=steps)
    right = [path for path in paths if collapse(path) == sentence]
    return sum(np.exp(sum(log_probs[t, c] for t, c in enumerate(path))) for path in right)


def test_a_beam_weighs_the_bigram():
    "The best of all sentences by CTC and bigram together, found by enumeration."
    rng = np.random.default_rng(1)
    bigram = Bigram.of([[1, 2], [1, 2], [2, 1, 2]], 3)
    sentences = [list(s) for n in range(6) for s in itertools.product((1, 2), repeat=n)]

    def total(log_probs, sentence):
        ends = zip([0, *sentence], [*sentence, 0], strict=True)
        found = probability(log_probs, sentence)
        return np.log(found + 1e-300) + 1.5 * sum(bigram.log(a, b) for a, b in ends)

    for _ in range(5):
        log_probs = torch.tensor(rng.standard_normal((5, 3))).log_softmax(1).numpy()
        best = max(sentences, key=lambda s: total(log_probs, s))
        assert beam_search(log_probs, 64, bigram, 1.5) == best


def test_the_teacher_is_detached_and_padding_is_not_distilled():
    "By default; as published, the gradient reaches the teacher."
    logits, frames, labels, lengths = batch(0)
    student = torch.randn_like(logits).requires_grad_()
    outputs = {"final": logits, "final_conv": student}
    for how in ("detached", "published"):
        parts = signing_loss(outputs, frames, labels, lengths, how)
        loss = parts["distil_final_conv"]
        pair = torch.autograd.grad(loss, [student, logits], allow_unused=True, retain_graph=True)
        late = torch.arange(30)[None] >= frames[:, None]
        assert (pair[0][late].abs().sum() == 0) == (how == "detached")
        assert (pair[1] is None) == (how == "detached")
    assert "distil_final_conv" not in signing_loss(outputs, frames, labels, lengths, "none")
    assert distil(logits, logits + 3).item() == pytest.approx(0, abs=1e-5)


def networks():
    "A small network of each kind, with a clip for it."
    video, tracks = torch.randint(0, 256, (2, 28, 3, 32, 32)).byte(), torch.randn(2, 28, 6)
    small = {"width": 8, "blocks": (1, 1, 1, 1)}
    yield TwoBranch(Frames(**small), 9, 16), video
    yield OneBranch(Frames(**small, gates=False), 9, 16, layers=1), video
    yield TwoBranch(Tracks(6, 12), 9, 16, scale=8), tracks
    yield OneBranch(Tracks(6, 12, 0.5), 9, 16, dropout=0.5), tracks


def test_every_network_learns_and_has_no_dead_weight():
    "All parameters get a gradient; logits are bounded by the scale and the features."
    for network, clip in networks():
        frames, steps = torch.tensor([28, 20]), torch.tensor([4, 2])
        labels = torch.tensor([[1, 2], [3, 0]])
        sum(signing_loss(network(clip, frames), steps, labels, steps // 2).values()).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_tracks_are_read_alike_alone_and_in_a_batch():
    "A clip of eight frames has the same logits in a bucket of 20 and in one of 28."
    network = TwoBranch(Tracks(6, 12), 9, 16).eval()
    clip = torch.randn(8, 6)[(torch.arange(28) - 6).clamp(0, 7)][None]
    frames = torch.tensor([20])
    short, long = network(clip[:, :20], frames), network(clip, frames)
    for name, found in short.items():
        torch.testing.assert_close(found, long[name][:, :2], rtol=1e-4, atol=1e-5)


def test_the_spectrum_has_finite_gradients_at_zero():
    "The magnitude of zero has none in `abs`; a dead feature must not become NaN."
    x = torch.zeros(2, 6, 8, requires_grad=True)
    spectrum(x).sum().backward()
    assert x.grad.isfinite().all()
