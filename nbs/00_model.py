# %% [markdown]
# # The network
#
# > MSHNet: a U-Net of residual blocks with attention that predicts at four scales and fuses the four predictions.
#
# An infrared small target covers a few dozen pixels of an image. It has no texture and no parts, and stands out only because it is brighter than *this* sky or *this* sea. A network must see two things at once: **detail**, to place the target, and **context**, to learn what is ordinary here.
#
# MSHNet (Liu et al., CVPR 2024, arXiv:2403.19366) does this with a U-Net, attention in every block and a prediction at each of four scales. We look at a scene and at the whole network, build its parts, and end with what the trained network sees in the scene. [MSHNet in one page](guides/one_page.ipynb) has the same network in 60 lines. The version here can also load the published weights, starts training well, and compiles with XLA.

# %%
#| hide
#| default_exp model
import matplotlib.pyplot as plt
from fastcore.test import test_close

# %%
#| export
import importlib

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# %% [markdown]
# ## The problem in one image
#
# Here are two targets and a warm cloud that is brighter than both. Brightness alone cannot tell them apart.

# %%
#| hide
gen = torch.Generator().manual_seed(5)
row, col = torch.meshgrid(torch.arange(128.0), torch.arange(128.0), indexing="ij")
frequency = torch.hypot(torch.fft.fftfreq(128)[:, None], torch.fft.fftfreq(128)).clamp(min=1 / 128)
noise = torch.fft.fft2(torch.randn(128, 128, generator=gen))
sky = torch.fft.ifft2(noise / frequency**1.7).real  # large structures are stronger
scene = 0.35 + 0.08 * sky / sky.std() + 0.015 * torch.randn(128, 128, generator=gen)
spots = {
    "target": (30, 36, 1.5, 0.35),
    "dim target": (78, 100, 1.5, 0.25),
    "cloud": (96, 40, 9, 0.45),
}
for y, x, radius, warmth in spots.values():
    scene += warmth * torch.exp(-((row - y) ** 2 + (col - x) ** 2) / (2 * radius**2))


def show_scene(axes):
    "The scene, with a label beside each spot."
    axes.imshow(scene, cmap="gray")
    axes.set_title("Scene, 128x128 pixels")
    for name, (y, x, radius, _) in spots.items():
        axes.add_patch(plt.Circle((x, y), radius + 4, fill=False, color="orange"))
        axes.annotate(name, (x, y - radius - 6), color="orange", weight="bold", ha="center")


# %%
show_scene(plt.figure(figsize=(4, 4), layout="constrained").subplots())


# %% [markdown]
# ## The whole network
#
# The sizes are height x width x channels for an image of 256x256. On the way down, which gives context, max pooling halves the image four times, and the number of channels grows. On the way up, which restores detail, each step joins the upsampled features from below with those of the same size from the way down. Four 1x1 convolutions, the *heads*, predict one mask each, and a 3x3 convolution fuses them.
#
# ```
# image 256x256x3
#   | 1x1
# encoder 0 256x256x16 ------ the same features -----> decoder 0 256x256x16 - head -> mask 0 -.
#    encoder 1 128x128x32 -------------------------> decoder 1 128x128x32 --- head -> mask 1 -|
#       encoder 2 64x64x64 ----------------------> decoder 2 64x64x64 ------- head -> mask 2 -+-> fused
#          encoder 3 32x32x128 ---------------> decoder 3 32x32x128 --------- head -> mask 3 -'
#                        middle 16x16x256
# ```
#
# ## Attention
#
# **Channel attention** weighs the features of an image. It pools each channel over the image, by mean and by maximum. Both describe the same channels, so both pass through the same small bottleneck. The sigmoid of their sum is the weight of the channel.

# %%
#| export
class ChannelAttention(nn.Module):
    "Weight of each channel, 0..1, from its mean and maximum over the image (CBAM, 2018)."

    def __init__(self, channels: int, reduction: int = 16) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, channels // reduction, 1, bias=False)
        self.fc2 = nn.Conv2d(channels // reduction, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [B,C,H,W] -> [B,C,1,1]
        "Weights to multiply `x` with."
        pooled = x.mean((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
        mean, peak = (self.fc2(F.relu(self.fc1(p))) for p in pooled)
        return torch.sigmoid(mean + peak)


# %% [markdown]
# **Spatial attention** weighs the places. The mean and the maximum over the channels are two maps, and a 7x7 convolution of both gives the weight of each pixel. Its window is larger than a target, so it can compare a pixel with its surroundings.

# %%
#| export
class SpatialAttention(nn.Module):
    "Weight of each pixel, 0..1, from the mean and maximum over the channels (CBAM)."

    def __init__(self, kernel_size: int = 7) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 1, kernel_size, padding=kernel_size // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [B,C,H,W] -> [B,1,H,W]
        "Weights to multiply `x` with."
        maps = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return torch.sigmoid(self.conv1(maps))


# %% [markdown]
# Channel attention sees the whole image, so the same target gets different weights in a different crop.
#
# ## The block
#
# A block is two 3x3 convolutions with batch norm, both attentions, and a shortcut around them. Where the number of channels changes, the shortcut is a 1x1 convolution.

# %%
#| export
def attend(y: Tensor, shortcut: Tensor, ca: ChannelAttention, sa: SpatialAttention) -> Tensor:
    "Channel attention, spatial attention, shortcut and ReLU: the end of a block, all [B,C,H,W]."
    y = ca(y) * y
    return F.relu(sa(y) * y + shortcut)


class Block(nn.Module):
    "Residual block with channel attention, then spatial attention."

    attend = staticmethod(attend)  # `mshnet.cpu` has a faster one with the same result

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels:
            conv = nn.Conv2d(in_channels, out_channels, 1)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(out_channels))
        self.ca = ChannelAttention(out_channels)
        self.sa = SpatialAttention()

    def forward(self, x: Tensor) -> Tensor:  # [B,in,H,W] -> [B,out,H,W]
        "Features of the same size."
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        return self.attend(y, self.shortcut(x), self.ca, self.sa)


def _stage(in_channels: int, out_channels: int, blocks: int) -> nn.Sequential:
    "Several blocks at one scale; the first one changes the width."
    more = (Block(out_channels, out_channels) for _ in range(blocks - 1))
    return nn.Sequential(Block(in_channels, out_channels), *more)


# %% [markdown]
# ## The U
#
# Between two scales of the U the features are upsampled and joined. With `align_corners=True` the first and last pixel of a row keep their places; the published weights were trained with it. The layers have the names and the order that these weights need to load. The image is halved four times, so its sides must be multiples of 16.

# %%
#| export
def upsample(x: Tensor, factor: int = 2) -> Tensor:  # [B,C,H,W] -> [B,C,factor*H,factor*W]
    "Bilinear upsampling with aligned corners."
    if x.device.type == "xla":  # see the end of the page
        return _upsample_by_matrix(x, factor)
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=True)


def join(beside: Tensor, below: Tensor) -> Tensor:  # [B,C,2H,2W], [B,D,H,W] -> [B,C+D,2H,2W]
    "Features of one scale beside the upsampled ones of the scale below."
    return torch.cat([beside, upsample(below)], 1)


class UNet(nn.Module):
    "The encoder and decoder of MSHNet; ValueError for a side that is no multiple of 16."

    join = staticmethod(join)  # `mshnet.cpu` has a faster one with the same result

    def __init__(self, in_channels: int = 3) -> None:
        super().__init__()
        self.conv_init = nn.Conv2d(in_channels, 16, 1)
        self.encoder_0 = _stage(16, 16, 1)
        self.encoder_1 = _stage(16, 32, 2)
        self.encoder_2 = _stage(32, 64, 2)
        self.encoder_3 = _stage(64, 128, 2)
        self.middle_layer = _stage(128, 256, 2)
        self.decoder_3 = _stage(256 + 128, 128, 2)
        self.decoder_2 = _stage(128 + 64, 64, 2)
        self.decoder_1 = _stage(64 + 32, 32, 2)
        self.decoder_0 = _stage(32 + 16, 16, 1)

    def features(self, image: Tensor) -> list[Tensor]:  # decoder features at strides 1, 2, 4, 8
        "Features of the decoder, from the finest to the coarsest."
        height, width = image.shape[-2:]
        if height % 16 or width % 16:
            raise ValueError(f"image of {height}x{width}; both sides must be multiples of 16")
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
# ## Four heads and their fusion
#
# MSHNet puts a 1x1 head on each scale of the decoder. It upsamples the logits of the four heads to full size, and one 3x3 convolution fuses them.
#
# Why four, for a target this small? Only the finest head can place it. But its gradient reaches the deep layers through all blocks between. The head at stride 8 is next to them. So the coarse heads train the deep layers to see that a target is *somewhere here*.
#
# The paper trains in two phases. In the **warm-up** (`deep=False`) it trains and scores the full-size head only. Then (`deep=True`) it trains all four heads and the fused prediction.

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
        deep: bool = True,  # deep supervision: all heads and their fusion; else the full-size head
    ) -> tuple[list[Tensor], Tensor]:  # heads' logits at strides 1,2,4,8, or []; logits [B,1,H,W]
        "Logits of each scale and of the prediction; `deep=False` gives ([], full-size head)."
        features = self.features(image)
        full = self.output_0(features[0])
        if not deep:
            return [], full
        heads = (self.output_1, self.output_2, self.output_3)
        masks = [full, *(head(f) for head, f in zip(heads, features[1:], strict=True))]
        fused = [full, *(upsample(masks[i], 2**i) for i in (1, 2, 3))]
        return masks, self.final(torch.cat(fused, 1))

    @classmethod
    def pretrained(cls) -> "MSHNet":
        "Pretrained, in evaluation mode, on the CPU; `mshnet.load` also keeps its two sizes."
        weights, model = importlib.import_module("mshnet.weights"), cls()
        weights.load_weights(model, weights.weights_file(weights.PRETRAINED))
        return model.eval()


# %%
torch.manual_seed(0)
model = MSHNet().eval()
image = torch.randn(1, 3, 96, 64)
with torch.no_grad():
    masks, logits = model(image)
    test_close(model(image, deep=False)[1], masks[0])
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
print("heads:", *(tuple(m.shape) for m in masks))
print("fused:", tuple(logits.shape))

# %% [markdown]
# ## What the trained network sees
#
# The library comes with weights. We run them on the scene above. Hooks record the attention of one block of the encoder, at a quarter of the image size. The upper row of the figure shows the scene and both kinds of weights. The block turns most channels either on or off. Pixels of both targets get a large weight, those of the brighter cloud a small one. The border gets some weight, too, because the convolutions see padding there. The lower row shows the surroundings of the dim target: each head marks it on its own grid, and the fusion places it at full size.

# %%
trained, weights = MSHNet.pretrained(), {}
block = trained.encoder_2[-1]
block.ca.register_forward_hook(lambda *args: weights.update(channel=args[2][0, :, 0, 0]))
block.sa.register_forward_hook(lambda *args: weights.update(place=args[2][0, 0]))
mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[:, :, None, None]
normalised = ((scene - mean) / std)[None]
with torch.no_grad():
    masks, logits = trained(normalised)

figure = plt.figure(figsize=(11, 6.6), layout="constrained")
top, bottom = figure.subfigures(2, 1, height_ratios=[1.45, 1])
left, middle, right = top.subplots(1, 3)
show_scene(left)
steps = plt.get_cmap("magma", 5)  # few enough to be read off the colour bar
top.colorbar(middle.imshow(weights["place"], cmap=steps, vmin=0, vmax=1), ax=middle, shrink=0.8)
middle.set_title("Which places matter:\nspatial attention, 32x32")
right.bar(range(64), weights["channel"].sort(descending=True).values, width=1, edgecolor="white")
right.set(xlabel="channel, largest weight first", ylabel="weight", box_aspect=0.8)
right.set_title("Which features matter:\nchannel attention")
names = ["Head at stride 1", "Head at stride 2", "Head at stride 4", "Head at stride 8", "Fused"]
for axes, name, found in zip(bottom.subplots(1, 5), names, [*masks, logits], strict=True):
    axes.imshow(found[0, 0].sigmoid(), cmap="gray", vmin=0, vmax=1, extent=(0, 128, 128, 0))
    axes.set(xlim=(80, 120), ylim=(98, 58), title=f"{name}\n{found.shape[2]}x{found.shape[3]}")
for axes in figure.axes[:2] + bottom.axes:
    axes.set(xticks=[], yticks=[])


# %% [markdown]
# Does the network need its attention? We replace all attention weights of one kind, by ones or by their mean, and compare the logits at the three spots. A logit above 0 is a target:

# %%
def peaks(kind=(), change=torch.ones_like):
    "The logit of the prediction at each spot, with the weights of one kind of attention changed."
    network = MSHNet.pretrained()
    for layer in network.modules():
        if isinstance(layer, kind):
            layer.register_forward_hook(lambda *call: change(call[2]))
    with torch.no_grad():
        logits = network(normalised)[1]
    return {name: round(logits[0, 0, y, x].item(), 1) for name, (y, x, _, _) in spots.items()}


print("trained network       ", peaks())
for kind in (SpatialAttention, ChannelAttention):
    print(f"{kind.__name__}: ones", peaks(kind))
    print(f"{kind.__name__}: mean", peaks(kind, lambda w: w.mean().expand_as(w)))


# %% [markdown]
# The surprise: the result depends on the substitute. With ones for the channel weights even the cloud becomes a target; with the mean of these weights all three spots stay what they are. The spatial weights can be replaced by ones: the targets lose some of their logit and stay targets. With their mean the dim target is lost. One ablation proves neither that a part matters nor that it does not.
#
# ## The machinery: a good start
#
# An untrained head gives every pixel a probability near 1/2, although hardly any pixel belongs to a target. Subtracting 4 from the biases of the heads starts them near 2% (focal loss, Lin et al. 2017, does the same). The fusing convolution can start as a copy of the full-size head and learn to mix in the coarse heads. With a random start of the fusion, chance decides whether a head that sees only background raises or lowers the prediction.

# %%
#| export
def init_heads(
    model: MSHNet,
    head_bias: float = -4.0,  # added to the bias of each head
    fusion_start: str = "full_size",  # or "random": the fusion stays as it is
) -> MSHNet:  # the same model, changed
    "Start from a nearly empty prediction, and from a fusion that copies the full-size head."
    with torch.no_grad():
        for head in (model.output_0, model.output_1, model.output_2, model.output_3):
            head.bias.add_(head_bias)  # type: ignore[union-attr]
        if fusion_start == "full_size":
            nn.init.dirac_(model.final.weight)  # 1 in the middle of the first head's nine weights
            nn.init.zeros_(model.final.bias)  # type: ignore[arg-type]
    return model


# %%
with torch.no_grad():
    plain, (masks, logits) = model(image)[1], init_heads(MSHNet()).eval()(image)
test_close(logits, masks[0], eps=1e-6)
print(f"mean probability {logits.sigmoid().mean():.3f}, without {plain.sigmoid().mean():.3f}")


# %% [markdown]
# ### Upsampling on XLA
#
# On most XLA devices the host computes the gradient of torch's bilinear upsampling in every step. (By its source, torch_xla has a custom call for it on a TPU; we had no TPU to try it.) Two matrix products work on all of them: upsampling is a linear map of the rows, then one of the columns. Row `o` has the weights of the two old pixels around the new pixel `o`.

# %%
#| export
def _upsampling_matrix(size: int, factor: int, device: torch.device | str = "cpu") -> Tensor:
    "[factor*size, size] float32: weights of each old pixel in each new one, corners aligned."
    step = (size - 1) / (factor * size - 1)
    place = torch.arange(factor * size, device=device, dtype=torch.float32)[:, None] * step
    away = place - torch.arange(size, device=device, dtype=torch.float32)
    return (1 - away.abs()).clamp(min=0)


def _upsample_by_matrix(x: Tensor, factor: int) -> Tensor:  # [B,C,H,W] -> [B,C,factor*H,factor*W]
    "Bilinear upsampling with aligned corners as two matrix products."
    rows, columns = (_upsampling_matrix(n, factor, x.device).to(x.dtype) for n in x.shape[-2:])
    return F.linear(F.linear(x, columns).mT, rows).mT


# %%
small = torch.randn(2, 3, 6, 10)
for factor in (2, 4, 8):
    test_close(_upsample_by_matrix(small, factor), upsample(small, factor), eps=2e-6)
_upsampling_matrix(2, 2)

# %% [markdown]
# ## Questions
#
# 1. Suppose that the head at stride 8 alone predicts, and that it marks one cell for a target of 5x5 pixels. What is the best IoU? Is the target found, that is, are the centres less than 3 pixels apart?
#    <details><summary>Answer</summary>The cell covers 8x8 = 64 pixels, so IoU is at most 25/64 = 0.39. If the target lies inside the cell, the centres differ by 1.5 pixels at most in each direction, and it is found. If the target lies across a corner of four cells, they differ by at least 2.5 pixels in each direction, and it is missed.</details>
# 2. Shrink the cloud of the scene to the size of a target. What changes in the figure?
#    <details><summary>Answer</summary>The network takes it for a target. With a radius of 9, 5, 3 and 1.5 pixels the logit in its middle is -14.1, -11.2, +11.7 and +15.3, and its spatial weight rises from 0.18 to 0.99. Size, not brightness, tells the two apart.</details>
