"The published network, diffusion and averaging, number by number."

import numpy as np
import pytest
import torch
from goldens import Goldens, arr, close, entries

from mshnet.eit.diffusion import amounts, kept_share, mix, published_decay, sample, times
from mshnet.eit.networks import DiT

GOLDEN = Goldens("eit")
golden = GOLDEN.arrays


def filled(model):
    "A model with the weights of the golden files."
    for key, value in model.state_dict().items():
        if key == "pos_embed" or key.endswith("relative_position_index"):
            continue
        if key.endswith("relative_position_bias_table"):
            new = arr(key, value.shape, 0.2)
        elif key.endswith((".g", "norm.weight")):
            new = 1 + arr(key, value.shape, 0.1)
        elif value.ndim >= 2:
            new = arr(key, value.shape, 0.5 / np.sqrt(np.prod(value.shape[1:])))
        else:
            new = arr(key, value.shape, 0.05)
        value.copy_(new)
    return model


@pytest.fixture(scope="module")
def small():
    "The published network at a small size."
    return filled(DiT(size=32, patch=2, width=64, heads=16, scales=4))


@pytest.mark.parametrize(("name", "sizes"), [("small", (32, 2, 64, 16, 4)), ("full", ())])
def test_names_shapes_and_order_are_the_published_ones(name, sizes):
    "So published weights load."
    with torch.device("meta"):
        model = DiT(*sizes)
    assert entries(model) == GOLDEN.listed(f"state_dict_{name}.json")


def test_each_part_of_the_small_network(small):
    "From the patches to the picture, the loss and all gradients."
    want, seen, blocks = golden("model_small.npz"), {}, small.blocks
    parts = {"time": small.t_embedder, "win1": blocks.swinIn1, "merge1": blocks.downs[0][0]}
    parts |= {"down1": blocks.downs[0][2], "mid": blocks.mid, "up1": blocks.ups[0][0]}
    parts |= {"join1": blocks.ups[0][1], "win4": blocks.swinOut2, "final": small.final_layer}
    for name, part in parts.items():
        key = "mid" if name == "mid" else f"mid_{name}"
        part.register_forward_hook(lambda _, __, out, key=key: seen.update({key: out}))
    out = small(want["x"], want["t"], want["y"])
    for key, value in seen.items():
        close(value, want[key], 3e-6)
    close(out, want["out"], 3e-6)
    close(small.pos_embed, want["pos_embed"], 1e-6)
    loss = (out - arr("x0", (2, 1, 32, 32))).abs().mean()
    loss.backward()
    assert loss.item() == pytest.approx(want["loss"].item(), rel=1e-6)
    names = GOLDEN.listed("parameters_small.json")
    found = [small.get_parameter(name).grad.norm().item() for name in names]
    assert found == pytest.approx(want["grad_norms"].tolist(), rel=1e-5)
    small.zero_grad()


@pytest.mark.nightly
def test_the_network_at_its_published_size():
    "109,719,108 parameters, one picture."
    want, model = golden("model_full.npz"), filled(DiT())
    assert sum(p.numel() for p in model.parameters()) == want["params"] == 109_719_108
    with torch.no_grad():
        out = model(arr("x_full", (1, 1, 128, 128)), want["t"], arr("y_full", (1, 1, 16, 16)))
    close(out, want["out"], 2e-5)


def test_noise_times_and_loss(small):
    "The schedule, the mixture, the loss of training."
    want = golden("diffusion.npz")
    assert np.abs(kept_share() - want["alphas_cumprod"].numpy()).max() < 1e-15
    for steps in (1, 2, 3, 5, 7, 10, 50, 1000):
        assert times(steps) == want[f"times_K{steps}"].tolist()
    noisy = mix(want["x0"], want["noise"], torch.from_numpy(amounts(want["t"].numpy())))
    close(noisy, want["q_sample"], 1e-6)
    with torch.no_grad():
        out = small(noisy[:2], want["t"][:2], golden("model_small.npz")["y"])
    loss = (out - want["x0"][:2]).abs().mean().item()
    assert loss == pytest.approx(want["training_loss"].item(), rel=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 5, 10])
def test_the_sampler(small, steps):
    "Pictures of the small network, drawn in 1, 2, 5 and 10 steps."
    y = golden("model_small.npz")["y"]
    noise = [arr(f"draw{i}", (2, 1, 32, 32)) for i in range(steps)]
    with torch.no_grad():
        found = sample(lambda noisy, level: small(noisy, level, y), noise)
    close(found, golden("diffusion.npz")[f"sample_K{steps}"], 3e-6)


def test_the_published_average_of_weights():
    "Copied until call 100, then averaged in every tenth."
    want, average = golden("ema.npz"), 0.0
    for call, weight in enumerate(want["weight"].tolist()):
        decay = published_decay(call)
        average = decay * average + (1 - decay) * weight
        assert average == pytest.approx(want["ema"][call].item(), abs=1e-6)
