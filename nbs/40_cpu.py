# %% [markdown]
# # Faster attention on a CPU
#
# > Attentions, upsampling and 3x3 kernels with hand-written backward passes: the same outputs in less time.
#
# A block of MSHNet ends with `relu(sa * (ca * y) + shortcut)`, three lines on the [network](00_model.ipynb) page. On a CPU they are surprisingly slow. This page computes the same output, up to rounding, in less time. Gradients differ only where several pixels of a channel have the same maximum. AVX-512 is a set of instructions that many CPUs have. The ratios are measured on a CPU without it ([notes](../experiments/speed.md)) and on one thread of a CPU with it ([table](../results/bench-cpu/README.md)):
#
# | what | CPU | time hand-written / plain |
# |---|---|---|
# | a block's end, forward and backward, float32 | without AVX-512 | 0.44 |
# | the same, float32 and bfloat16 | with AVX-512 | 0.38 and 0.35 |
# | the same, bfloat16 | without AVX-512 or bfloat16 | 1.3 (slower) |
# | a step of training, float32 | without AVX-512 | 0.79 |
#
# On a GPU or a TPU the three lines stay. You need this page only if you change the attention, or want to see how a backward pass is derived and checked.

# %%
#| hide
#| default_exp cpu
import matplotlib.pyplot as plt
from fastcore.test import test_close, test_eq

from mshnet.model import MSHNet

# %%
#| export
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mshnet.model import Block, ChannelAttention, SpatialAttention, UNet, attend, join, upsample

# %% [markdown]
# ## What is slow?
#
# Convolutions are fastest if the channels of a pixel lie together in memory (*channels-last*). In this layout a few operations around them are slow in torch 2.13, and we replace them. Each bar is the time of our replacement, as a fraction of torch's ([measured](../results/bench-cpu/README.md)). The shorter it is, the more we gain. The last two operations are replaced only in 16 bits:

# %%
measured = {  # 4 images of 16x128x128, AVX-512, one thread: float32, bfloat16
    "maximum over pixels": (0.04, 0.06),
    "gradient of the 7x7 kernel": (0.07, 0.07),
    "sum of two gradients": (0.22, 0.18),
    "product with one number per pixel": (None, 0.22),
    "maximum over channels": (None, 0.34),
}
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
for row, ratios in enumerate(measured.values()):
    for i, ratio in enumerate(ratios):
        axes.barh(row + 0.4 * i, ratio or 0, 0.35, color=f"C{i}")
axes.set(yticks=[row + 0.2 for row in range(len(measured))], yticklabels=measured, xlim=(0, 1))
axes.set(xlabel="time hand-written / plain")
axes.legend(("float32", "bfloat16"))
axes.invert_yaxis()


# %% [markdown]
# Why they are slow, and what we do, from the top:
#
# - **The maximum over all pixels** of few channels. `adaptive_max_pool2d` is faster than `amax`, and it also returns the place of the maximum, which the backward pass needs.
# - **The gradient of the 7x7 kernel.** torch stores the map of means before the map of maxima. The gradient is much faster if both numbers of a pixel lie together. (On a CPU without bfloat16 instructions this order is slower in bfloat16: hence the 1.3.)
# - **Sums of gradients.** The gradient of a maximum comes in channels-last order, that of a mean does not (ask both for `is_contiguous()`), and a sum of two orders takes about five times as long. We compute all of them in one order.
# - **In 16 bits**, the maximum over the channels of each pixel, and the product with one number per pixel. For the maximum we first copy to the usual order. For the product we repeat the number for all channels in memory.
#
# ## The machinery: both attentions

# %%
#| export
def _on_cpu(x: Tensor) -> bool:
    "Whether torch computes this on a CPU, uncompiled, in a type whose sums do not overflow."
    return x.device.type == "cpu" and x.dtype != torch.float16 and not torch.compiler.is_compiling()


def _rows_of(x: Tensor) -> Tensor:  # [B,C,H,W] -> [B,HW,C]
    "A row of channels for each pixel: no copy where the channels lie together in memory."
    return x.permute(0, 2, 3, 1).flatten(1, 2)


def _image_of(rows: Tensor, size: torch.Size) -> Tensor:  # [B,HW,C] -> [B,C,H,W], channels-last
    "Rows as an image again, of the height and width of `size`."
    return rows.unflatten(1, size[2:]).permute(0, 3, 1, 2)


def _expand(weights: Tensor, like: Tensor) -> Tensor:  # [B,HW,1] or [B,1,C] -> [B,HW,C]
    "Repeat a number for every channel, or for every pixel; in 16 bits in memory, which is faster."
    wide = weights.expand_as(like)
    return wide.contiguous() if wide.dtype.itemsize == 2 else wide


# %% [markdown]
# **Channel attention**, forward and backward. All pixels share the gradient of a mean. The gradient of a maximum goes to the first of the largest pixels, as in the paper's code. (In the lines of the network page PyTorch's `amax` splits it among ties.)
#
# **Spatial attention.** Where several channels have the same maximum, which is common in 16 bits, they share its gradient, as in torch. A channel minus the maximum is 0 there and negative elsewhere, so `threshold_backward`, the gradient of a ReLU, finds them in one pass.

# %%
#| export
def _weigh_channels(
    y: Tensor,  # [B,C,H,W]
    fc1: Tensor,  # [C/16,C]
    fc2: Tensor,  # [C,C/16]
) -> tuple[Tensor, tuple[Tensor, ...]]:  # weights [B,C]; what the backward pass needs
    "Channel attention."
    peak, place = F.adaptive_max_pool2d(y, 1, return_indices=True)
    mean = y.sum((2, 3)).to(fc1.dtype) / (y.shape[2] * y.shape[3])
    pooled = torch.stack([mean, peak.flatten(1).to(fc1.dtype)])  # [2,B,C]
    hidden = F.relu(pooled @ fc1.T)
    return torch.sigmoid((hidden @ fc2.T).sum(0)), (pooled, hidden, place.flatten(1))


def _channel_gradients(
    grad: Tensor,  # [B,C] of the weights
    weights: Tensor,  # [B,C]
    kept: tuple[Tensor, ...],  # from `_weigh_channels`
    fc1: Tensor,
    fc2: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # of mean and maximum [2,B,C], of fc1, of fc2
    "Gradients of channel attention."
    pooled, hidden, _ = kept
    inner = grad * weights * (1 - weights)
    grad_hidden = (inner @ fc2) * (hidden > 0)
    of_fc1 = torch.einsum("kbr,kbc->rc", grad_hidden, pooled)
    return grad_hidden @ fc1, of_fc1, torch.einsum("bc,kbr->cr", inner, hidden)


def _weigh_pixels(
    z: Tensor,  # [B,HW,C]
    kernel: Tensor,  # [1,2,7,7]
    size: torch.Size,  # of the image
) -> tuple[Tensor, Tensor]:  # weights [B,HW,1]; mean and maximum over the channels [B,HW,2]
    "Spatial attention."
    rows = z.mT.contiguous().mT if z.dtype.itemsize == 2 else z  # as in `_expand`
    maps = torch.stack([rows.sum(2).div_(z.shape[2]), rows.amax(2)], -1)
    inner = F.conv2d(_image_of(maps, size), kernel, padding=kernel.shape[2] // 2)
    return torch.sigmoid(_rows_of(inner)), maps


def _pixel_gradients(
    grad: Tensor,  # [B,HW,1] of the weights
    z: Tensor,  # [B,HW,C]
    weights: Tensor,  # [B,HW,1]
    maps: Tensor,  # [B,HW,2]
    kernel: Tensor,  # [1,2,7,7]
    size: torch.Size,
) -> tuple[Tensor, Tensor]:  # of z [B,HW,C], of the kernel
    "Gradients of spatial attention."
    inner = _image_of(grad * (weights * (1 - weights)), size)
    of_maps, of_kernel, _ = torch.ops.aten.convolution_backward(
        *(inner, _image_of(maps, size), kernel, None),
        *([1, 1], [kernel.shape[2] // 2] * 2, [1, 1], False, [0, 0], 1),  # as in `_weigh_pixels`
        [True, True, False],
    )
    mean, peak = _rows_of(of_maps).split(1, 2)
    below = z - _expand(maps[:, :, 1:], z)
    highest = torch.ops.aten.threshold_backward(torch.ones_like(z), below, -1e-30)
    shares = _expand(peak / highest.sum(2, keepdim=True), z)
    return highest.mul_(shares).add_(_expand(mean / z.shape[2], z)), of_kernel


# %% [markdown]
# Both together, with the shortcut. Let $z = \mathrm{ca} \cdot y$, and $g$ the gradient of the sum within the ReLU. The shortcut gets $g$. By the product rule $z$ gets $\mathrm{sa} \cdot g$, plus what flows back through the spatial attention, whose weight $\mathrm{sa}$ has the gradient $\sum_c g z$. Let $q$ be this gradient of $z$. In the same way $y$ gets $\mathrm{ca} \cdot q$, plus what flows back through the channel attention, whose weight $\mathrm{ca}$ has the gradient $\sum_{\mathrm{pixels}} q y$. To save memory, cheap intermediate results are computed again in the backward pass.

# %%
#| export
class _AttendOnCpu(torch.autograd.Function):
    "`relu(sa * (ca * y) + shortcut)`, in the precision of `y`."

    @staticmethod
    def forward(ctx: Any, y: Tensor, shortcut: Tensor, *weights: Tensor) -> Tensor:
        "`weights` are those of both attentions: fc1, fc2 and the 7x7 kernel."
        fc1, fc2, kernel = weights[0].flatten(1), weights[1].flatten(1), weights[2].to(y.dtype)
        with torch.autocast("cpu", enabled=False):
            ca, kept = _weigh_channels(y, fc1, fc2)
            z = _rows_of(y) * ca.to(y.dtype)[:, None]
            sa, maps = _weigh_pixels(z, kernel, y.shape)
            out = torch.addcmul(_rows_of(shortcut), _expand(sa, z), z).relu_()
        ctx.weights = weights  # gradients take the memory layout of the parameters
        ctx.save_for_backward(y, out, ca, sa, maps, fc1, fc2, kernel, *kept)
        return _image_of(out, y.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable  # for second derivatives use the plain lines
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        "Gradients of all inputs."
        y, out, ca, sa, maps, fc1, fc2, kernel, *kept = ctx.saved_tensors
        size, v, by_channel = y.shape, _rows_of(y), ca.to(y.dtype)[:, None]
        grad, z = torch.ops.aten.threshold_backward(_rows_of(grads[0]), out, 0), v * by_channel
        of_sa = (grad * z).sum(2, keepdim=True)
        inner, of_kernel = _pixel_gradients(of_sa, z, sa, maps, kernel, size)
        inner.addcmul_(_expand(sa, z), grad)
        of_ca = (inner * v).sum(1).to(ca.dtype)
        (mean, peak), of_fc1, of_fc2 = _channel_gradients(of_ca, ca, tuple(kept), fc1, fc2)
        of_y = inner.mul_(by_channel).add_((mean / v.shape[1]).to(y.dtype)[:, None])
        images, channels = torch.arange(len(v))[:, None], torch.arange(v.shape[2])
        of_y[images, kept[2], channels] += peak.to(y.dtype)
        found = (of_fc1[..., None, None], of_fc2[..., None, None], of_kernel)
        of_weights = (torch.empty_like(w).copy_(g) for w, g in zip(ctx.weights, found, strict=True))
        return _image_of(of_y, size), _image_of(grad, size), *of_weights


# %% [markdown]
# `attend_on_cpu` replaces the three lines on a CPU and calls them elsewhere, or if a hook observes an attention or you replaced its `forward`. Both return the same value, and numerical differentiation (`gradcheck`) confirms the hand-written gradients. A hook is called, because the plain lines run then:

# %%
#| export
def _is_changed(module: nn.Module) -> bool:
    "Whether a module computes something of its own, or a hook looks at it or at its gradients."
    forward, backward = module._forward_hooks, module._backward_hooks
    hooks = forward or module._forward_pre_hooks or backward or module._backward_pre_hooks
    own = "forward" in vars(module) or getattr(module, "bias", None) is not None
    usual = {"dilation": (1, 1), "stride": (1, 1), "groups": 1, "padding_mode": "zeros"}
    own = own or any(getattr(module, name, value) != value for name, value in usual.items())
    homes = ChannelAttention.__module__, nn.Conv2d.__module__
    return bool(hooks or own or type(module).forward.__module__ not in homes)


def attend_on_cpu(
    y: Tensor,  # [B,C,H,W]
    shortcut: Tensor,  # [B,C,H,W]
    ca: ChannelAttention,
    sa: SpatialAttention,
) -> Tensor:  # [B,C,H,W]
    "`mshnet.model.attend`, on a CPU by `_AttendOnCpu` unless an attention is changed or watched."
    known = (type(ca), type(sa)) == (ChannelAttention, SpatialAttention)  # else of other weights
    if not (known and _on_cpu(y)) or any(map(_is_changed, (*ca.modules(), *sa.modules()))):
        return attend(y, shortcut, ca, sa)
    weights = ca.fc1.weight, ca.fc2.weight, sa.conv1.weight
    return _AttendOnCpu.apply(y, shortcut, *weights)  # type: ignore[no-any-return]


# %%
ca, sa = ChannelAttention(16).double(), SpatialAttention().double()
inputs = [torch.randn(2, 16, 4, 6, dtype=torch.float64, requires_grad=True) for _ in range(2)]
tensors = [*inputs, ca.fc1.weight, ca.fc2.weight, sa.conv1.weight]
print("gradients confirmed:", torch.autograd.gradcheck(_AttendOnCpu.apply, tensors, atol=1e-6))
difference = attend_on_cpu(*inputs, ca, sa) - attend(*inputs, ca, sa)
print(f"largest difference below 1e-14: {bool(difference.abs().max() < 1e-14)}")

for register in (ca.register_forward_hook, sa.register_full_backward_hook):
    with register(lambda module, *_: print("a hook sees", type(module).__name__)):
        attend_on_cpu(*inputs, ca, sa).sum().backward()


# %% [markdown]
# ### Upsampling and joining
#
# A step of the decoder joins two inputs, and their gradient arrives as one block of memory. The layers before need each part in separate memory, so this step has a hand-written backward pass, too:

# %%
#| export
class _JoinOnCpu(torch.autograd.Function):
    "`join`, with the upsampling in the precision of the features."

    @staticmethod
    def forward(ctx: Any, beside: Tensor, below: Tensor) -> Tensor:
        "Upsample `below` and append it to `beside`."
        ctx.width, ctx.size = beside.shape[1], below.shape
        with torch.autocast("cpu", enabled=False):
            return torch.cat([beside, upsample(below)], 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        "Both parts of the gradient, each in channels-last memory."
        parts = grads[0].split([ctx.width, grads[0].shape[1] - ctx.width], 1)
        beside, above = (part.contiguous(memory_format=torch.channels_last) for part in parts)
        below = torch.ops.aten.upsample_bilinear2d_backward(
            above, above.shape[2:], ctx.size, True, None, None
        )
        return beside, below


def join_on_cpu(
    beside: Tensor,  # [B,C,2H,2W] from the way down
    below: Tensor,  # [B,D,H,W] from the step before
) -> Tensor:  # [B,C+D,2H,2W]
    "`mshnet.model.join`, on a CPU by `_JoinOnCpu`."
    if not _on_cpu(below):
        return join(beside, below)
    return _JoinOnCpu.apply(beside, below)  # type: ignore[no-any-return]


# %%
inputs = [torch.randn(2, 3, n, n, dtype=torch.float64, requires_grad=True) for n in (8, 4)]
test_eq(join_on_cpu(*inputs).detach(), join(*inputs).detach())
print("gradients confirmed:", torch.autograd.gradcheck(_JoinOnCpu.apply, inputs))


# %% [markdown]
# ### The gradient of a 3x3 kernel
#
# At each of its nine places a 3x3 kernel has a matrix of weights, which multiplies the image, moved by up to one pixel. The gradient of this matrix is therefore one matrix product: the gradients of all pixels, times the moved image. With a border of zeros around each image, *moved* only means that the rows begin later in memory, so nothing is copied for the nine products. A CPU without AVX-512 computes them faster than torch's own gradient, and with less than a tenth of its rounding error, from 32 input channels on ([measured](../experiments/speed.md)). Other CPUs keep torch's, and so do 16 bits.

# %%
#| export
def _bordered(x: Tensor) -> Tensor:  # [B,C,H,W] -> [B*(H+2)*(W+2),C]
    "A row of channels for each pixel, with a border of zeros around each image."
    return F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1)).flatten(0, 2)


def _kernel_gradient(x: Tensor, grad: Tensor) -> Tensor:  # [B,C,H,W], [B,D,H,W] -> [D,C,3,3]
    "Gradient of a 3x3 kernel, from its input and the gradient of its output."
    image, grads = _bordered(x), _bordered(grad)
    width = x.shape[3] + 2
    count = len(image) - 2 * (width + 1)  # all rows but for the first and the last border
    rows = grads[width + 1 :][:count].T
    starts = [i * width + j for i in range(3) for j in range(3)]
    products = torch.stack([rows @ image[start : start + count] for start in starts], 2)
    return products.unflatten(2, (3, 3))


class _ConvOnCpu(torch.autograd.Function):
    "A convolution by a 3x3 kernel with a border of zeros."

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        "torch's own."
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, bias, padding=1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        "torch's own for the input and the bias."
        x, weight = ctx.saved_tensors
        sides = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
        for_x, for_weight, for_bias = ctx.needs_input_grad
        asked = [for_x, False, False]
        of_x = torch.ops.aten.convolution_backward(grads[0], x, weight, None, *sides, asked)[0]
        of_weight = None
        if for_weight:
            of_weight = torch.empty_like(weight).copy_(_kernel_gradient(x, grads[0]))
        return of_x, of_weight, grads[0].sum((0, 2, 3)) if for_bias else None


_AVX2 = torch.backends.cpu.get_cpu_capability() == "AVX2"  # not AVX512
_ONLY_3X3: dict[str, Any] = {"kernel_size": (3, 3), "stride": (1, 1), "padding": (1, 1)}
_ONLY_3X3 |= {"dilation": (1, 1), "groups": 1, "padding_mode": "zeros"}


class _Conv2d(nn.Conv2d):
    "`nn.Conv2d`, by `_ConvOnCpu` where that is right and faster."

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        "The convolution, by the attributes that the layer has now."
        plain = torch.is_autocast_enabled("cpu") or not torch.is_grad_enabled()
        plain = plain or not _AVX2 or not _on_cpu(x) or x.dtype.itemsize < 4
        own = {name: getattr(self, name) for name in _ONLY_3X3}
        if plain or x.ndim < 4 or x.shape[1] < 32 or own != _ONLY_3X3:
            return super()._conv_forward(x, weight, bias)
        return _ConvOnCpu.apply(x, weight, bias)  # type: ignore[no-any-return]


# %% [markdown]
# ### In a network
#
# The hand-written passes check the device of each tensor, so a network that uses them may move to a GPU, and a compiler sees the plain lines. An exporter needs the plain lines back. A block of yours with different attentions is computed by the plain lines, too.

# %%
#| export
def use_cpu_passes(model: nn.Module) -> nn.Module:
    "The same model, with the hand-written passes in all blocks and steps up that are MSHNet's."
    for layer in model.modules():
        if isinstance(layer, UNet) and layer.join is join:
            layer.join = join_on_cpu  # type: ignore[method-assign]
        if not isinstance(layer, Block):
            continue
        if layer.attend is attend:
            layer.attend = attend_on_cpu  # type: ignore[method-assign]
        for conv in (layer.conv1, layer.conv2):
            if type(conv) is nn.Conv2d:
                conv.__class__ = _Conv2d
    return model


def use_plain_passes(model: nn.Module) -> nn.Module:
    "The same model, with the lines of the model page."
    for layer in model.modules():
        for name, by_hand in (("attend", attend_on_cpu), ("join", join_on_cpu)):
            if vars(layer).get(name) is by_hand:
                delattr(layer, name)
        if type(layer) is _Conv2d:
            layer.__class__ = nn.Conv2d  # type: ignore[assignment]
    return model


# %% [markdown]
# All blocks of MSHNet use them, and the prediction is the same with and without:

# %%
image = torch.randn(1, 3, 32, 32)
model = MSHNet().eval()
with torch.no_grad():
    plain = model(image)[1]
    test_close(use_cpu_passes(model)(image)[1], plain, eps=1e-4)
    blocks = sum(vars(layer).get("attend") is attend_on_cpu for layer in model.modules())
    print(f"{blocks} blocks use the hand-written passes")
    test_eq(use_plain_passes(model)(image)[1], plain)
    model.encoder_0[0].ca = nn.Identity()  # an experiment without one of the attentions
    changed = model(image)[1]
    test_close(use_cpu_passes(model)(image)[1], changed, eps=1e-4)

# %% [markdown]
# ## Questions
#
# 1. Why does the maximum over a channel send its whole gradient to one pixel, and the mean sends a part to each?
#    <details><summary>Answer</summary>A small change of the largest pixel changes the maximum by as much, and a change of any other pixel does not change it at all. Every pixel changes the mean, by 1/N of its own change.</details>
