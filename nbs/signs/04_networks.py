# %% [markdown]
# # Networks that read signs
#
# > TFNet as published, a light baseline, and a small network for hand tracks, all with the same interface.
#
# Which sign is this? One frame shows the hands. A sign is a movement of about half a second. The probability of a gloss depends on the whole sentence. So the networks of this page have three parts. The first reads each frame (with its neighbours), two convolutions read the outputs for 16 frames, and a recurrent network reads the sentence. A last layer gives each gloss a logit. These are the shapes of the published sizes:
#
# ```
#    a video of T frames         B x T x 3 x 224 x 224
# -> ResNet of each frame        B x 512 x T
# -> two convolutions, poolings  B x 1024 x T/4
# -> BiLSTM                      B x T/4 x 1024
# -> last layer                  B x T/4 x 3516 logits
# ```
#
# A network gets a clip and the number of its frames, and returns the logits of each gloss for every fourth frame: `network(clip, frames) -> {"final": logits, ...}`. All other entries are outputs that only training needs; `X_conv` is the output of the convolutions before the BiLSTM of `X`. TFNet (arXiv:2409.11960) is written with the names of the published weights.

# %%
#| export
#| default_exp signs.networks
import math
import unicodedata
from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mshnet.signs.ctc import Bigram
from mshnet.signs.glosses import Vocabulary


# %% [markdown]
# ## A track
#
# Where the positions of the hands are known, no image is needed. `Tracks` gets numbers for each frame (positions of both hands, velocities ...) and mixes five neighbouring frames. It is small enough to train on real sentences on a CPU. It pads a clip with copies of its first and last frame, as batches do (see below), so padding does not change its predictions. (In training, batch norm counts the padding, too.)

# %%
#| export
class Tracks(nn.Module):
    "Features of each frame from its numbers: [B,T,N] -> [B,width,T]."

    def __init__(self, numbers: int, width: int = 96, dropout: float = 0.0) -> None:
        super().__init__()
        self.out, conv = width, nn.Conv1d(numbers, width, 5)
        self.layers = nn.Sequential(conv, nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout))

    def forward(self, tracks: Tensor) -> Tensor:  # [B,T,N] -> [B,width,T]
        return self.layers(F.pad(tracks.float().transpose(1, 2), (2, 2), mode="replicate"))


# %% [markdown]
# ## The sentence
#
# Two convolutions look at 16 frames. Each covers five steps, and a pooling after it halves the number of steps. Clips are padded for them: the first frame is repeated six times on the left, and the last frame on the right. The convolutions remove this padding, so a clip of n frames has n / 4 steps, rounded up. A BiLSTM of two layers looks at everything before and after. PyTorch packs sequences of unequal length for it, which a TPU cannot do. Instead, each layer runs twice: over the sequence, and over the sequence reversed within its own length. The result is the same, and padding has no influence on it.

# %%
#| export
def out_lengths(frames: Tensor) -> Tensor:
    "Steps that are left of padded clips, after two convolutions and two poolings."
    half = (frames - 4).div(2, rounding_mode="floor")
    return (half - 4).div(2, rounding_mode="floor")


class TemporalConv(nn.Sequential):
    "Two convolutions of five steps, each followed by a pooling of two: [B,C,T] -> [B,hidden,T']."

    def __init__(self, width: int, hidden: int) -> None:
        layers = list[nn.Module]()
        for n in (width, hidden):
            layers += [nn.Conv1d(n, hidden, 5), nn.BatchNorm1d(hidden), nn.ReLU(), nn.MaxPool1d(2)]
        super().__init__(OrderedDict(temporal_conv=nn.Sequential(*layers)))


class BiLSTM(nn.Module):
    "A bidirectional LSTM for sequences of unequal length, without packing; zero after their ends."

    def __init__(self, width: int, hidden: int, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.rnn = nn.LSTM(width, hidden // 2, layers, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:  # [B,T,width], [B] -> [B,T,hidden]
        place = torch.arange(x.shape[1], device=x.device)[None]
        valid = place < lengths[:, None]
        turned = torch.where(valid, lengths[:, None] - 1 - place, place)[:, :, None]
        for layer in range(self.rnn.num_layers):
            back = x.gather(1, turned.expand(x.shape))
            ahead, back = self._run(x, f"l{layer}"), self._run(back, f"l{layer}_reverse")
            x = torch.cat([ahead, back.gather(1, turned.expand(back.shape))], 2)
            x = self.dropout(x) * valid[:, :, None]
        return x

    def _run(self, x: Tensor, name: str) -> Tensor:
        "One layer in one direction."
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        weights = [getattr(self.rnn, f"{kind}_{name}") for kind in kinds]
        start = x.new_zeros(1, x.shape[0], self.rnn.hidden_size)
        return torch.lstm(x, [start, start], weights, True, 1, 0.0, self.training, False, True)[0]


# %% [markdown]
# The figure shows how much the step in the middle depends on each of 112 input frames, by its derivative. After the convolutions it depends on 16 frames. After the BiLSTM it depends on all of them, on distant ones less. (The network is untrained, so the heights of the two curves cannot be compared.) The printed line compares a sequence of 9 steps with the same one padded to 25.

# %%
import matplotlib.pyplot as plt

torch.manual_seed(0)
near, far, x = TemporalConv(8, 16).eval(), BiLSTM(16, 16), torch.randn(1, 8, 112).requires_grad_()
steps = near(x).transpose(1, 2)  # [1,25,16]
plt.figure(figsize=(7, 2.2), layout="constrained")
for name, found in {"convolutions": steps, "BiLSTM": far(steps, torch.tensor([25]))}.items():
    (slopes,) = torch.autograd.grad(found[0, 12].sum(), x, retain_graph=True)
    plt.semilogy(slopes[0].abs().sum(0), ".", label=name)
plt.gca().set(xlabel="frame", ylabel="absolute derivative")
plt.legend()
short, length = steps[:, :9], torch.tensor([9])
print("same without padding:", torch.allclose(far(short, length), far(steps, length)[:, :9]))


# %% [markdown]
# ## A second view
#
# The F of TFNet stands for frequency. Its second branch gets the magnitude of a Fourier transform over the 512 *channels* of each frame. (The paper can be read as "over time"; the released code transforms the channels.) But the order of channels has no meaning, and the spectrum depends on it: in another order of 64 channels it changes by half (second line below). It is also symmetric, so half of it is redundant. We compute it by two matrix products, with cosines and with sines, and compare it with the Fourier transform of torch (first line).

# %%
#| export
def spectrum(x: Tensor) -> Tensor:  # [B,C,T] -> [B,C,T] float32
    "Magnitudes of the Fourier transform over the channels, divided by their number."
    # not torch.fft: a TPU leaves it to the host, and the gradient of a complex magnitude fails
    count = x.shape[1]
    with torch.autocast(x.device.type, enabled=False):
        place = torch.arange(count, device=x.device)
        turns = place[:, None] * place % count  # 2 pi j k / count, from a remainder, which is exact
        angles, values = turns.float() * (2 * math.pi / count), x.float().transpose(1, 2)
        squares = (values @ angles.cos()).square() + (values @ angles.sin()).square()
        return ((squares + 1e-12).sqrt() / count).transpose(1, 2)


# %%
x = torch.randn(2, 64, 16).relu()
print("same:", torch.allclose(spectrum(x), torch.fft.fft(x, 64, 1, "forward").abs(), atol=1e-5))
change = spectrum(x[:, torch.randperm(64)]) - spectrum(x)
print(f"change when the channels are reordered: {change.norm() / spectrum(x).norm():.0%}")


# %% [markdown]
# ## The glosses
#
# The last layer (`NormLinear`) has one column of length 1 for each gloss. Otherwise the columns of frequent glosses would grow, and these glosses would be preferred. The logits are at most as large as the length of the features. With few channels they are too close together, so `scale` multiplies them. The same number is a different gloss in a different data set. So a network (`Reader`) stores its glosses, and the pairs of its bigram, as integers beside the weights. A network without glosses takes them, and its number of classes, from the weights that are loaded into it.

# %%
#| export
class NormLinear(nn.Module):
    "Products with columns of length 1, one for each class."

    def __init__(self, width: int, classes: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.empty(width, classes)), scale
        nn.init.xavier_uniform_(self.weight, gain=nn.init.calculate_gain("relu"))

    def forward(self, x: Tensor) -> Tensor:  # [...,width] -> [...,classes]
        # not F.normalize: its norm costs XLA a second program, in the second step
        length = (self.weight.square().sum(0) + 1e-24).sqrt()
        return self.scale * (x @ (self.weight / length))


class Reader(nn.Module):
    "A network that stores the glosses of its classes."

    glosses: Tensor  # uint8: the glosses, one a line
    pairs: Tensor  # int32 [N,3]: pairs of the bigram, and how often each occurs

    def store_vocabulary(self, vocabulary: Vocabulary, bigram: Bigram) -> None:
        "Store a vocabulary and a bigram beside the weights."
        text = bytearray("\n".join(vocabulary.words).encode())
        self.register_buffer("glosses", torch.frombuffer(text, dtype=torch.uint8).clone())
        rows = [(*pair, count) for pair, count in sorted(bigram.pairs.items())]
        self.register_buffer("pairs", torch.tensor(rows, dtype=torch.int32))

    def stored_vocabulary(self) -> tuple[Vocabulary | None, Bigram | None]:
        "The vocabulary and the bigram that were stored, if any."
        if not hasattr(self, "glosses"):
            return None, None
        text = unicodedata.normalize("NFC", bytes(self.glosses.tolist()).decode())  # as in tables
        vocabulary = Vocabulary(tuple(text.split("\n")))
        pairs = {(a, b): count for a, b, count in self.pairs.tolist()}
        return vocabulary, Bigram(Counter(pairs), len(vocabulary) + 1)

    def before_loading(self, weights: dict[str, Tensor]) -> None:
        """Take the classes of weights to load; ValueError if the network stores other glosses.

        Weights without glosses, such as those of a ResNet, get the ones of the network.
        """
        if own := self.stored_vocabulary()[0]:
            weights.setdefault("glosses", self.glosses)
            weights["pairs"] = self.pairs  # of these sentences, not of those before
            if not torch.equal(weights["glosses"].cpu(), self.glosses.cpu()):
                other = f"another set than the {len(own)} of this one"
                todo = "start from weights of this set, or from none"
                raise ValueError(f"its glosses are the vocabulary of {other}; {todo}")
            return
        for name in {"glosses", "pairs"} & set(weights):
            self.register_buffer(name, torch.empty_like(weights[name]))
        new = weights.get("classifier1.weight")
        for layer in self.modules():
            if isinstance(layer, NormLinear) and new is not None and new.ndim == 2:
                layer.weight = nn.Parameter(torch.empty(len(layer.weight), new.shape[1]))


# %% [markdown]
# ## The whole
#
# `OneBranch` is the design of VAC (Min et al., ICCV 2021): convolutions, then a BiLSTM, and one classifier for the outputs of both. `TwoBranch` is TFNet: a branch for the features, one for their spectrum, and a third classifier for the sum of both BiLSTMs. Only the output of the third is read.

# %%
#| export
class OneBranch(Reader):
    "Features, convolutions, a BiLSTM: `network(clip, frames) -> {name: logits [B,T',classes]}`."

    def __init__(
        self,
        features: Any,  # `Frames` or `Tracks`
        classes: int,  # glosses and the blank
        hidden: int = 1024,
        layers: int = 2,  # of the BiLSTM
        dropout: float = 0.0,
        scale: float = 1.0,  # of the logits
    ) -> None:
        super().__init__()
        self.conv2d, self.conv1d = features, TemporalConv(features.out, hidden)
        self.temporal_model = BiLSTM(hidden, hidden, layers, dropout)
        self.classifier1 = NormLinear(hidden, classes, scale)

    def forward(self, clip: Tensor, frames: Tensor) -> dict[str, Tensor]:
        "[B,T,...], [B] -> logits of both outputs"
        near = self.conv1d(self.conv2d(clip)).transpose(1, 2)
        far = self.temporal_model(near, out_lengths(frames))
        return {"final": self.classifier1(far), "final_conv": self.classifier1(near)}


class TwoBranch(Reader):
    """TFNet: features and their spectrum: `network(clip, frames) -> {name: logits [B,T',classes]}`.

    Published: `TwoBranch(Frames(), 3516)`, with 73,274,003 parameters. Its outputs z1 to z5 are
    time, time_conv, frequency, frequency_conv, final. Its authors report a word error rate of
    41.9% on CE-CSL. Source: woshisad159/TFNet 991a1cc.
    """

    def __init__(self, features: Any, classes: int, hidden: int = 1024, scale: float = 1.0) -> None:
        super().__init__()
        self.conv2d, self.conv1d = features, TemporalConv(features.out, hidden)
        self.conv1d1 = TemporalConv(features.out, hidden)
        self.temporal_model, self.temporal_model1 = BiLSTM(hidden, hidden), BiLSTM(hidden, hidden)
        self.classifier1 = self.classifier2 = NormLinear(hidden, classes, scale)
        self.classifier3 = self.classifier4 = NormLinear(hidden, classes, scale)
        self.classifier5 = NormLinear(hidden, classes, scale)

    def forward(self, clip: Tensor, frames: Tensor) -> dict[str, Tensor]:
        "[B,T,...], [B] -> logits of the five outputs"
        features, lengths = self.conv2d(clip), out_lengths(frames)
        near = self.conv1d(features).transpose(1, 2)
        waves = self.conv1d1(spectrum(features)).transpose(1, 2)
        far, far_waves = self.temporal_model(near, lengths), self.temporal_model1(waves, lengths)
        time = {"time": self.classifier1(far), "time_conv": self.classifier2(near)}
        wave = {"frequency": self.classifier3(far_waves), "frequency_conv": self.classifier4(waves)}
        return time | wave | {"final": self.classifier5(far + far_waves)}


# %% [markdown]
# ## The machinery: frames of a video
#
# Every frame of a video goes through a ResNet-34 (He et al., 2016). In the published weights its convolutions have a third axis of one frame, so they are convolutions of images, and we compute them as such. A **gate** stands before the first convolution and after each of the first three stages. Its four convolutions look at three neighbouring frames each, to find what moves. Each feature is multiplied by an output of the gate between 0 and 1.

# %%
#| export
class Gate(nn.Module):
    "Multiply each value by one between 0 and 1 that depends on up to four frames on each side."

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        for i, pair in enumerate(pairwise([channels, inner, inner, inner, channels]), 1):
            self.add_module(f"conv3d{i}", nn.Conv3d(*pair, (3, 1, 1), padding=(1, 0, 0)))

    def forward(self, x: Tensor, count: int) -> Tensor:
        "[B * count,C,H,W], `count` frames of each clip -> the same shape"
        clips = x.unflatten(0, (-1, count)).flatten(3).transpose(1, 2)  # [B,C,T,H*W]
        found, layers = clips, list[Any](self.children())
        for i, layer in enumerate(layers):
            found = F.conv2d(found, layer.weight.squeeze(-1), layer.bias, padding=(1, 0))
            found = F.leaky_relu(found, 0.01) if i < 3 else torch.sigmoid(found)
        return (clips * found).transpose(1, 2).reshape(x.shape)


class _FrameConv(nn.Conv3d):
    "A convolution of single frames [N,C,H,W] whose weight has an axis of one frame."

    def __init__(self, inplanes: int, planes: int, side: int, stride: int = 1) -> None:
        super().__init__(inplanes, planes, (1, side, side), (1, stride, stride), bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [N,C,H,W] -> [N,planes,H / stride,W / stride]
        return F.conv2d(x, self.weight.squeeze(2), None, self.stride[1], self.kernel_size[1] // 2)


class _Block(nn.Module):
    "Two convolutions with a shortcut: the basic block of a ResNet."

    def __init__(self, inplanes: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _FrameConv(inplanes, planes, 3, stride), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = _FrameConv(planes, planes, 3), nn.BatchNorm2d(planes)
        self.downsample = nn.Sequential()  # without layers: the identity
        if stride > 1:
            self.downsample.append(_FrameConv(inplanes, planes, 1, stride))
            self.downsample.append(nn.BatchNorm2d(planes))

    def forward(self, x: Tensor) -> Tensor:  # [N,C,H,W] -> [N,planes,H / stride,W / stride]
        found = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(found + self.downsample(x))


class Frames(nn.Module):
    """Videos to features of their frames, by a ResNet with gates: [B,T,3,H,W] -> [B,8 width,T].

    Published: width 64, blocks 3, 4, 6, 3. Pixels are 0 to 255 (uint8) or -1 to 1.
    """

    def __init__(
        self, width: int = 64, blocks: Sequence[int] = (3, 4, 6, 3), gates: bool = True
    ) -> None:
        super().__init__()
        self.out, inplanes = 8 * width, width
        if gates:
            self.motorAttention1 = Gate(3, max(4, width // 4))
        self.conv1, self.bn1 = _FrameConv(3, width, 7, 2), nn.BatchNorm2d(width)
        for i, count in enumerate(blocks):
            planes = width * 2**i
            rest = [_Block(planes, planes, 1) for _ in range(count - 1)]
            first = _Block(inplanes, planes, 2 if i else 1)
            self.add_module(f"layer{i + 1}", nn.Sequential(first, *rest))
            if gates and i < 3:
                self.add_module(f"motorAttention{i + 2}", Gate(planes, width))
            inplanes = planes
        for layer in self.modules():
            if isinstance(layer, _FrameConv):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, video: Tensor) -> Tensor:  # [B,T,3,H,W] -> [B,8 width,T]
        (size, count), x = video.shape[:2], video.flatten(0, 1)
        if x.dtype == torch.uint8:
            x = x.float() / 127.5 - 1
        for name, layer in self.named_children():
            x = layer(x, count) if isinstance(layer, Gate) else layer(x)
            if name == "bn1":
                x = F.max_pool2d(torch.relu(x), 2)
        return x.mean((2, 3)).view(size, count, -1).transpose(1, 2)


# %% [markdown]
# Where are the parameters? TFNet has `convolutions` and `BiLSTM` twice, with 41 of its 73 million parameters. The network for hand tracks, here with the 112 glosses of RWTH-BOSTON-104, is 300 times smaller; the last line is of its last layer.

# %%
with torch.device("meta"):  # without memory
    made = {"TFNet": TwoBranch(Frames(), 3516), "gate": Gate(64, 64)}
    made |= {"convolutions": TemporalConv(512, 1024), "BiLSTM": BiLSTM(1024, 1024)}
    made["VAC"] = OneBranch(Frames(blocks=(2, 2, 2, 2), gates=False), 3516)
    made |= {"tracks": OneBranch(Tracks(14, 64), 113, 128, 1), "last layer": NormLinear(128, 113)}
for name, network in made.items():
    print(f"{name:15} {sum(weight.numel() for weight in network.parameters()):11,} parameters")

# %% [markdown]
# ## Questions
#
# 1. A clip has 50 frames. How many steps has its output, and how many glosses can it have at most?
#    <details><summary>Answer</summary>13 steps, a quarter of 50 rounded up, and so at most 13 glosses. Equal neighbours need a blank between them, so with repeats there are fewer.</details>
# 2. Why is a sequence reversed within its own length, and not with its padding?
#    <details><summary>Answer</summary>The LSTM would read the padding first. Its state at the true end, and so every output, would depend on the longest clip of the batch.</details>
