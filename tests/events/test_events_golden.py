"The published network, its neurons and its recurrence, number by number."

import numpy as np
import pytest
import torch
from goldens import Goldens, arr, close, entries, random

from mshnet.events.networks import Mamba, MambaSpike, firing_rates, spike

GOLDEN = Goldens("events")
golden = GOLDEN.arrays
PUBLISHED = {
    "nmnist": {"shape": (2, 34, 34)},
    "sequential_mnist": {"shape": (2, 28, 28)},
    "ntidigits": {"shape": (2, 64, 1), "classes": 11},
    "dvsgesture": {"shape": (2, 128, 128), "classes": 11},
    "cifar10dvs": {"shape": (2, 128, 128)},
}
for name in ("dvsgesture", "cifar10dvs"):
    PUBLISHED[name] |= {"features": 128, "d_model": 256, "layers": 6}
SMALL = {"shape": (2, 12, 12), "classes": 5, "features": 8, "d_model": 16, "layers": 2, "beta": 0.9}
NEAR = 1e-4  # of the threshold: on another machine such a membrane may be on its other side


def poisson(tag, rate, shape):
    "Random counts."
    return torch.from_numpy(random(tag).poisson(rate, shape).astype(np.float32))


def value(key, shape):
    "A weight of the golden files."
    size = np.sqrt(np.prod(shape[1:]))
    if key.endswith("A_log"):
        return torch.arange(1, 17).float().log() + arr(key, shape, 0.1)
    if key.endswith("dt_proj.bias"):
        return arr(key, shape, 0.5) - 3
    if key.endswith((".D", "norm.weight")):
        return 1 + arr(key, shape, 0.1)
    if len(shape) == 4:
        return arr(key, shape, (1.5 if ".conv" in key else 0.3) / size)
    return arr(key, shape, 1 / size if len(shape) > 1 else 0.05)


def filled(model):
    "A model with the weights of the golden files."
    model.load_state_dict({k: value(k, tuple(v.shape)) for k, v in model.state_dict().items()})
    return model


@pytest.mark.parametrize("name", ["small", *PUBLISHED])
def test_names_and_shapes_are_the_published_ones(name):
    "So published weights load; what snntorch adds are settings."
    with torch.device("meta"):
        model = MambaSpike(**PUBLISHED.get(name, SMALL))
    published = GOLDEN.listed(f"state_dict_{name}.json")
    assert entries(model) == [entry for entry in published if ".lif" not in entry[0]]


@pytest.mark.parametrize("name", ["nmnist", "sequential_mnist", "ntidigits", "dvsgesture"])
def test_the_published_sizes(name):
    "Their counts of parameters and their logits."
    want, model = golden(f"model_{name}.npz"), filled(MambaSpike(**PUBLISHED[name]))
    assert sum(p.numel() for p in model.parameters()) == want["params"]
    with torch.no_grad():
        out = model(poisson(name, 0.3, tuple(want["shape"].tolist())))
    close(out, want["logits"], 2e-3)  # a neuron near its threshold is worth this much


@pytest.fixture(scope="module")
def small():
    "The small network, the golden numbers and what the network made."
    want, model, seen = golden("model_small.npz"), filled(MambaSpike(**SMALL)), {}
    parts = {"proj": model.input_proj, "block0": model.mamba_blocks[0]}
    parts["block1"] = model.mamba_blocks[1]
    for name, part in parts.items():
        part.register_forward_hook(lambda _, __, out, name=name: seen.update({name: out}))
    model.input_proj.register_forward_pre_hook(lambda _, x: seen.update({"rate": x[0]}))
    model.spiking_frontend.register_forward_hook(lambda _, __, out: seen.update({"layers": out}))
    x = want["x"].float()
    assert torch.equal(x, poisson("events", 0.35, (2, 9, 2, 12, 12)))
    return want, model, seen, model(x)


def test_spikes_and_membranes_of_the_small_network(small):
    "Layer by layer over all steps, as the published code step by step."
    want, _, seen, _ = small
    for i, (spikes, membrane) in enumerate(seen["layers"], 1):
        u = want[f"membrane{i}"].transpose(0, 1)
        sure = (u - 1).abs() > NEAR
        assert torch.equal(spikes[sure], want[f"spikes{i}"].transpose(0, 1).float()[sure])
        close(membrane, u, 2e-5)


def test_states_logits_and_gradients_of_the_small_network(small):
    "From the rates to the loss, and the gradient of every weight."
    want, model, seen, logits = small
    for name in ("rate", "proj", "block0", "block1"):
        close(seen[name].transpose(0, 1), want[name], 1e-5)
    close(logits, want["logits"], 1e-5)
    loss = torch.nn.functional.cross_entropy(logits, want["label"])
    loss.backward()
    assert loss.item() == pytest.approx(want["loss"].item(), rel=1e-5)
    names = GOLDEN.listed("parameters_small.json")
    found = [model.get_parameter(name).grad.norm().item() for name in names]
    assert found == pytest.approx(want["grad_norms"].tolist(), rel=1e-4)


@pytest.mark.parametrize("beta", [0.5, 0.9, 0.97])
def test_a_neuron(beta):
    "Spikes, membranes and the surrogate gradient; the reset has none."
    want = golden("lif.npz")
    current = want["current"].transpose(0, 1).clone().requires_grad_()  # [T,B,4]
    spikes, u = spike(current, beta)
    grad = torch.autograd.grad((spikes.transpose(0, 1) * want["weight"]).sum(), current)[0]
    assert torch.equal(spikes.transpose(0, 1), want[f"spikes_{beta}"].float())
    close(u.transpose(0, 1), want[f"membrane_{beta}"])
    close(grad.transpose(0, 1), want[f"grad_{beta}"], 1e-5)


def test_the_selective_scan():
    "Values and gradients of one Mamba."
    want, model = golden("ssm.npz"), filled(Mamba(16))
    x = want["x"].transpose(0, 1).clone().requires_grad_()
    y = model(x)
    close(y.transpose(0, 1), want["y"], 1e-5)
    (y.transpose(0, 1) * want["weight"]).sum().backward()
    close(x.grad.transpose(0, 1), want["grad_x"], 1e-5)
    names = np.load(GOLDEN.folder / "ssm.npz")["names"]
    norms = [model.get_parameter(name).grad.norm().item() for name in names]
    assert norms == pytest.approx(want["grad_norms"].tolist(), rel=1e-5)


def test_firing_rates():
    "Spikes of the last five steps, over five."
    want = golden("rate.npz")
    spikes = want["spikes"].float().transpose(0, 1).flatten(2)
    close(firing_rates(spikes, 5).transpose(0, 1), want["rate"], 1e-6)
