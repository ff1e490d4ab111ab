"""MSHNet trained and scored the plain way: the baseline of `beside.py`.

This is how such a network is usually trained, and how its authors' script does it, written afresh
with nothing made slower than it is there. Images are opened one by one in the main process, the
model is float32 in torch's default memory layout, the loss is a loop over the images of a batch
and is read in every step, and scoring takes one image at a time and finds its objects anew at
eleven thresholds. It needs torch, numpy, Pillow and scikit-image, and nothing of mshnet.

A sample is [image file, mask file, draw]. In training a draw is [mirror, long side, top, left,
blur]; for scoring it is null. As a program the script reads {"batches": [[sample, ...], ...],
"size": 256, "device": "cpu", "start": seconds since 1970} from its standard input, trains, and
prints the time to the end of its first step and its memory in bytes, before training and at most.
"""

import contextlib
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from skimage.measure import label, regionprops
from torch import nn
from torch.nn import functional as F

# The network


class ChannelAttention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.fc1 = nn.Conv2d(channels, channels // 16, 1, bias=False)
        self.fc2 = nn.Conv2d(channels // 16, channels, 1, bias=False)

    def forward(self, x):
        pooled = F.adaptive_avg_pool2d(x, 1), F.adaptive_max_pool2d(x, 1)
        mean, peak = (self.fc2(F.relu(self.fc1(p))) for p in pooled)
        return torch.sigmoid(mean + peak)


class SpatialAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x):
        maps = [x.mean(1, keepdim=True), x.max(1, keepdim=True).values]
        return torch.sigmoid(self.conv1(torch.cat(maps, 1)))


class Block(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Identity()
        if in_channels != out_channels:
            conv = nn.Conv2d(in_channels, out_channels, 1)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(out_channels))
        self.ca, self.sa = ChannelAttention(out_channels), SpatialAttention()

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        y = self.ca(y) * y
        y = self.sa(y) * y
        return F.relu(y + self.shortcut(x))


def upsample(x, factor):
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=True)


class MSHNet(nn.Module):
    def __init__(self, in_channels=3):
        super().__init__()
        self.conv_init = nn.Conv2d(in_channels, 16, 1)
        widths = [16, 16, 32, 64, 128, 256]
        for i, name in enumerate(["encoder_0", "encoder_1", "encoder_2", "encoder_3"]):
            setattr(self, name, self.stage(widths[i], widths[i + 1], 2 if i else 1))
        self.middle_layer = self.stage(128, 256, 2)
        for i in (3, 2, 1, 0):
            blocks = 2 if i else 1
            wide = widths[i + 2] + widths[i + 1]
            setattr(self, f"decoder_{i}", self.stage(wide, widths[i + 1], blocks))
        for i in range(4):
            setattr(self, f"output_{i}", nn.Conv2d(widths[i + 1], 1, 1))
        self.final = nn.Conv2d(4, 1, 3, padding=1)

    @staticmethod
    def stage(in_channels, out_channels, blocks):
        more = [Block(out_channels, out_channels) for _ in range(blocks - 1)]
        return nn.Sequential(Block(in_channels, out_channels), *more)

    def forward(self, image, deep=True):
        e0 = self.encoder_0(self.conv_init(image))
        e1 = self.encoder_1(F.max_pool2d(e0, 2))
        e2 = self.encoder_2(F.max_pool2d(e1, 2))
        e3 = self.encoder_3(F.max_pool2d(e2, 2))
        middle = self.middle_layer(F.max_pool2d(e3, 2))
        d3 = self.decoder_3(torch.cat([e3, upsample(middle, 2)], 1))
        d2 = self.decoder_2(torch.cat([e2, upsample(d3, 2)], 1))
        d1 = self.decoder_1(torch.cat([e1, upsample(d2, 2)], 1))
        d0 = self.decoder_0(torch.cat([e0, upsample(d1, 2)], 1))
        if not deep:
            return [], self.output_0(d0)
        masks = [self.output_0(d0), self.output_1(d1), self.output_2(d2), self.output_3(d3)]
        full = [masks[0], *(upsample(mask, 2**i) for i, mask in enumerate(masks) if i)]
        return masks, self.final(torch.cat(full, 1))


# Its data


def augment(image, mask, draw, crop):
    mirror, long_side, top, left, blur = draw
    if mirror:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        mask = mask.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    long = max(image.size)
    width, height = (
        long_side if side == long else max(int(side * long_side / long + 0.5), 1)
        for side in image.size
    )
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    mask = mask.resize((width, height), Image.Resampling.NEAREST)
    border = (0, 0, max(crop - width, 0), max(crop - height, 0))
    image, mask = (ImageOps.expand(picture, border, fill=0) for picture in (image, mask))
    x = int(left * (max(width - crop, 0) + 1))
    y = int(top * (max(height - crop, 0) + 1))
    image, mask = (picture.crop((x, y, x + crop, y + crop)) for picture in (image, mask))
    if blur:
        image = image.filter(ImageFilter.GaussianBlur(blur))
    return image, mask


def load(sample, size):
    image_file, mask_file, draw = sample
    with Image.open(image_file) as image, Image.open(mask_file) as mask:
        image, mask = image.convert("RGB"), mask.convert("L")
    if draw:
        image, mask = augment(image, mask, draw, size)
    else:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
        mask = mask.resize((size, size), Image.Resampling.NEAREST)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    return (pixels - mean) / std, torch.from_numpy(np.array(mask))[None].float() / 255


def load_batch(samples, size, device):
    images, masks = zip(*(load(sample, size) for sample in samples), strict=True)
    return torch.stack(images).to(device), torch.stack(masks).to(device)


# Its training


def location_loss(prob, truth):
    height, width = prob.shape
    x = torch.arange(width, device=prob.device).float() / width
    y = torch.arange(height, device=prob.device).float()[:, None] / height
    x1, y1 = (prob * x).mean(), (prob * y).mean()
    x2, y2 = (truth * x).mean(), (truth * y).mean()
    r1, r2 = torch.sqrt(x1**2 + y1**2 + 1e-8), torch.sqrt(x2**2 + y2**2 + 1e-8)
    angle = torch.atan(y1 / (x1 + 1e-8)) - torch.atan(y2 / (x2 + 1e-8))
    return 1 - torch.min(r1, r2) / (torch.max(r1, r2) + 1e-8) + 4 / math.pi**2 * angle**2


def mshnet_loss(masks, logits, truth):
    total = torch.zeros((), device=logits.device)
    for i, output in enumerate([logits, *masks]):
        truth = F.max_pool2d(truth, 2) if i > 1 else truth
        for prob, true in zip(torch.sigmoid(output)[:, 0], truth[:, 0], strict=True):
            inter, pred, area = (prob * true).sum(), prob.sum(), true.sum()
            spread = ((pred - area) / 2) ** 2
            factor = (torch.min(pred, area) + spread) / (torch.max(pred, area) + spread)
            loss = 1 - factor * inter / (pred + area - inter) + location_loss(prob, true)
            total = total + loss / len(output) / (1 + len(masks))
    return total


def make_optimizer(model):
    return torch.optim.Adagrad(model.parameters(), lr=0.05)


def train(model, optimizer, batches, size, device):
    losses = []
    model.train()
    for samples in batches:
        image, mask = load_batch(samples, size, device)
        masks, logits = model(image)
        loss = mshnet_loss(masks, logits, mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# Its scores


def match(pred, mask):
    "Targets, matched targets and false pixels of one image, matched in label order."
    preds = list(regionprops(label(pred.astype(np.int64), connectivity=2)))
    targets = regionprops(label(mask.astype(np.int64), connectivity=2))
    areas, used = [p.area for p in preds], []
    for target in targets:
        for k, found in enumerate(preds):
            away = np.linalg.norm(np.array(found.centroid) - np.array(target.centroid))
            if away < 3:
                used.append(found.area)
                del preds[k]
                break
    return len(targets), len(used), int(sum(area for area in areas if area not in used))


class Scores:
    """Counts of each image, and sums at eleven thresholds for Pd and Fa and for the ROC.

    The authors' script compares logits with the thresholds 0, 25.5 .. 255. Only the first of them,
    which is reported, has a meaning; the work is done all the same, so we do it too.
    """

    def __init__(self):
        self.images = []  # of each: inter, pred, mask (pixels), targets, matched, false pixels
        self.curve = np.zeros((11, 3), np.int64)  # targets, matched, false pixels
        self.roc = np.zeros((11, 4), np.int64)  # hits, false alarms, misses, true rejections
        self.pixels = 0

    def add(self, logits, mask):
        values, prob = logits.numpy(), torch.sigmoid(logits).numpy()
        found = [match(values > i * 25.5, mask) for i in range(11)]
        self.curve += found
        for i in range(11):
            high = prob > i / 10
            parts = (high & mask, high & ~mask, ~high & mask, ~high & ~mask)
            self.roc[i] += [part.sum() for part in parts]
        pred = values > 0
        sums = [int(part.sum()) for part in (pred & mask, pred, mask)]
        self.images.append([*sums, *found[0]])
        self.pixels += mask.size


def score(model, samples, size, device, deep=True):
    scores = Scores()
    model.eval()
    with torch.no_grad():
        for sample in samples:
            image, mask = load(sample, size)
            logits = model(image[None].to(device), deep=deep)[1]
            scores.add(logits[0, 0].cpu(), mask[0].numpy() > 0)
    return scores


# Its start and its memory


def peak_memory(device):
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main():
    request = json.load(sys.stdin)
    batches, size, device = request["batches"], request["size"], request["device"]
    model = MSHNet().to(device)
    optimizer = make_optimizer(model)
    before = peak_memory(device)
    train(model, optimizer, batches[:1], size, device)
    seconds = time.time() - request["start"]
    train(model, optimizer, batches, size, device)
    print(json.dumps({"seconds": seconds, "before": before, "peak": peak_memory(device)}))


if __name__ == "__main__":
    main()
