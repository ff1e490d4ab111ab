# %% [markdown]
# # The diffusion transformer
#
# > A transformer that cleans a noisy image, as published and at any size, alone or beside a linear first guess.
#
# A diffusion model needs one network: given a noisy image, the amount of noise and the measured voltages, it returns the image without noise. The network of CDEIT (Shi, Kang and Liatsis, IEEE TIM 2025, arXiv:2412.16979) is a transformer in the shape of a U-Net, with 109,719,108 parameters. This page implements it for every size, with the names of the published weights. All networks here have one interface: `network(noisy, level, condition)`. The condition is the map of the voltages (16x16), or a stack of maps.
#
# ## The whole network
#
# Here are the grids of tokens of the published network; each token has 512 channels. Patches of the image become tokens. Two blocks have attention within windows. Then the grid is halved four times (four tokens merge into one), with two blocks at each size and one more on the smallest grid, all with attention over all tokens. On the way up the grid is doubled again and joined with the grid of the same size from the way down. After two more blocks with windows, each token becomes a patch of the image.
#
# ```
# image and map, 128x128
#   | patches of 2x2
# 64x64, 2 window blocks ------- the same tokens -------> 64x64, 2 blocks, 2 window blocks -> image
#    32x32, 2 blocks ---------------------------------> 32x32, 2 blocks
#       16x16, 2 blocks ----------------------------> 16x16, 2 blocks
#          8x8, 2 blocks -------------------------> 8x8, 2 blocks
#                            4x4, 3 blocks
# ```

# %%
#| export
#| default_exp eit.networks
import math
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


# %% [markdown]
# ## Codes of position and time
#
# A transformer sees a set of tokens, without their positions. So each token gets a code of its column and of its row: sines and cosines of falling frequency. The code is fixed. The time of the diffusion (`level`, 0 to 999; [the later, the more noise](05_diffusion.ipynb)) is coded in the same manner, cosines first. In the figure we multiply the code of one token with those of all others: it resembles most those of its neighbours, and those of its row and its column.

# %%
#| export
def _waves(places: Tensor, count: int) -> Tensor:
    "Angles [len(places), count] of frequencies that fall from 1 towards 1/10,000."
    frequency = torch.exp(-math.log(10_000) * torch.arange(count, device=places.device) / count)
    return places.float()[:, None] * frequency


def positions(side: int, width: int) -> Tensor:  # [1, side * side, width]
    "Codes of the places of a square grid, row by row: half of the channels for columns, then rows."
    angles = _waves(torch.arange(side), width // 4).double()
    code = torch.cat([angles.sin(), angles.cos()], 1).float()  # [side, width / 2]
    rows, columns = code[:, None].expand(-1, side, -1), code[None].expand(side, -1, -1)
    return torch.cat([columns, rows], 2).reshape(1, side * side, width)


# %%
import matplotlib.pyplot as plt

codes = positions(8, 64)[0]  # of 64 tokens, row by row
plt.figure(figsize=(3.4, 2.8), layout="constrained")
plt.imshow((codes @ codes[27]).view(8, 8))
plt.gca().set(title="product with the code in row 3, column 3", xlabel="column", ylabel="row");


# %% [markdown]
# ## A block
#
# A block is attention, then a small network for each token. The time of the diffusion acts only through the normalisation: it shifts, scales and gates both parts. The gates are outputs of a linear layer. With random weights of this layer a fresh block changes its input (by 0.54 and 0.80 below). `_init_weights` sets the weights of this layer to zero, so a block of a fresh network returns its input unchanged (adaLN-Zero, Peebles and Xie, arXiv:2212.09748).

# %%
#| export
class Norm(nn.Module):
    "RMSNorm: every token scaled to the length sqrt(width), times a weight for each channel."

    def __init__(self, width: int) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.ones(1, 1, width))

    def forward(self, x: Tensor) -> Tensor:  # [B,N,width]
        return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * self.g


class Attention(nn.Module):
    "Every token looks at every other one, with several heads."

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        "[B,N,width]; the bias [heads,N,N] is added to the scores."
        b, n, width = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        bias = bias if bias is None else bias.to(q.dtype)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.proj(mixed.transpose(1, 2).reshape(b, n, width))


class _Biased(Attention):
    "Attention with a learnt bias for the distance of two tokens of a square window."

    relative_position_index: Tensor

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__(width, heads)
        table = torch.randn((2 * side - 1) ** 2, heads) * 0.02
        self.relative_position_bias_table = nn.Parameter(table)
        place = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"))
        apart = place.flatten(1)[:, :, None] - place.flatten(1)[:, None] + side - 1
        self.register_buffer("relative_position_index", apart[0] * (2 * side - 1) + apart[1])

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:  # [B,N,width]
        n = x.shape[1]
        scores = self.relative_position_bias_table[self.relative_position_index.flatten()]
        return super().forward(x, scores.view(n, n, -1).permute(2, 0, 1))


class WindowAttention(nn.Module):
    "Attention within each of 4x4 equal squares of the grid, which are not shifted."

    def __init__(self, width: int, heads: int, grid: int) -> None:
        super().__init__()
        self.side = grid // 4
        self.attn = _Biased(width, heads, self.side)

    def forward(self, x: Tensor) -> Tensor:  # [B, grid * grid, width]
        b, _, width = x.shape
        windows = x.view(b, 4, self.side, 4, self.side, width).transpose(2, 3)
        mixed = self.attn(windows.reshape(b * 16, self.side**2, width))
        return mixed.view(b, 4, 4, self.side, self.side, width).transpose(2, 3).reshape(x.shape)


class DiTBlock(nn.Module):
    "Attention and a network for each token, both modulated by the time."

    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = Norm(width), attention, Norm(width)
        fc1, fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(OrderedDict(fc1=fc1, act=nn.SiLU(), fc2=fc2))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, code: Tensor) -> Tensor:  # [B,N,width], [B,width]
        shift, scale, gate, shift2, scale2, gate2 = self.adaLN_modulation(code)[:, None].chunk(6, 2)
        x = x + gate * self.attn(self.norm1(x) * (1 + scale) + shift)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


def _init_weights(layer: nn.Module) -> None:
    "The published starting weights, from the random numbers of torch; modulation starts at zero."
    if isinstance(layer, nn.Linear):
        nn.init.xavier_uniform_(layer.weight)
    if isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None:
        nn.init.zeros_(layer.bias)
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight)
    for name, part in layer.named_children():
        if name in ("adaLN_modulation", "linear"):  # of a block, of the last layer
            for weight in part.parameters():
                nn.init.zeros_(weight)


# %%
torch.manual_seed(0)
x, code = Norm(32)(torch.randn(2, 64, 32)), torch.randn(2, 32)
for attention in (Attention(32, 4), WindowAttention(32, 4, 8)):
    block = DiTBlock(32, attention)
    random = (block(x, code) - x).abs().max()
    zero = (block.apply(_init_weights)(x, code) - x).abs().max()
    print(f"largest change by a block: random gates {random:.2f}, gates from zero {zero:.2f}")

# %% [markdown]
# ## A first guess
#
# A linear reconstruction is one matrix, and it explains most of a tank. A small network need not learn it. `Guided` multiplies the voltages by fixed matrices and gives the results to a network as further maps. It adds the output of the network to the first result. Before training it *is* the linear reconstruction, and training only adds what a matrix cannot do. The matrices are weights that are not trained. So a checkpoint contains them, and a prediction needs neither a simulator nor the training data.
#
# The figure splits the output of the packaged model into its two terms, for one tank and an input of pure noise (time 999). The first guess has both large inclusions, but blurred, the red one too weak, and the blue one too strong (the colours end at -1). The network corrects the strength of both. Of the small inclusion only a trace is left.

# %%
from mshnet.eit.eit_config import EitConfig
from mshnet.task import trained_task

task, model = trained_task("", EitConfig())  # the weights in the package
batch = task.batch(task.splits(["test"])["test"], [0], None)
guess = (batch.condition.flatten(1) @ model.guesses[0].T).view_as(batch.image)
found = model.eval()(batch.noise[:, :1], torch.tensor([999]), batch.condition).detach()
strip = torch.cat([batch.image, guess, found - guess, found], 3)[0, 0]
plt.figure(figsize=(8, 2.3), layout="constrained").gca().axis("off")
plt.imshow(strip, cmap="RdBu_r", vmin=-1, vmax=1)
plt.title("ground truth; first guess; what the network adds; their sum", size=9);


# %%
#| export
class Guided(nn.Module):
    "A network beside linear reconstructions; called like the network alone, with one 16x16 map."

    def __init__(
        self,
        network: nn.Module,  # of 1 + N maps; its last layer starts at zero
        guesses: Tensor,  # [N, S * S, 256] matrices from the map to an image; [0] is added to
    ) -> None:
        super().__init__()
        self.guesses = nn.Parameter(guesses.clone(), requires_grad=False)
        self.network = network

    def forward(self, noisy: Tensor, level: Tensor, condition: Tensor) -> Tensor:
        "[B,1,S,S], [B] time 0..999, [B,1,16,16] -> [B,1,S,S] without noise."
        size = noisy.shape[-1]
        guess = F.linear(condition.flatten(1), self.guesses.flatten(0, 1))
        guess = guess.view(len(noisy), -1, size, size)
        maps = torch.cat([_upsample(condition, size // condition.shape[-1]), guess], 1)
        return guess[:, :1] + self.network(noisy, level, maps)


# %% [markdown]
# ## The machinery: from grid to grid
#
# Three layers join the blocks: four tokens into one, one token into four, and tokens into patches of the image. `DiT` puts all parts together, in the order of the diagram above. The largest grids need the most memory. The attention scores of 64x64 tokens with 16 heads take 1.07 GB for each sample and block, if they are stored. `scaled_dot_product_attention` does not store them on a CPU or a GPU; on a TPU they are stored.

# %%
#| export
class _Downsample(nn.Module):
    "Four neighbouring tokens into one."

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reduction = nn.Linear(4 * width, width, bias=False)
        self.norm = nn.LayerNorm(4 * width)

    def forward(self, x: Tensor) -> Tensor:  # [B, side * side, width] -> a quarter of the tokens
        b, n, width = x.shape
        half = math.isqrt(n) // 2
        cut = x.view(b, half, 2, half, 2, width).permute(0, 1, 3, 4, 2, 5)
        return self.reduction(self.norm(cut.reshape(b, half * half, 4 * width)))


def _upsample(x: Tensor, times: int) -> Tensor:
    "Maps [B,C,H,W] with each value `times` times in both directions."
    return x.repeat_interleave(times, 2).repeat_interleave(times, 3)


class _Upsample(nn.Sequential):
    "Tokens of a grid of twice the side: the nearest one, through a 1x1 convolution."

    def __init__(self, width: int) -> None:
        super().__init__(OrderedDict({"2": nn.Conv2d(width, width, 1)}))  # the published name

    def forward(self, x: Tensor) -> Tensor:  # [B, side * side, width] -> four times the tokens
        side = math.isqrt(x.shape[1])
        grid = _upsample(x.transpose(1, 2).unflatten(2, (side, side)), 2)
        return super().forward(grid).flatten(2).transpose(1, 2)


class _Final(nn.Module):
    "Tokens to patches of the image."

    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.norm_final = Norm(width)
        self.linear = nn.Linear(width, patch * patch)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, code: Tensor) -> Tensor:  # [B,N,width] -> [B,N,patch * patch]
        shift, scale = self.adaLN_modulation(code)[:, None].chunk(2, 2)
        return self.linear(self.norm_final(x) * (1 + scale) + shift)


class DiT(nn.Module):
    """The denoiser of CDEIT, at any size: `dit(noisy, level, condition) -> image`.

    `size` is the side of the image; it is cut into patches, and `size / patch` must be a
    multiple of 4 and of `2**scales`. The published network is `DiT()`. With `maps` the condition
    has that many; each is upsampled to the size of the image. ValueError for a size that
    the grid does not fit. Source: arXiv:2412.16979 and shuaikaishi/CDEIT 8f485b4.
    """

    def __init__(
        self,
        size: int = 128,
        patch: int = 2,
        width: int = 512,
        heads: int = 16,
        scales: int = 4,
        maps: int = 1,
    ) -> None:
        super().__init__()
        grid = size // patch
        if size % patch or grid % 4 or grid % 2**scales or width % heads or width % 4:
            given = f"{size=}, {patch=}, {scales=}, {width=}, {heads=}"
            must = f"a multiple of 4 and of {2**scales}, width of heads and of 4"
            raise ValueError(f"DiT: {given}: size / patch must be {must}")
        self.size, self.patch, self.grid = size, patch, grid

        def two_blocks() -> list[DiTBlock]:
            return [DiTBlock(width, Attention(width, heads)) for _ in range(2)]

        self.pos_embed = nn.Parameter(positions(grid, width), requires_grad=False)
        patches = nn.Conv2d(1 + maps, width, patch, patch)
        self.x_embedder = nn.Sequential(OrderedDict(proj=patches))
        mlp = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.t_embedder = nn.Sequential(OrderedDict(mlp=mlp))
        self.blocks: Any = nn.Module()
        for name in ("swinIn1", "swinIn2", "swinOut1", "swinOut2"):
            self.blocks.add_module(name, DiTBlock(width, WindowAttention(width, heads, grid)))
        downs = [nn.ModuleList([_Downsample(width), *two_blocks()]) for _ in range(scales)]
        joins = [nn.Linear(2 * width, width) for _ in range(scales)]
        ups = [nn.ModuleList([_Upsample(width), join, *two_blocks()]) for join in joins]
        self.blocks.downs, self.blocks.ups = nn.ModuleList(downs), nn.ModuleList(ups)
        self.blocks.mid = DiTBlock(width, Attention(width, heads))
        self.final_layer = _Final(width, patch)
        self.apply(_init_weights)

    def forward(self, noisy: Tensor, level: Tensor, condition: Tensor) -> Tensor:
        "[B,1,S,S], [B] time 0..999, [B,maps,s,s] where s divides S -> [B,1,S,S] without noise."
        parts, kept = self.blocks, []
        condition = _upsample(condition, self.size // condition.shape[-1])
        x = self.x_embedder(torch.cat([noisy, condition], 1)).flatten(2).transpose(1, 2)
        angles = _waves(level, 128)  # of the time of the diffusion, which is the amount of noise
        x, code = x + self.pos_embed, self.t_embedder(torch.cat([angles.cos(), angles.sin()], 1))
        x = parts.swinIn2(parts.swinIn1(x, code), code)
        for merge, one, two in parts.downs:
            kept.append(x)
            x = two(one(merge(x), code), code)
        x = parts.mid(x, code)
        for double, join, one, two in parts.ups:
            x = two(one(join(torch.cat([double(x), kept.pop()], 2)), code), code)
        x = parts.swinOut2(parts.swinOut1(x, code), code)
        b, side, p = len(x), self.grid, self.patch
        patches = self.final_layer(x, code).view(b, side, side, p, p).transpose(2, 3)
        return patches.reshape(b, 1, self.size, self.size)


# %% [markdown]
# The published size has the published number of parameters; the fixed codes of positions are not trained. (On the meta device it needs no memory, otherwise half a gigabyte.) A fresh network predicts an image of zeros, because its last layer starts at zero.

# %%
with torch.device("meta"):
    published = DiT()
print(f"{sum(w.numel() for w in published.parameters()):,} parameters")
small = DiT(size=32, patch=4, width=32, heads=4, scales=2)
image = small(torch.randn(2, 1, 32, 32), torch.tensor([7, 812]), torch.randn(2, 1, 16, 16))
print(f"largest value of a fresh network's image: {image.abs().max():.1f}")

# %% [markdown]
# ## Questions
#
# 1. Patches of 4x4 pixels instead of 2x2: how much smaller are the attention scores of the largest grid?
#    <details><summary>Answer</summary>There are a quarter of the tokens, 1,024 instead of 4,096, and a score for each pair of them. So a sixteenth: 67 MB instead of 1.07 GB for each sample and block.</details>
# 2. A fresh network returns zeros for every input. Which weights have a gradient in its first step of training?
#    <details><summary>Answer</summary>Only those of the last linear layer. Its zeros let no gradient through to the others. In the second step the modulations have one, too, and all layers outside of the blocks except <code>t_embedder</code>: the code of the time acts only through the modulations, which were zero. In the third step all weights have one.</details>
