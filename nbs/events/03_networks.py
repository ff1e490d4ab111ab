# %% [markdown]
# # Mamba-Spike: the network
#
# > Spiking neurons see the events, and a Mamba stack follows their rates in time.
#
# An event camera reports changes of brightness, pixel by pixel, with the time of each, and nothing where nothing happens. A spiking neuron, too, is silent until its input is strong enough. Can a network of such neurons read the recordings? Counted in bins of some milliseconds, a recording is a sequence of T frames with two channels: brighter and darker. Mamba-Spike (Qin and Liu, CGI 2024, arXiv:2408.11823) classifies the sequence. We implement the network for every size, with the layer names of the published weights. Its parts, with the published sizes for N-MNIST:
#
# ```
#    frames                        T x 2x34x34
# -> three spiking layers          T x 32x17x17, T x 32x8x8, T x 64x8x8
# -> firing rates                  T x 4096: fraction of the last five steps with a spike
# -> linear layer, Mamba blocks    T x 128
# -> mean over time, linear layer  10 logits
# ```

# %%
#| export
#| default_exp events.networks
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# %% [markdown]
# ## A neuron
#
# A leaky integrate-and-fire neuron keeps a membrane potential $U$. It leaks by a factor $\beta$ in each step, adds the input current, and spikes when it is above 1. A spike lowers it by 1 in the next step:
#
# $$U_t = \beta\,U_{t-1} + I_t - S_{t-1}, \qquad S_t = [U_t > 1]$$
#
# A step function has no useful derivative. The backward pass uses the *surrogate gradient* $1 / (1 + k\,|U - 1|)^2$ instead, and ignores the path through the reset. With the published slope $k = 25$ a neuron learns only while its membrane is near the threshold. A smaller slope lets more neurons learn; [our recipe](../../experiments/events.md) has 2.
#
# Each layer also gets its own spikes of the step before, through a 1x1 convolution; the first step has no feedback. No layer gets feedback from a later layer. So the convolution of its input runs over all frames at once, and only the short loop below goes step by step.

# %%
#| export
SLOPE = 25.0  # of the published surrogate gradient


class _Neurons(torch.autograd.Function):
    "Membranes of a layer, with the surrogate gradient of its spikes in the backward pass."

    @staticmethod
    def forward(
        ctx: Any, current: Tensor, beta: float, weight: Tensor, bias: Tensor, slope: float
    ) -> tuple[Tensor, Tensor]:
        "Spikes and membranes [T,N,C]."
        found = [current[0]]
        for drive in current[1:].unbind(0):
            spikes = (found[-1] > 1).to(drive.dtype)
            found.append(beta * found[-1] + drive - spikes + F.linear(spikes, weight, bias))
        u = torch.stack(found)
        ctx.save_for_backward(u, weight)
        ctx.beta, ctx.slope = beta, slope
        ctx.mark_non_differentiable(u)
        return (u > 1).to(u.dtype), u

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        "Gradients with respect to the current, the weight and the bias."
        u, weight = ctx.saved_tensors
        later = torch.zeros_like(u[0])  # gradient with respect to the current of the next step
        found, by_weight = [later], torch.zeros_like(weight)
        for direct, membrane in zip(grads[0].unbind()[::-1], u.unbind()[::-1], strict=True):
            slope = (1 + ctx.slope * (membrane - 1).abs()).square().reciprocal()
            by_weight = by_weight + later.T @ (membrane > 1).to(u.dtype)
            later = slope * (direct + later @ weight) + ctx.beta * later
            found.append(later)
        current = torch.stack(found[:0:-1])
        return current, None, by_weight, current[1:].sum((0, 1)), None


def spike(
    current: Tensor,  # [T,N,C]
    beta: float,  # fraction of the membrane potential that is left after a step
    weight: Tensor | None = None,  # [C,C] from the spikes of the step before; None: no feedback
    bias: Tensor | None = None,  # [C]
    slope: float = SLOPE,  # of the surrogate gradient
) -> tuple[Tensor, Tensor]:  # spikes 0 or 1, and membranes, which have no gradient
    "Leaky integrate-and-fire neurons over all steps; float32."
    count = current.shape[-1]
    weight = current.new_zeros(count, count) if weight is None else weight
    bias = current.new_zeros(count) if bias is None else bias
    with torch.autocast(current.device.type, enabled=False):  # float32
        return _Neurons.apply(current.float(), beta, weight.float(), bias.float(), slope)


# %% [markdown]
# One neuron with a constant current charges, spikes, and starts again one lower (left). A smaller $\beta$ forgets faster: with 0.5 this current never reaches the threshold. On the right is the reason for our slope: half below the threshold, at 0.5, slope 2 leaves a quarter of the gradient, slope 25 half a percent.

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for beta, line in ((0.5, "-"), (0.9, "--"), (0.97, "-.")):
    spikes, u = spike(torch.full((60, 1, 1), 0.15), beta)
    axes[0].plot(u.flatten(), line, label=f"beta {beta}: {int(spikes.sum())} spikes")
axes[0].axhline(1, color="black", linestyle=":")
axes[0].set(xlabel="step", ylabel="membrane")
u = torch.linspace(0, 2, 201)
axes[1].plot(u, (u > 1).float(), label="spike")
for slope in (2, SLOPE):
    axes[1].plot(u, (1 + slope * (u - 1).abs()) ** -2, label=f"surrogate gradient, slope {slope:g}")
axes[1].set(xlabel="membrane")
for axis in axes:
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1))


# %% [markdown]
# ## The front-end
#
# The front-end has three such layers: a 3x3 convolution, a maximum over 2x2 pixels (not in the third), the neurons. Height and width fall to a quarter. The *firing rate* of a neuron is the fraction of the last five steps with a spike.

# %%
#| export
def firing_rates(spikes: Tensor, window: int) -> Tensor:
    "Fraction of the last `window` steps with a spike: [T,...] -> [T,...]; zeros before the first."
    past = torch.cat([torch.zeros_like(spikes[:1]).expand(window - 1, *spikes.shape[1:]), spikes])
    shifted = [past[k : k + len(spikes)] for k in range(window)]
    return sum(shifted[1:], shifted[0]) / window


class SpikingFrontend(nn.Module):
    "Three spiking convolutions: [T,B,channels,H,W] -> spikes of each layer."

    def __init__(
        self, channels: int, widths: Sequence[int], beta: float, slope: float = SLOPE
    ) -> None:
        super().__init__()
        self.beta, self.slope = beta, slope
        for i, (before, width) in enumerate(pairwise((channels, *widths)), 1):
            self.add_module(f"conv{i}", nn.Conv2d(before, width, 3, padding=1))
        for i, width in enumerate(widths, 1):  # in the order of the published weights
            self.add_module(f"recurrent{i}", nn.Conv2d(width, width, 1))

    def forward(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        "Spikes and membranes [T,B,C,h,w] of each layer."
        layout = torch.contiguous_format if x.device.type == "mps" else torch.channels_last
        found = []
        for i in (1, 2, 3):
            conv, feedback = (getattr(self, f"{name}{i}") for name in ("conv", "recurrent"))
            frames = conv(x.flatten(0, 1).contiguous(memory_format=layout))
            if i < 3:
                frames = F.max_pool2d(frames, (2, 2) if frames.shape[-1] > 1 else (2, 1))
            current = frames.unflatten(0, x.shape[:2])
            t, b, c, h, w = current.shape
            flat = current.movedim(2, 4).reshape(t, b * h * w, c)
            weight, bias = feedback.weight[:, :, 0, 0], feedback.bias
            both = spike(flat, self.beta, weight, bias, self.slope)
            x, u = (v.view(t, b, h, w, c).movedim(4, 2) for v in both)
            found.append((x, u))
        return found


# %% [markdown]
# Ten random frames: the shape and the activity of each layer. With a window of five, a rate is one of six values.

# %%
torch.manual_seed(0)
frames = torch.poisson(torch.full((10, 1, 2, 20, 20), 0.5))
layers = SpikingFrontend(2, (8, 8, 16), 0.9)(frames)
for spikes, _ in layers:
    print(tuple(spikes.shape), f"{100 * spikes.mean():.1f}% of the neurons spike in a step")
same = torch.allclose(firing_rates(layers[0][0], 5)[4], layers[0][0][:5].mean(0))
print("the rate after five steps is the mean of their spikes:", same)


# %% [markdown]
# ## A scan in parallel
#
# The heart of Mamba (Gu and Dao, arXiv:2312.00752) is a linear recurrence, $h_t = a_t h_{t-1} + b_t$, for thousands of values in parallel. A loop over 300 steps is slow, and autograd makes it slower. We cut time into about $\sqrt T$ pieces of $\sqrt T$ steps. All pieces run in parallel, as if each began with $h = 0$. But the true start of a piece is the end of the piece before it. So we add to each step this start times the product of all $a$ up to the step. That makes $2\sqrt T$ steps. The gradient is the same scan, backwards in time.

# %%
#| export
def _scan(a: Tensor, b: Tensor) -> Tensor:  # [T,...]
    "h[t] = a[t] h[t-1] + b[t] from h[-1] = 0."
    steps = len(a)
    size = max(1, math.isqrt(steps))
    count = -(-steps // size)
    if padding := count * size - steps:
        a, b = (torch.cat([x, x.new_zeros(padding, *x.shape[1:])]) for x in (a, b))
    factors, inputs = (x.unflatten(0, (count, size)).unbind(1) for x in (a, b))
    h, product = [inputs[0]], [factors[0]]  # of each step, in all pieces
    for i in range(1, size):
        h.append(torch.addcmul(inputs[i], factors[i], h[-1]))
        product.append(factors[i] * product[-1])
    starts = [torch.zeros_like(a[0])]
    for i in range(count - 1):
        starts.append(torch.addcmul(h[-1][i], product[-1][i], starts[-1]))
    start = torch.stack(starts)
    whole = [torch.addcmul(h[i], product[i], start) for i in range(size)]
    return torch.stack(whole, 1).flatten(0, 1)[:steps]


class _Scan(torch.autograd.Function):
    "The scan with its gradient, which keeps two tensors."

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:  # [T,...], [T,...]
        h = _scan(a, b)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        "Gradients with respect to a and b."
        a, h = ctx.saved_tensors
        zero = torch.zeros_like(a[:1])
        by_b = _scan(torch.cat([zero, a[1:].flip(0)]), grads[0].flip(0)).flip(0)
        return by_b * torch.cat([zero, h[:-1]]), by_b


def scan(a: Tensor, b: Tensor) -> Tensor:  # [T,...]
    "h[t] = a[t] h[t-1] + b[t] from h[-1] = 0, in parallel; float32."
    with torch.autocast(a.device.type, enabled=False):  # float32
        return _Scan.apply(a.float(), b.float())


# %% [markdown]
# A loop over 300 steps gives the same values; with its gradients it takes [25 times as long](../../experiments/events.md):

# %%
a, b = torch.rand(300, 2, 64, 16), torch.randn(300, 2, 64, 16)
looped = [b[0]]
for step in range(1, len(a)):
    looped.append(a[step] * looped[-1] + b[step])
print("the loop gives the same:", torch.allclose(torch.stack(looped), scan(a, b), atol=1e-5))


# %% [markdown]
# ## A Mamba block
#
# Each of $2d$ channels has 16 states with learnt rates of decay, $A$. What makes the model selective is that the step size $\Delta$, the input weights $B$ and the output weights $C$ depend on the input: a channel can hold its state, or replace it. The decay of a state in a step is $a = e^{\Delta A}$, its input $b = \Delta B x$, and the output of a channel $y = C\,h + D\,x$. A softplus makes $\Delta$ positive. A block mixes the last four steps (a causal convolution), scans, multiplies by a gate, and adds the result to its input.

# %%
#| export
class Mamba(nn.Module):
    "A selective state space model: [T,B,d] -> [T,B,d]."

    def __init__(self, d: int, states: int = 16) -> None:
        super().__init__()
        inner, self.rank, self.states = 2 * d, math.ceil(d / 16), states
        self.A_log = nn.Parameter(torch.arange(1, states + 1).float().log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.in_proj = nn.Linear(d, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, 4, groups=inner, bias=False)
        self.x_proj = nn.Linear(inner, self.rank + 2 * states, bias=False)
        self.dt_proj = nn.Linear(self.rank, inner)
        self.out_proj = nn.Linear(inner, d, bias=False)
        step = torch.exp(torch.empty(inner).uniform_(math.log(1e-3), math.log(0.1)))
        with torch.no_grad():
            self.dt_proj.bias.copy_(step + torch.log(-torch.expm1(-step)))  # inverse of softplus

    def forward(self, x: Tensor) -> Tensor:
        "The recurrence, gated."
        x, gate = self.in_proj(x).chunk(2, -1)
        past = F.pad(x, (0, 0, 0, 0, 3, 0))
        taps = self.conv1d.weight[:, 0].unbind(1)
        mixed = [past[k : k + len(x)] * tap for k, tap in enumerate(taps)]
        x = F.silu(mixed[0] + mixed[1] + mixed[2] + mixed[3])
        step, b, c = self.x_proj(x).split([self.rank, self.states, self.states], -1)
        step = self.dt_proj(step)
        with torch.autocast(x.device.type, enabled=False):  # float32
            step, x = F.softplus(step.float()), x.float()
            decay = torch.exp(step[..., None] * -torch.exp(self.A_log.float()))
            h = scan(decay, (step * x)[..., None] * b.float()[..., None, :])
            y = (h @ c.float()[..., None])[..., 0] + self.D.float() * x
        return self.out_proj(y.to(gate.dtype) * F.silu(gate))


class MambaBlock(nn.Module):
    "Layer norm and Mamba, with a residual connection."

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.mamba = nn.LayerNorm(d), Mamba(d)

    def forward(self, x: Tensor) -> Tensor:  # [T,B,d]
        return x + self.mamba(self.norm(x))


# %% [markdown]
# A block depends only on the past. We change step 6 of its input and print how much each step of the output changes. The six steps before it do not change. The three after it change by the convolution, the last two by the states alone:

# %%
block, x = MambaBlock(16), torch.randn(12, 2, 16)
changed = x.clone()
changed[6] *= -1
apart = (block(changed) - block(x)).detach().abs().amax((1, 2))
print(Mamba(16)(x).shape, [f"{value:.0e}" for value in apart.tolist()])


# %% [markdown]
# ## The machinery: the whole network
#
# `MambaSpike` joins the parts as the opening shows. Inside it time comes first: tensors are [T,B,...], because a step of time is then one block of memory. The published network flattens all rates of the last layer. For 128x128 pixels these are 131,072 values, and the first linear layer has 33.6 of 36.3 million weights. With `pool` the rates are first averaged on a grid of that side, which leaves 2,048 for `pool=4`. The mean over time can be taken after each step. So `look` returns logits over time (`evidence`), and the last ones are the prediction.

# %%
#| export
class Seen(NamedTuple):
    "The output of the network for recordings, with its spikes."

    evidence: Tensor  # [B,T,classes] logits after each step
    spikes: tuple[Tensor, ...]  # of each layer, [B,T,C,h,w]


class MambaSpike(nn.Module):
    """Mamba-Spike, at any size: frames [B,T,channels,H,W] -> logits [B,classes].

    `shape` is that of a frame. Frames [B,T,channels,H] of sound have width 1. ValueError for a
    `pool` that does not divide the side of the last layer. Source: arXiv:2408.11823 and
    ECNU-Cross-Innovation-Lab/Mamba-Spike b77c890.
    """

    foreign = r"\.lif\d\."  # settings of neurons, which published files hold among the weights

    def __init__(
        self,
        shape: tuple[int, int, int] = (2, 34, 34),
        classes: int = 10,
        width: int = 32,  # channels of the first two spiking layers
        features: int = 64,  # channels of the third
        d_model: int = 128,
        layers: int = 4,  # Mamba blocks
        beta: float = 0.97,
        rate_window: int = 5,  # steps
        pool: int = 0,  # side of the grid of rates; 0: all pixels
        slope: float = SLOPE,  # of the surrogate gradient
    ) -> None:
        super().__init__()
        channels, high, wide = shape
        high, wide = high // 4, wide // 4 if wide > 1 else 1
        self.cell = (high // pool, wide // pool) if pool else (1, 1)
        if pool and (high % pool or wide % pool):
            raise ValueError(f"pool={pool}: the last layer has {high}x{wide} pixels; use a "
                             "divisor of both, or 0")  # fmt: skip
        self.rate_window = rate_window
        self.fixed = self.cell, rate_window, beta  # what no weight shows
        rates = features * (pool * pool or high * wide)
        self.spiking_frontend = SpikingFrontend(channels, (width, width, features), beta, slope)
        self.input_proj = nn.Linear(rates, d_model)
        self.mamba_blocks = nn.Sequential(*(MambaBlock(d_model) for _ in range(layers)))
        self.norm, self.classifier = nn.LayerNorm(d_model), nn.Linear(d_model, classes)

    def forward(self, x: Tensor) -> Tensor:
        "Logits [B,classes] of whole recordings, of any number of steps."
        spikes = self.spiking_frontend(self._by_time(x))[-1][0]
        return self.classifier(self.norm(self._states(spikes).mean(0)))

    def look(self, x: Tensor) -> Seen:
        "Logits, also after each step, and spikes of whole recordings."
        layers = [spikes for spikes, _ in self.spiking_frontend(self._by_time(x))]
        states = self._states(layers[-1])
        steps = torch.arange(1, len(states) + 1, device=x.device, dtype=states.dtype)
        means = states.cumsum(0) / steps[:, None, None]
        evidence = self.classifier(self.norm(means)).transpose(0, 1)
        return Seen(evidence, tuple(s.transpose(0, 1) for s in layers))

    def before_loading(self, weights: dict[str, Tensor]) -> None:
        "ValueError if the neurons of published weights have another beta."
        own = self.spiking_frontend.beta
        for name, beta in weights.items():
            if re.search(r"\.lif\d\.beta$", name) and (beta - own).abs().max() > 0.001:
                what = f"its neurons have beta {beta.max():.3g}, the settings {own:.3g}"
                raise ValueError(
                    f"{what}; set --tau: beta is exp(-dt / tau), dt the width of a bin"
                )

    def _by_time(self, x: Tensor) -> Tensor:
        "[B,T,channels,H,W] or [B,T,channels,H] -> [T,B,channels,H,W]"
        return (x if x.ndim == 5 else x[..., None]).transpose(0, 1).contiguous()

    def _states(self, spikes: Tensor) -> Tensor:
        "Spikes of the last layer -> output of the blocks, [T,B,d_model]."
        t, b = spikes.shape[:2]
        grid = spikes.flatten(0, 1)
        if self.cell != (1, 1):
            grid = F.avg_pool2d(grid, self.cell)
        rates = firing_rates(grid.reshape(t, b, -1), self.rate_window)
        return self.mamba_blocks(self.input_proj(rates))


# %% [markdown]
# The parameters of the published sizes, without and with pooling. (The notes in the published repository give 1.2 and 8.5 million.)

# %%
small = {"features": 64, "d_model": 128, "layers": 4}
big = {"features": 128, "d_model": 256, "layers": 6, "shape": (2, 128, 128), "classes": 11}
for name, sizes in {"N-MNIST": small, "DVS128 Gesture": big}.items():
    with torch.device("meta"):
        models = MambaSpike(**sizes), MambaSpike(**sizes, pool=4)
    counts = [sum(p.numel() for p in model.parameters()) for model in models]
    print(f"{name:15} {counts[0]:11,} parameters, {counts[1]:10,} with pooled rates")

# %% [markdown]
# ## Questions
#
# 1. A neuron with $\beta = 0.5$ has a constant current $I$. How large must $I$ be for a spike?
#    <details><summary>Answer</summary>Without a spike the membrane approaches I / (1 - β) = 2 I, so I must exceed 0.5.</details>
# 2. You halve the bins. Which settings must change with them?
#    <details><summary>Answer</summary>The new β is the square root of the old one, which keeps the time constant: exp(-dt / 2τ). (Our settings have <code>tau</code> and compute β.) The window of firing rates needs ten steps instead of five.</details>
