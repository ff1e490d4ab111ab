# %% [markdown]
# # model
#
# > MSHNet: a U-Net of attentive residual blocks that predicts at four scales and fuses the four predictions.

# %%
#| default_exp model

# %%
#| hide
import importlib.util
import tempfile

from fastcore.test import expect_fail, test_close, test_eq

# %%
#| export
import copy
import hashlib
import itertools
import json
import os
import zipfile
from collections.abc import Mapping
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval


# %% [markdown]
# An infrared small target covers a few dozen of 65,536 pixels. It has no texture and no parts; what gives it away is that it is brighter than *this* sky, *this* sea. So the network must see detail (to place the target) and context (to know what is ordinary here) at once. MSHNet (Liu et al., CVPR 2024, arXiv:2403.19366) does this with a plain U-Net, attention in every block, and a loss on every scale.
#
# The names of layers and their order are those of the published weights, so that these load.
#
# ## Attention
#
# **Channel attention** asks which features matter in this image: pool each channel over the image by mean and by maximum, pass both through the same small bottleneck, add, squash to 0..1.

# %%
#| export
class ChannelAttention(nn.Module):
    "Weight of each channel, 0..1, from its mean and maximum over the image (CBAM, 2018)."

    def __init__(self, channels: int, reduction: int = 16) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, channels // reduction, 1, bias=False)
        self.fc2 = nn.Conv2d(channels // reduction, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [B,C,H,W] -> [B,C,1,1]
        "Weights that `x` is to be multiplied with."
        mean, peak = x.mean((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
        return torch.sigmoid(sum_of(self.fc2(F.relu(self.fc1(p))) for p in (mean, peak)))


def sum_of(tensors: Any) -> Tensor:
    "Sum of two tensors or more; the built-in sum would begin with the integer 0."
    first, *rest = tensors
    for tensor in rest:
        first = first + tensor
    return first


# %% [markdown]
# **Spatial attention** asks which places matter: the mean and the maximum over the channels are two maps, and a 7x7 convolution of both is a third.

# %%
#| export
class SpatialAttention(nn.Module):
    "Weight of each pixel, 0..1, from the mean and maximum over the channels (CBAM)."

    def __init__(self, kernel_size: int = 7) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 1, kernel_size, padding=kernel_size // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [B,C,H,W] -> [B,1,H,W]
        "Weights that `x` is to be multiplied with."
        return torch.sigmoid(
            self.conv1(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1))
        )


# %% [markdown]
# Channel attention sees the whole image. That is worth remembering: the same target gets other weights in another crop, so predicting in tiles is not the same as predicting in one piece.

# %%
x = torch.randn(2, 32, 24, 24)
weights = ChannelAttention(32)(x), SpatialAttention()(x)
test_eq([tuple(w.shape) for w in weights], [(2, 32, 1, 1), (2, 1, 24, 24)])
test_close(sum_of([x, x, x]), 3 * x, eps=1e-5)
assert all(w.min() > 0 and w.max() < 1 for w in weights)


# %% [markdown]
# ## Both attentions on a CPU
#
# A block ends with `relu(sa * (ca * y) + shortcut)`. Written like that it is three lines, and on a CPU they cost more than the convolutions: torch's sums and maxima over channels that lie together in memory (channels-last, which the convolutions want) are slow, and their gradients arrive in other layouts and are copied again and again. So on a CPU the same sums are written out, forward and backward, on a matrix with one row of channels for each pixel. On a GPU or a TPU a compiler does this job, and the three lines stay.
#
# The pieces: an image as rows and back, a map spread over all channels, and the sum over the channels, which is a 1x1 convolution with ones.

# %%
#| export
def on_cpu(x: Tensor) -> bool:
    "Whether torch computes this on a CPU, operation by operation, in numbers of a long range."
    long = x.dtype != torch.float16  # whose sums over an image overflow
    return x.device.type == "cpu" and long and not torch.compiler.is_compiling()


def rows_of(x: Tensor) -> Tensor:  # [B,C,H,W] -> [B,HW,C]
    "A row of channels for each pixel: no copy where the channels lie together in memory."
    return x.permute(0, 2, 3, 1).flatten(1, 2)


def image_of(rows: Tensor, size: torch.Size) -> Tensor:  # [B,HW,C] -> [B,C,H,W], channels-last
    "Rows as an image again, of the height and width of `size`."
    return rows.unflatten(1, size[2:]).permute(0, 3, 1, 2)


def spread(weights: Tensor, like: Tensor) -> Tensor:  # [B,HW,1] or [B,1,C] -> [B,HW,C]
    "The same number in every channel, or in every pixel, written out: then products are fast."
    return weights.expand_as(like).contiguous()


def channel_sum(rows: Tensor, size: torch.Size) -> Tensor:  # [B,HW,C] -> [B,HW,1]
    "The sum over the channels."
    ones = rows.new_ones(1, rows.shape[2], 1, 1)
    return rows_of(F.conv2d(image_of(rows, size), ones))


# %%
x = torch.randn(2, 3, 4, 5)
assert on_cpu(x)
test_eq(image_of(rows_of(x), x.shape), x)
test_close(channel_sum(rows_of(x), x.shape), rows_of(x.sum(1, keepdim=True)), eps=1e-6)
test_eq(spread(torch.ones(2, 20, 1), rows_of(x)), torch.ones(2, 20, 3))


# %% [markdown]
# Channel attention, forward and backward. The gradient of a mean is shared by all pixels; that of a maximum goes to the first pixel that had it, as in the paper's code.

# %%
#| export
def weigh_channels(
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


def channel_gradients(
    grad: Tensor,  # [B,C] of the weights
    weights: Tensor,  # [B,C]
    kept: tuple[Tensor, ...],  # from `weigh_channels`
    fc1: Tensor,
    fc2: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # of mean and maximum [2,B,C], of fc1, of fc2
    "Gradients of channel attention."
    pooled, hidden, _ = kept
    inner = grad * weights * (1 - weights)
    grad_hidden = (inner @ fc2) * (hidden > 0)
    of_fc1 = torch.einsum("kbr,kbc->rc", grad_hidden, pooled)
    return grad_hidden @ fc1, of_fc1, torch.einsum("bc,kbr->cr", inner, hidden)


# %% [markdown]
# Spatial attention. Where several channels share the maximum, which is common in 16 bits, they share its gradient, as torch has it. Which ones do is found without a comparison: a channel minus the maximum is 0 or less, and `threshold_backward`, the gradient of a ReLU, passes what is above its threshold.

# %%
#| export
def weigh_pixels(
    z: Tensor,  # [B,HW,C]
    kernel: Tensor,  # [1,2,7,7]
    size: torch.Size,  # of the image
) -> tuple[Tensor, Tensor]:  # weights [B,HW,1]; mean and maximum over the channels [B,HW,2]
    "Spatial attention."
    planes = z.mT.contiguous()  # [B,C,HW], where sums and maxima over the channels are fast
    maps = torch.stack([planes.sum(1).div_(z.shape[2]), planes.amax(1)], -1)
    return torch.sigmoid(
        rows_of(F.conv2d(image_of(maps, size), kernel, padding=kernel.shape[2] // 2))
    ), maps


# %% [markdown]
# Backwards:

# %%
#| export
def pixel_gradients(
    grad: Tensor,  # [B,HW,1] of the weights
    z: Tensor,  # [B,HW,C]
    weights: Tensor,  # [B,HW,1]
    maps: Tensor,  # [B,HW,2]
    kernel: Tensor,  # [1,2,7,7]
    size: torch.Size,
) -> tuple[Tensor, Tensor]:  # of z [B,HW,C], of the kernel
    "Gradients of spatial attention."
    inner = image_of(grad * (weights * (1 - weights)), size)
    of_maps, of_kernel, _ = torch.ops.aten.convolution_backward(
        *(
            inner,
            image_of(maps, size),
            kernel,
            None,
            [1, 1],
            [kernel.shape[2] // 2] * 2,
            [1, 1],
            False,
            [0, 0],
            1,
        ),
        [True, True, False],
    )
    mean, peak = rows_of(of_maps).split(1, 2)
    below = z - spread(maps[:, :, 1:], z)
    highest = torch.ops.aten.threshold_backward(torch.ones_like(z), below, -1e-30)
    shares = spread(peak / channel_sum(highest, size), z)
    return highest.mul_(shares).add_(spread(mean / z.shape[2], z)), of_kernel


# %% [markdown]
# The two together, with the shortcut. Of the intermediate results only what cannot be had again cheaply is kept until the backward pass, which saves memory too.

# %%
#| export
class AttendOnCpu(torch.autograd.Function):
    "`relu(sa * (ca * y) + shortcut)`, in the numbers' own precision."

    @staticmethod
    def forward(ctx: Any, y: Tensor, shortcut: Tensor, *weights: Tensor) -> Tensor:
        "`weights` are those of both attentions: fc1, fc2 and the 7x7 kernel."
        fc1, fc2, kernel = (w.flatten(1) if w.shape[2] == 1 else w.to(y.dtype) for w in weights)
        with torch.autocast("cpu", enabled=False):
            ca, kept = weigh_channels(y, fc1, fc2)
            z = rows_of(y) * ca.to(y.dtype)[:, None]
            sa, maps = weigh_pixels(z, kernel, y.shape)
            out = spread(sa, z).mul_(z).add_(rows_of(shortcut)).relu_()
        ctx.weights = weights  # parameters, in whose memory layout their gradients are wanted
        ctx.save_for_backward(y, out, ca, sa, maps, fc1, fc2, kernel, *kept)
        return image_of(out, y.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable  # whoever needs more takes `by_hand=False`
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        "Gradients of all inputs."
        y, out, ca, sa, maps, fc1, fc2, kernel, *kept = ctx.saved_tensors
        size, v, by_channel = y.shape, rows_of(y), ca.to(y.dtype)[:, None]
        grad, z = torch.ops.aten.threshold_backward(rows_of(grads[0]), out, 0), v * by_channel
        inner, of_kernel = pixel_gradients(channel_sum(grad * z, size), z, sa, maps, kernel, size)
        inner.add_(spread(sa, z).mul_(grad))
        of_ca = (inner * v).sum(1).to(ca.dtype)
        (mean, peak), of_fc1, of_fc2 = channel_gradients(of_ca, ca, tuple(kept), fc1, fc2)
        of_y = spread((mean / v.shape[1]).to(y.dtype)[:, None], z).add_(inner.mul_(by_channel))
        images, channels = torch.arange(len(v))[:, None], torch.arange(v.shape[2])
        of_y[images, kept[2], channels] += peak.to(y.dtype)
        found = (of_fc1[..., None, None], of_fc2[..., None, None], of_kernel)
        of_weights = (torch.empty_like(w).copy_(g) for w, g in zip(ctx.weights, found, strict=True))
        return image_of(of_y, size), image_of(grad, size), *of_weights


# %% [markdown]
# Here are the three lines. They give the same value, and numerical differentiation the gradients that were derived by hand:

# %%
#| export
def attend(
    y: Tensor,  # [B,C,H,W]
    shortcut: Tensor,  # [B,C,H,W]
    ca: ChannelAttention,
    sa: SpatialAttention,
    by_hand: bool = True,  # on a CPU, by `AttendOnCpu`
) -> Tensor:  # [B,C,H,W]
    "Channel attention, spatial attention, shortcut and ReLU: the end of a block."
    if by_hand and on_cpu(y):
        return AttendOnCpu.apply(y, shortcut, ca.fc1.weight, ca.fc2.weight, sa.conv1.weight)
    y = ca(y) * y
    y = sa(y) * y
    return F.relu(y + shortcut)


# %%
ca, sa = ChannelAttention(16).double(), SpatialAttention().double()
inputs = [torch.randn(2, 16, 4, 6, dtype=torch.float64, requires_grad=True) for _ in range(2)]
weights = [ca.fc1.weight, ca.fc2.weight, sa.conv1.weight]
assert torch.allclose(attend(*inputs, ca, sa), attend(*inputs, ca, sa, by_hand=False))
assert torch.autograd.gradcheck(AttendOnCpu.apply, (*inputs, *weights), atol=1e-6)
y, (fc1, fc2, kernel) = inputs[0].detach(), weights
by_channel, kept = weigh_channels(y, fc1.flatten(1), fc2.flatten(1))
test_close(by_channel.detach(), ca(y).flatten(1).detach())
by_pixel, maps = weigh_pixels(rows_of(y), kernel, y.shape)
test_close(by_pixel.detach(), rows_of(sa(y)).detach())
grads = channel_gradients(by_channel, by_channel, kept, fc1.flatten(1), fc2.flatten(1))
test_eq([g.shape for g in grads], [(2, 2, 16), (1, 16), (16, 1)])
grads = pixel_gradients(by_pixel, rows_of(y), by_pixel, maps, kernel, y.shape)
test_eq([g.shape for g in grads], [(2, 24, 16), (1, 2, 7, 7)])


# %% [markdown]
# ## The block
#
# Two 3x3 convolutions with batch norm, both attentions, and the shortcut around it all. Where the width changes the shortcut is a 1x1 convolution. `by_hand = False` brings the plain lines back on a CPU too, for comparisons.

# %%
#| export
class Block(nn.Module):
    "Residual block with channel attention, then spatial attention."

    by_hand = True  # on a CPU, the end by `AttendOnCpu`

    def __init__(self, wide_in: int, wide_out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(wide_in, wide_out, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(wide_out)
        self.conv2 = nn.Conv2d(wide_out, wide_out, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(wide_out)
        self.shortcut = (
            nn.Identity()
            if wide_in == wide_out
            else nn.Sequential(nn.Conv2d(wide_in, wide_out, 1), nn.BatchNorm2d(wide_out))
        )
        self.ca = ChannelAttention(wide_out)
        self.sa = SpatialAttention()

    def forward(self, x: Tensor) -> Tensor:  # [B,in,H,W] -> [B,out,H,W]
        "Features of the same size."
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        return attend(y, self.shortcut(x), self.ca, self.sa, self.by_hand)


def stage(
    wide_in: int,
    wide_out: int,
    blocks: int,  # how many, the first of which changes the width
) -> nn.Sequential:
    "Several blocks at one scale."
    widths = [wide_in] + [wide_out] * blocks
    return nn.Sequential(*(Block(a, b) for a, b in pairwise(widths)))


# %%
test_eq(Block(16, 32)(torch.randn(1, 16, 8, 8)).shape, (1, 32, 8, 8))
test_eq(len(stage(16, 32, 2)), 2)


# %% [markdown]
# ## The network
#
# Four scales down, a middle, four scales up. On the way up features are enlarged with `align_corners=True`, because the published weights were trained so: the first and last pixel of a row stay where they are, and what lies between is spread evenly.

# %%
#| export
def enlarge(x: Tensor, factor: int = 2) -> Tensor:  # [B,C,H,W] -> [B,C,factor*H,factor*W]
    "Bilinear enlargement with aligned corners."
    if factor == 1:
        return x
    if x.device.type == "xla":
        return enlarge_by_matrix(x, factor)
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=True)


# %% [markdown]
# XLA, the compiler of TPUs, knows no backward pass of torch's enlargement: outside a TPU it would fetch the gradient to the host in every step. So there the same thing is said as what it is, a linear map of rows and one of columns. Row `o` of the matrix holds the weights of the two pixels around place `o`. The matrix is built from two ranges inside the compiled program, so no constant has to be kept anywhere.

# %%
#| export
def enlarging_matrix(
    size: int,  # pixels before
    factor: int,
    device: torch.device | str = "cpu",
) -> Tensor:  # [factor*size, size] float32, rows that sum to 1
    "Weights of each old pixel in each new one, corners aligned."
    step = (size - 1) / (factor * size - 1)
    place = torch.arange(factor * size, device=device, dtype=torch.float32)[:, None] * step
    away = place - torch.arange(size, device=device, dtype=torch.float32)
    return (1 - away.abs()).clamp(min=0)


def enlarge_by_matrix(x: Tensor, factor: int) -> Tensor:  # [B,C,H,W] -> [B,C,factor*H,factor*W]
    "Bilinear enlargement with aligned corners as two matrix products."
    rows, columns = (enlarging_matrix(n, factor, x.device).to(x.dtype) for n in x.shape[-2:])
    return F.linear(F.linear(x, columns).mT, rows).mT


# %%
test_close(enlarge(torch.tensor([[[[0.0, 1.0]]]]))[0, 0, 0], torch.tensor([0, 1 / 3, 2 / 3, 1]))
small = torch.randn(2, 3, 6, 10)
for factor in (2, 4, 8):
    test_close(enlarge_by_matrix(small, factor), enlarge(small, factor), eps=2e-6)
enlarging_matrix(2, 2)


# %% [markdown]
# Each step up sees the features from below and, beside them, those of its own scale from the way down: context and detail. On a CPU this too has a backward pass of its own, for one reason: the gradient comes as one block of memory for both, and each part is wanted by itself.

# %%
#| export
class JoinOnCpu(torch.autograd.Function):
    "`join`, enlarged in the precision of the features."

    @staticmethod
    def forward(ctx: Any, beside: Tensor, below: Tensor) -> Tensor:
        "Enlarge the one, and put it after the other."
        ctx.width, ctx.size = beside.shape[1], below.shape
        with torch.autocast("cpu", enabled=False):
            return torch.cat([beside, enlarge(below)], 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        "Both parts of the gradient, each in channels-last memory."
        parts = grads[0].split([ctx.width, grads[0].shape[1] - ctx.width], 1)
        beside, above = (part.contiguous(memory_format=torch.channels_last) for part in parts)
        below = torch.ops.aten.upsample_bilinear2d_backward(
            above, above.shape[2:], ctx.size, True, None, None
        )
        return beside, below


def join(
    beside: Tensor,  # [B,C,2H,2W] from the way down
    below: Tensor,  # [B,D,H,W] from the step before
    by_hand: bool = True,  # on a CPU, by `JoinOnCpu`
) -> Tensor:  # [B,C+D,2H,2W]
    "Features of one scale beside the enlarged ones of the scale below."
    if by_hand and on_cpu(below):
        return JoinOnCpu.apply(beside, below)
    return torch.cat([beside, enlarge(below)], 1)


# %%
inputs = [torch.randn(2, 3, n, n, dtype=torch.float64, requires_grad=True) for n in (8, 4)]
test_eq(join(*inputs).detach(), join(*inputs, by_hand=False).detach())
assert torch.autograd.gradcheck(JoinOnCpu.apply, inputs)


# %% [markdown]
# The image is halved four times, so its sides are multiples of 16.

# %%
#| export
def expect_size(
    name: str,  # of what computes
    image: Tensor,  # [...,H,W]
) -> None:
    "ValueError unless height and width are multiples of 16."
    height, width = image.shape[-2:]
    if height % 16 or width % 16:
        size = f"{height}x{width}"
        raise ValueError(f"{name}: image of {size}; height and width must be multiples of 16")


# %%
expect_size("MSHNet", torch.zeros(1, 3, 32, 48))
with expect_fail(ValueError, contains="MSHNet: image of 40x48; height and width must be multiples"):
    expect_size("MSHNet", torch.zeros(1, 3, 40, 48))


# %% [markdown]
# The U is a class of its own, so that it can be read apart from what is predicted from it.

# %%
#| export
class UNet(nn.Module):
    """The encoder and decoder of MSHNet.

    Height and width of the image must be multiples of 16 (four halvings); ValueError if not.
    """

    by_hand = True  # on a CPU, steps up by `JoinOnCpu`

    def __init__(self, in_channels: int = 3) -> None:
        super().__init__()
        self.conv_init = nn.Conv2d(in_channels, 16, 1)
        self.encoder_0 = stage(16, 16, 1)
        self.encoder_1 = stage(16, 32, 2)
        self.encoder_2 = stage(32, 64, 2)
        self.encoder_3 = stage(64, 128, 2)
        self.middle_layer = stage(128, 256, 2)
        self.decoder_3 = stage(256 + 128, 128, 2)
        self.decoder_2 = stage(128 + 64, 64, 2)
        self.decoder_1 = stage(64 + 32, 32, 2)
        self.decoder_0 = stage(32 + 16, 16, 1)

    def features(self, image: Tensor) -> list[Tensor]:  # decoder features at strides 1, 2, 4, 8
        "Features of the decoder, from the finest to the coarsest."
        expect_size("MSHNet", image)
        e0 = self.encoder_0(self.conv_init(image))
        e1 = self.encoder_1(F.max_pool2d(e0, 2))
        e2 = self.encoder_2(F.max_pool2d(e1, 2))
        e3 = self.encoder_3(F.max_pool2d(e2, 2))
        middle = self.middle_layer(F.max_pool2d(e3, 2))
        d3 = self.decoder_3(join(e3, middle, self.by_hand))
        d2 = self.decoder_2(join(e2, d3, self.by_hand))
        d1 = self.decoder_1(join(e1, d2, self.by_hand))
        d0 = self.decoder_0(join(e0, d1, self.by_hand))
        return [d0, d1, d2, d3]


# %% [markdown]
# Detail halves in size as it doubles in width:

# %%
with torch.no_grad():
    features = UNet(in_channels=1).eval().features(torch.randn(1, 1, 96, 64))
test_eq(
    [tuple(f.shape[1:]) for f in features], [(16, 96, 64), (32, 48, 32), (64, 24, 16), (128, 12, 8)]
)


# %% [markdown]
# MSHNet puts a 1x1 head on each scale of the decoder. The heads' logits, enlarged to full size, are fused by one 3x3 convolution.
#
# The paper trains in two phases. In the **warm-up** (`deep=False`) only the full-size head exists, and it is what is scored. After it (`deep=True`) all four heads and the fused prediction are trained.

# %%
#| export
class MSHNet(UNet):
    """MSHNet of Liu et al. (CVPR 2024, arXiv:2403.19366): 4,065,513 parameters with 3 channels.

    Height and width of the image must be multiples of 16 (four halvings); ValueError if not.
    """

    def __init__(self, in_channels: int = 3) -> None:
        super().__init__(in_channels)
        self.output_0 = nn.Conv2d(16, 1, 1)
        self.output_1 = nn.Conv2d(32, 1, 1)
        self.output_2 = nn.Conv2d(64, 1, 1)
        self.output_3 = nn.Conv2d(128, 1, 1)
        self.final = nn.Conv2d(4, 1, 3, padding=1)

    def forward(
        self,
        image: Tensor,  # [B,C,H,W] normalised image
        deep: bool = True,  # all heads and their fusion, or the full-size head alone
    ) -> tuple[list[Tensor], Tensor]:  # masks: logits at strides 1,2,4,8 or []; logits [B,1,H,W]
        "Logits of each scale and of the prediction; `deep=False` gives ([], full-size head)."
        features = self.features(image)
        full = self.output_0(features[0])
        if not deep:
            return [], full
        heads = (self.output_1, self.output_2, self.output_3)
        masks = [full, *(head(f) for head, f in zip(heads, features[1:], strict=True))]
        fused = [enlarge(mask, 2**i) for i, mask in enumerate(masks)]
        return masks, self.final(torch.cat(fused, 1))

    @classmethod
    def pretrained(cls) -> "MSHNet":
        "The network with the weights that come with the library, in evaluation mode, on the CPU."
        model = cls()
        load_weights(model, weights_file(PRETRAINED))
        return model.eval()


# %%
model = MSHNet().eval()
test_eq(sum(p.numel() for p in model.parameters()), 4_065_513)
with torch.no_grad():
    masks, logits = model(torch.randn(1, 3, 96, 64))
[tuple(m.shape) for m in masks], tuple(logits.shape)

# %% [markdown]
# The warm-up prediction is the full-size head's, not a fusion of untrained ones:

# %%
image = torch.randn(1, 3, 32, 32)
with torch.no_grad():
    none, warm = model(image, deep=False)
    test_eq(none, [])
    test_close(warm, model(image)[0][0])
with expect_fail(ValueError, contains="multiples of 16"):
    model(torch.randn(1, 3, 100, 64))


# %% [markdown]
# ## A good start
#
# An untrained head says "half a target" in every pixel, and a few dozen of 65,536 pixels are one. Subtracting 4 from the heads' biases starts them at a probability of 2% (focal loss, Lin et al. 2017, does the same). And the fusing convolution can start as a copy of the full-size head: the prediction then is that head's from the first step, and the coarse heads are mixed in as they learn. Started at random, the sign of its nine weights for a head decides whether that head's background pushes the prediction up or down.

# %%
#| export
def start_gently(
    model: MSHNet,
    head_bias: float = -4.0,  # added to the bias of each head
    fusion_start: str = "full_size",  # "full_size", or "random" as it is
) -> MSHNet:  # the same model, changed
    "Start from a nearly empty prediction, and fuse the heads as the full-size one alone."
    with torch.no_grad():
        for head in (model.output_0, model.output_1, model.output_2, model.output_3):
            head.bias.add_(head_bias)  # type: ignore[union-attr]
        if fusion_start == "full_size":
            nn.init.dirac_(model.final.weight)  # the middle of the first head's nine weights
            nn.init.zeros_(model.final.bias)  # type: ignore[arg-type]
    return model


# %%
gentle = start_gently(MSHNet()).eval()
with torch.no_grad():
    masks, logits = gentle(torch.randn(1, 3, 32, 32))
test_close(logits, masks[0], eps=1e-6)
print(f"probability {logits.sigmoid().mean():.3f}, as built {model(image)[1].sigmoid().mean():.3f}")


# %% [markdown]
# In scoring, batch norm multiplies and adds constants, and so does the convolution before it: they can be one. The sums are then rounded elsewhere, so this is done where numbers have 16 bits anyway; float32 keeps the arithmetic of the paper's code.

# %%
#| export
def fold(model: nn.Module) -> nn.Module:
    "A copy, for scoring alone, in which the convolutions of all blocks do their batch norm's work."
    model = copy.deepcopy(model).eval()
    blocks: list[Any] = [layer for layer in model.modules() if isinstance(layer, Block)]
    for block in blocks:
        block.conv1 = fuse_conv_bn_eval(block.conv1, block.bn1)
        block.conv2 = fuse_conv_bn_eval(block.conv2, block.bn2)
        block.bn1, block.bn2 = nn.Identity(), nn.Identity()
        shortcut: Any = block.shortcut
        if isinstance(shortcut, nn.Sequential):
            conv, norm = shortcut.children()
            block.shortcut = fuse_conv_bn_eval(conv, norm)  # type: ignore[type-var, arg-type]
    return model


# %%
image = torch.randn(2, 3, 32, 32)
with torch.no_grad():
    model.train()(image)  # statistics that are not those of the start
    test_close(fold(model)(image)[1], model.eval()(image)[1], eps=1e-4)


# %% [markdown]
# ## Weights
#
# Weights of this model lie about in several forms: a bare state dict, `{"state_dict": ...}`, `{"net": ..., "optimizer", "epoch", "iou"}` with a numpy scalar inside, with `module.` before every name when they come from several GPUs, in files called `.tar`, in the old format from before zip files. All of them load here; none may run code while loading, which is what a pickle can do. So only tensors, plain values and numpy scalars are let through.
#
# The new format is a zip file, and torch unpacks its records whatever they become: half a megabyte can become half a gigabyte before anything is compared. But torch itself never compresses, so a file that would grow is none of its own. And names in a damaged file may be of any length and sign, where an error is one line.

# %%
#| export
def swells(path: str | Path) -> bool:
    "Is it a zip file that holds more than its own size? torch does not compress, but unpacks."
    with open(path, "rb") as file:
        if file.read(4) != b"PK\3\4":
            return False
        with zipfile.ZipFile(file) as packed:
            return sum(info.file_size for info in packed.infolist()) > os.path.getsize(path)


def one_word(name: str) -> str:
    "A name from a file that may be damaged, fit for the line of an error."
    return name if name.isprintable() and len(name) < 100 else f"{name[:100]!a}.."


# %%
with tempfile.TemporaryDirectory() as tmp:
    path = Path(tmp) / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("bomb/data/0", bytes(10**6))
    assert swells(path)
one_word("conv.weight"), one_word("a\nb")

# %% [markdown]
# A run's folder stands for the weights it kept. And one file of weights comes with the library, under the name `pretrained`; its card, `pretrained.md` beside it, says what it was trained on and how good it is.

# %%
#| export
PRETRAINED = "pretrained"


def weights_file(
    weights: str | Path,  # a file, the folder of a run, or "pretrained"
) -> Path:
    "The file of weights that is meant; it need not exist."
    if str(weights) == PRETRAINED:
        return Path(str(files("mshnet") / f"{PRETRAINED}.safetensors"))
    path = Path(os.path.expanduser(weights))
    best = path / "best.pt"
    return best if os.path.isfile(best) else path


# %%
with tempfile.TemporaryDirectory() as tmp:
    (Path(tmp) / "best.pt").touch()
    test_eq(weights_file(tmp), Path(tmp) / "best.pt")
test_eq(weights_file("weights.tar"), Path("weights.tar"))
weights_file("pretrained").name


# %% [markdown]
# Reading a file:

# %%
#| export
def read_file(
    path: str | Path,  # a file written by torch.save
) -> Any:  # what it holds, tensors on the CPU
    """Read a torch file without letting it run code. Raises ValueError if it is none, or tries.

    Source of the danger: a pickle names functions to call. torch's `weights_only` refuses all but
    a list, to which numpy scalars are added because published files hold one (the best IoU).
    """
    try:
        content = load_any(path)
        written = content.pop("checksum", None) if isinstance(content, dict) else None
        form = content.get("format") if isinstance(content, dict) else None
        ours = type(form) is int and form > 1  # the first format had no checksum
        if (ours and not written) or (written and written != checksum(content)):
            raise ValueError("what was read is not what was written")
        return content
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file{reinstall(path)}") from None
    except PermissionError:
        raise ValueError(f"{path}: you may not read this file") from None
    except IsADirectoryError:
        raise ValueError(f"{path}: is a folder without best.pt; name a file of weights") from None
    except ModuleNotFoundError as error:
        raise ValueError(f"{path}: needs {error.name}; run: pip install {error.name}") from None
    except Exception as error:  # torch raises many kinds for bytes that make no sense
        if "GLOBAL" in str(error):  # the name of a function or class that is not on the list
            raise ValueError(f"{path}: refused, it would run code when loaded") from None
        onnx = "; `mshnet predict` takes ONNX files" if Path(path).suffix == ".onnx" else ""
        hint = onnx or reinstall(path)
        raise ValueError(f"{path}: not a torch file of weights, or a damaged one{hint}") from None


def reinstall(path: str | Path) -> str:
    "What to do where the weights that come with the library are missing or damaged."
    if Path(path) != weights_file(PRETRAINED):
        return ""
    return (
        "; it comes with mshnet: install it again (pip install --force-reinstall, in a clone "
        f"git checkout mshnet/{Path(path).name}), or name other weights"
    )


def load_any(path: str | Path) -> Any:
    "What a file holds, whichever of the two formats it has."
    if Path(path).suffix == ".safetensors":
        return read_safetensors(path)
    if swells(path):
        raise ValueError("a file that unpacks to more than itself")
    with torch.serialization.safe_globals(numpy_scalars()):
        return torch.load(path, map_location="cpu", weights_only=True)


# %% [markdown]
# Weights of a user that are missing are the user's to find. Those that come with the library are a matter of the installation:

# %%
assert "--force-reinstall" in reinstall(weights_file("pretrained"))
test_eq(reinstall("other.pt"), "")


# %% [markdown]
# A file in the safetensors format holds tensors and a few texts, and nothing that could run. What our own say of their weights is one of those texts.

# %%
#| export
def read_safetensors(path: str | Path) -> dict[str, Any]:
    "The weights in a safetensors file, under `model`, and what mshnet said of them."
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        weights = {name: file.get_tensor(name) for name in sorted(file.keys())}
        said = (file.metadata() or {}).get("mshnet", "{}")
    return {**json.loads(said), "model": weights}


# %% [markdown]
# What may be in a file besides tensors and plain values:

# %%
#| export
def numpy_scalars() -> list[Any]:
    "What a numpy scalar needs to load, under its old and its new name."
    value = torch.zeros(1, dtype=torch.float64).numpy()[0]
    make, dtype = value.__reduce__()[0], value.dtype.__reduce__()[0]
    names = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")
    return [*((make, name) for name in names), dtype, type(value.dtype)]


# %% [markdown]
# A bit that flipped on a disk makes a weight of 0.1 one of 3e37, and torch does not look. So a checkpoint of ours holds a checksum of its content, which counts wherever the file is read:

# %%
#| export
MOST_VALUES = 1_000_000  # in a checkpoint; nested lists of nested lists can hold 2^60


def checksum(
    content: Any,  # nested mappings and lists of tensors and plain values
) -> str:
    "SHA-256 of a content: of its values, whatever the file around them."
    digest, seen = hashlib.sha256(), itertools.count()

    def add(value: Any) -> None:
        if next(seen) > MOST_VALUES:
            raise ValueError("more values than any checkpoint has")
        if isinstance(value, Tensor):
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(value, Mapping):
            digest.update(f"{len(value)} pairs".encode())
            for name, part in value.items():
                digest.update(f"{name!r}: ".encode())
                add(part)
        elif isinstance(value, list | tuple):
            digest.update(f"{len(value)} of {type(value).__name__}".encode())
            for part in value:
                add(part)
        else:
            digest.update(f"{value!r}, ".encode())

    add(content)
    return digest.hexdigest()


# %%
bomb = []
for _ in range(40):
    bomb = [bomb, bomb]
with expect_fail(ValueError, contains="more values"):
    checksum(bomb)
test_eq(checksum({"a": [torch.ones(2), 1.5]}), checksum({"a": [torch.ones(2), 1.5]}))
assert checksum(torch.ones(2)) != checksum(torch.ones(2, dtype=torch.bfloat16))


# %% [markdown]
# What was read is searched for the weights:

# %%
#| export
def find_weights(
    content: Any,  # what a weights file holds
) -> dict[str, Tensor]:
    "The state dict in a file's content, whatever its wrapping; ValueError if there is none."
    for key in ("model", "state_dict", "net"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    named = isinstance(content, Mapping) and all(isinstance(name, str) for name in content)
    if not named or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise ValueError("holds no weights (a mapping of names to tensors)")
    return {one_word(name.removeprefix("module.")): value for name, value in content.items()}


# %% [markdown]
# These are compared with the model's. The first few differences say at once whether a file is of another model or of another version. Names and shapes may agree and a tensor still hold no numbers that torch can copy (there are sparse ones, and some that are shape alone). So all are copied before the first is put into the model, and a file fits or changes nothing.

# %%
#| export
def fit_weights(
    model: nn.Module,
    weights: Mapping[str, Tensor],
) -> None:
    "Put weights into a model; ValueError, and the model unchanged, unless names and shapes agree."
    own = model.state_dict()
    want = {k: tuple(v.shape) for k, v in own.items()}
    have = {k: tuple(v.shape) for k, v in weights.items() if not v.is_nested}
    wrong = [k for k in {**want, **have} if want.get(k) != have.get(k)]
    if wrong:
        lines = [f"{k} is {have.get(k, 'missing')}, not {want.get(k, 'known')}" for k in wrong[:3]]
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(f"weights of another model: {'; '.join(lines)}{more}")
    try:
        with torch.no_grad():
            ready = {k: torch.empty_like(v, device="cpu").copy_(weights[k]) for k, v in own.items()}
    except RuntimeError:  # tensors without numbers, sparse ones, quantized ones
        raise ValueError("weights that are not plain numbers") from None
    model.load_state_dict(ready)


def load_weights(
    model: nn.Module,
    path: str | Path,  # a file in any of the forms above
    content: Any = None,  # what `read_file` found there; None: it is read here
) -> Any:  # all that the file holds
    "Load weights from a file; ValueError with the reason if that cannot be."
    content = read_file(path) if content is None else content
    try:
        fit_weights(model, find_weights(content))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return content


# %% [markdown]
# A file as several GPUs leave it loads into a fresh model, and the prediction is the same to the last bit:

# %%
with tempfile.TemporaryDirectory() as tmp:
    path = Path(tmp) / "weights.tar"
    wrapped = {f"module.{k}": v for k, v in model.state_dict().items()}
    torch.save({"net": wrapped, "iou": torch.ones(1, dtype=torch.float64).numpy()[0]}, path)
    test_eq(read_file(path)["iou"], load_any(path)["iou"])
    if importlib.util.find_spec("safetensors"):
        from safetensors.torch import save_file

        save_file(model.state_dict(), Path(tmp) / "weights.safetensors")
        assert read_safetensors(Path(tmp) / "weights.safetensors")["model"].keys()
    other = MSHNet().eval()
    load_weights(other, path)
with torch.no_grad():
    test_eq(other(image)[1], model(image)[1])


# %% [markdown]
# A file that would run code, one that is no torch file, and weights of another model are refused:

# %%
class Evil:
    "Asks the loader to print; it could as well ask to delete."

    def __reduce__(self):
        return print, ("code ran",)


def refuse(content=None, raw=b""):
    "The line that refuses this content."
    with tempfile.TemporaryDirectory() as tmp:
        path = Path(tmp) / "weights.pt"
        if content is None:
            path.write_bytes(raw)
        else:
            torch.save(content, path)
        try:
            load_weights(MSHNet(), path)
        except ValueError as error:
            return str(error).split(": ", 1)[1]


lines = [
    refuse(Evil()),
    refuse(raw=b"no torch file"),
    refuse({"conv.weight": torch.ones(1)}),
    refuse({"lr": 3}),
]
assert "refused, it would run code" in lines[0] and "not a torch file" in lines[1]
assert "another model" in lines[2] and "holds no weights" in lines[3]
test_eq(list(find_weights({"net": {"module.a": image}})), ["a"])
with expect_fail(ValueError, contains="missing"):
    fit_weights(model, {})
with expect_fail(ValueError, contains="not plain numbers"):
    fit_weights(model, {k: v.to("meta") for k, v in model.state_dict().items()})
assert len(numpy_scalars()) == 4
lines
