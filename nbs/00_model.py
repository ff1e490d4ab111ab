# %% [markdown]
# # model
#
# > MSHNet: a U-Net of attentive residual blocks that predicts at four scales and fuses the four predictions.

# %%
#| default_exp model

# %%
#| hide
from fastcore.test import expect_fail, test_close, test_eq

# %%
#| export
import importlib
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
        return torch.sigmoid(_sum(self.fc2(F.relu(self.fc1(p))) for p in (mean, peak)))


def _sum(tensors: Any) -> Tensor:
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
test_close(_sum([x, x, x]), 3 * x, eps=1e-5)
assert all(w.min() > 0 and w.max() < 1 for w in weights)


# %% [markdown]
# ## The block
#
# Two 3x3 convolutions with batch norm, both attentions, and the shortcut around it all. Where the width changes, the shortcut is a 1x1 convolution.

# %%
#| export
def attend(
    y: Tensor,  # [B,C,H,W]
    shortcut: Tensor,  # [B,C,H,W]
    ca: ChannelAttention,
    sa: SpatialAttention,
) -> Tensor:  # [B,C,H,W]
    "Channel attention, spatial attention, shortcut and ReLU: the end of a block."
    y = ca(y) * y
    y = sa(y) * y
    return F.relu(y + shortcut)


class Block(nn.Module):
    "Residual block with channel attention, then spatial attention."

    attend = staticmethod(attend)  # `mshnet.cpu` has a faster one of the same value

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = (
            nn.Identity()
            if in_channels == out_channels
            else nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1), nn.BatchNorm2d(out_channels)
            )
        )
        self.ca = ChannelAttention(out_channels)
        self.sa = SpatialAttention()

    def forward(self, x: Tensor) -> Tensor:  # [B,in,H,W] -> [B,out,H,W]
        "Features of the same size."
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        return self.attend(y, self.shortcut(x), self.ca, self.sa)


def stage(
    in_channels: int,
    out_channels: int,
    blocks: int,  # how many, the first of which changes the width
) -> nn.Sequential:
    "Several blocks at one scale."
    widths = [in_channels] + [out_channels] * blocks
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
def upsample(x: Tensor, factor: int = 2) -> Tensor:  # [B,C,H,W] -> [B,C,factor*H,factor*W]
    "Bilinear enlargement with aligned corners."
    if factor == 1:
        return x
    if x.device.type == "xla":
        return _upsample_by_matrix(x, factor)
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=True)


# %% [markdown]
# XLA, the compiler of TPUs, knows no backward pass of torch's enlargement: outside a TPU it would fetch the gradient to the host in every step. So there the same thing is said as what it is, a linear map of rows and one of columns. Row `o` of the matrix holds the weights of the two pixels around place `o`. The matrix is built from two ranges inside the compiled program, so no constant has to be kept anywhere.

# %%
#| export
def _upsampling_matrix(
    size: int,  # pixels before
    factor: int,
    device: torch.device | str = "cpu",
) -> Tensor:  # [factor*size, size] float32, rows that sum to 1
    "Weights of each old pixel in each new one, corners aligned."
    step = (size - 1) / (factor * size - 1)
    place = torch.arange(factor * size, device=device, dtype=torch.float32)[:, None] * step
    away = place - torch.arange(size, device=device, dtype=torch.float32)
    return (1 - away.abs()).clamp(min=0)


def _upsample_by_matrix(x: Tensor, factor: int) -> Tensor:  # [B,C,H,W] -> [B,C,factor*H,factor*W]
    "Bilinear enlargement with aligned corners as two matrix products."
    rows, columns = (_upsampling_matrix(n, factor, x.device).to(x.dtype) for n in x.shape[-2:])
    return F.linear(F.linear(x, columns).mT, rows).mT


# %%
test_close(upsample(torch.tensor([[[[0.0, 1.0]]]]))[0, 0, 0], torch.tensor([0, 1 / 3, 2 / 3, 1]))
small = torch.randn(2, 3, 6, 10)
for factor in (2, 4, 8):
    test_close(_upsample_by_matrix(small, factor), upsample(small, factor), eps=2e-6)
_upsampling_matrix(2, 2)


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
# Each step up sees the features from below and, beside them, those of the same scale from the way down: context and detail.

# %%
#| export
def join(
    beside: Tensor,  # [B,C,2H,2W] from the way down
    below: Tensor,  # [B,D,H,W] from the step before
) -> Tensor:  # [B,C+D,2H,2W]
    "Features of one scale beside the upsampled ones of the scale below."
    return torch.cat([beside, upsample(below)], 1)


# %% [markdown]
# The U is a class of its own, so that it can be read apart from what is predicted from it.

# %%
#| export
class UNet(nn.Module):
    """The encoder and decoder of MSHNet.

    Height and width of the image must be multiples of 16 (four halvings); ValueError if not.
    """

    join = staticmethod(join)  # `mshnet.cpu` has a faster one of the same value

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
        d3 = self.decoder_3(self.join(e3, middle))
        d2 = self.decoder_2(self.join(e2, d3))
        d1 = self.decoder_1(self.join(e1, d2))
        d0 = self.decoder_0(self.join(e0, d1))
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
        fused = [upsample(mask, 2**i) for i, mask in enumerate(masks)]
        return masks, self.final(torch.cat(fused, 1))

    @classmethod
    def pretrained(cls) -> "MSHNet":
        "The network with the weights that come with the library, in evaluation mode, on the CPU."
        weights, model = importlib.import_module("mshnet.weights"), cls()
        weights.load_weights(model, weights.weights_file(weights.PRETRAINED))
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
def init_heads(
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
gentle = init_heads(MSHNet()).eval()
with torch.no_grad():
    masks, logits = gentle(torch.randn(1, 3, 32, 32))
test_close(logits, masks[0], eps=1e-6)
print(f"probability {logits.sigmoid().mean():.3f}, as built {model(image)[1].sigmoid().mean():.3f}")
