# %% [markdown]
# # Sign language as a task
#
# > Sign language as a task of the training loop: batches of clips, the loss, and scores that count every error.
#
# [CTC](02_ctc.ipynb) gives a loss, and [the networks](04_networks.ipynb) give probabilities. Three problems are left. Clips have different lengths, but a batch is a rectangle. Real sentences are few, so the training data must be varied. And a score must count what the decoder reads, gloss by gloss: `[JOHN>MARY] BUY [+NEW] BOOK` has two errors.

# %%
#| export
#| default_exp signs.signing
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn

from mshnet.core import UserError, as_user_error, counted, resolve
from mshnet.device import Device
from mshnet.signs.clips import Clips, has_val, kind_of, load_clips, needed_frames, write_simulation
from mshnet.signs.ctc import Bigram, beam_search, greedy, signing_loss
from mshnet.signs.glosses import Vocabulary, align, corpus_errors, corpus_scores, show_alignment
from mshnet.signs.networks import Frames, OneBranch, Reader, Tracks, TwoBranch, out_lengths
from mshnet.signs.signs_config import SignsConfig
from mshnet.task import Origin, RowTally, Task, Values, digits

# %% [markdown]
# ## From a clip to a batch
#
# The two convolutions of the network shorten a clip by 12 frames: by 4, and after a pooling by 4 steps of two frames each. So we pad as the published code does: six copies of the first frame before a clip, and at least six of the last frame after it. All clips of a batch get the length of the longest, rounded up to a multiple of four, plus 12. Below, clips of 7 and 5 frames become a batch of length 8 + 12 = 20. The batch also contains the length of each clip, and the BiLSTM masks everything after it. The gates of TFNet do not: as in the published code, the last steps of a clip depend a little on the length of its batch. So the protocol of TFNet has the batch size and these lengths. The published evaluation is `--batch-size 1 --buckets 0 --max-frames 10000`, in one process; it also merges equal neighbours among the glosses that were read. A compiler makes a new program for each new length. So batches are padded to one of a few lengths, which are quantiles of the data. In the last line, batches of clips of 40 to 60 frames get one of two lengths.

# %%
from mshnet.signs.signing import Signs, bucket_lengths, collate, padded

print(collate([np.arange(7), np.arange(5)])[0])
print(padded(7), bucket_lengths([40, 50, 60], 2))

# %%
#| export
LEFT, MORE = 6, 12  # copies of the first frame; frames that a collated clip is longer


def padded(frames: int) -> int:
    "The length of a collated clip: what two convolutions and two poolings need."
    return -(-frames // 4) * 4 + MORE


def collate(
    clips: Sequence[np.ndarray],  # [T,...] each
    length: int = 0,  # at least the padded length of the longest; 0: that
) -> tuple[np.ndarray, np.ndarray]:  # [B,length,...], lengths [B]
    "Put clips of unequal length into one array."
    length = length or padded(max(map(len, clips)))
    place = np.arange(length) - LEFT
    whole = np.stack([clip[place.clip(0, len(clip) - 1)] for clip in clips])
    return whole, np.array([padded(len(clip)) for clip in clips])


def bucket_lengths(frames: Sequence[int], count: int) -> list[int]:  # padded; 0: none
    "The few lengths to which batches are padded: quantiles, and the longest."
    shares = np.linspace(0, 1, count + 1)[1:]
    return sorted({padded(math.ceil(x)) for x in np.quantile(frames, shares)}) if count else []


# %% [markdown]
# ## Augmentation
#
# In training we change the tempo of a clip: frames are left out or repeated, in order. A video is cropped at a random position. It is never mirrored, because some signs differ only by the hand. Hand tracks are few, so we change them more. Time is warped smoothly, and each hand is rotated, stretched and moved a little. The network gets 14 numbers for each frame: both hands relative to the nose, their velocities over two and over six frames, and the vector between the hands.
#
# The figure shows the height of the right hand above the nose in a simulated sentence: unchanged, and as the network gets it in two epochs. Times and heights differ, the order of the movements does not. The flat ends are the copies of the first and the last frame.

# %%
import matplotlib.pyplot as plt

from mshnet.core import configure
from mshnet.device import open_device

task = Signs(configure({"task": "signs", "preset": "tracks", "sentences": 40, "batch_size": 8}))
train, test = task.splits().values()
axis = plt.subplots(figsize=(7, 2.2), layout="constrained")[1]
for name, line, epoch in (("unchanged", "-", None), ("epoch 0", "--", 0), ("epoch 1", "-.", 1)):
    axis.plot(-50 * task.batch(train, [0], epoch).clip[0, :, 3], line, label=name)
axis.set(xlabel="frame", ylabel="height, pixels")
axis.legend(loc="center left", bbox_to_anchor=(1, 0.5));

# %%
#| export
_PIXELS = 50.0  # the unit of length of tracks, in an image of 195 x 165
NUMBERS = 14  # of a frame of tracks
LONGEST = 8  # glosses of a spliced sentence
SPLICED = 0.6  # fraction of training clips that are spliced with another one


def _change_tempo(count: int, least: int, most: int, change: float, rng: Generator) -> np.ndarray:
    "Which of `count` frames to take, in order, so that a clip is signed faster or slower."
    wanted = round(count * rng.uniform(1 - change, 1 + change)) if change else count
    wanted = min(max(wanted, least, 1), most)
    if wanted <= count:
        return np.sort(rng.choice(count, wanted, replace=False))
    return np.sort(np.concatenate([np.arange(count), rng.choice(count, wanted - count)]))


def _warp_tracks(tracks: np.ndarray, length: int, rng: Generator) -> np.ndarray:
    "Tracks [T,6] -> [length,6], with time warped, and each hand turned, stretched and moved."
    shift, last = rng.normal(0, 0.1, 6) * len(tracks) / 6, len(tracks) - 1
    shift[[0, -1]] = 0
    at = np.linspace(0, 1, length)
    time = np.sort((at * last + np.interp(at, np.linspace(0, 1, 6), shift)).clip(0, last))
    moved = np.stack([np.interp(time, np.arange(len(tracks)), x) for x in tracks.T], 1)
    nose = np.median(moved[:, 4:], 0)
    for hand in (slice(0, 2), slice(2, 4)):
        angle = rng.normal(0, 0.1)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        stretch, place = np.exp(rng.normal(0, 0.1, 2)), rng.normal(0, 0.05, 2) * _PIXELS
        moved[:, hand] = (moved[:, hand] - nose) @ turn.T * stretch + nose + place
    return moved + rng.normal(0, 0.02 * _PIXELS / 2, moved.shape)


def _track_features(tracks: np.ndarray) -> np.ndarray:  # [T,6] -> [T,14] float32
    "Both hands relative to the nose, their velocities, and the vector between them."
    hands = (tracks[:, :4] - np.tile(np.median(tracks[:, 4:], 0), 2)) / _PIXELS
    found = [hands]
    for step in (1, 3):
        wide = np.pad(hands, ((step, step), (0, 0)), mode="edge")
        found.append((wide[2 * step :] - wide[: -2 * step]) * 3 / step)
    return np.concatenate([*found, hands[:, :2] - hands[:, 2:]], 1).astype(np.float32)


# %% [markdown]
# The network soon memorises a few sentences. So we splice 0.6 of the training clips of a data set (simulated sentences need no splicing). A sentence gets the end of another that shares a gloss: with the end of `WHO BUY CAR`, `JOHN BUY BOOK` becomes `JOHN BUY CAR`. We cut before or after the shared gloss, so its time must be known. The table of hand tracks has these times. Only training sentences are cut, and a sentence that needs more than `max_frames` frames is not used.

# %%
#| export
Places = dict[str, list[tuple[int, int]]]  # for each gloss: (row of a sentence, place in it)


def _shared_glosses(sentences: Sequence[Sequence[str]]) -> Places:
    "Where each gloss occurs."
    found: Places = {}
    for row, sentence in enumerate(sentences):
        for place, gloss in enumerate(sentence):
            found.setdefault(gloss, []).append((row, place))
    return found


def _splice(data: Clips, row: int, places: Places, rng: Generator) -> tuple[Any, tuple[str, ...]]:
    "The frames and glosses of a clip that ends like another one, from a gloss that both have."
    clip = data.clips[row]
    i = int(rng.integers(len(clip.glosses)))
    others = [place for place in places[clip.glosses[i]] if place[0] != row]
    if others:
        other, j = others[rng.integers(len(others))]
        second = data.clips[other]
        after = int(rng.integers(2))  # 1: cut after the shared gloss
        ends = [(0, *c.cuts, c.frames)[k + after] for c, k in ((clip, i), (second, j))]
        frames = np.concatenate([data.read(row)[: ends[0]], data.read(other)[ends[1] :]])
        glosses = clip.glosses[: i + after] + second.glosses[j + after :]
        if glosses and len(frames) >= needed_frames(glosses) and len(glosses) <= LONGEST:
            return frames, glosses
    return data.read(row), clip.glosses


# %% [markdown]
# ## Training and scores
#
# The main score is the corpus WER. The page on [glosses](00_glosses.ipynb) explains it, and the marks of an alignment. The final evaluation stores every sentence with its alignment, and adds two scores: the WER of the test sentences that are also in the training list of this data set, held-out ones included (`known_wer`), and of the others (`new_wer`). A network that memorises sentences has a good WER only for those that it knows.
#
# We train on the 40 simulated sentences of the figure. The first line shows how splicing changes a sentence: the part after its first SIGN-AD is replaced by the end of another sentence with a SIGN-AD. The other lines show the WER of the test split and the alignment of one of its sentences, before training and after 30 epochs. Untrained, nearly every gloss is an error, and inserted ones make the WER larger than 1. After a few seconds of training nearly all are right, because simulated signs are easy.

# %%
_, spliced = _splice(train, 0, _shared_glosses(train.sentences), task.rng(0, 0))
print(*train.sentences[0], "->", *spliced)
model: OneBranch = task.model()
optimizer, cpu = task.optimizer(model), open_device("cpu", "fp32")
for epoch in range(31):
    if epoch in (0, 30):
        found = task.evaluate(model.eval(), test, cpu, "full", Origin("none"))
        print(f"WER {found.scores['wer']:.2f}:", found.details["sentences"][0]["alignment"])
    for rows in task.plan(train, epoch):
        loss = task.loss(model.train(), task.batch(train, rows, epoch), "full")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# %% [markdown]
# ## The machinery: the task
#
# A task has everything that the [training loop](../37_train.ipynb) asks for: data, batches, network, loss and scores. A batch contains everything that the loss needs. The network stores the glosses and the bigram beside its weights, so a file of weights can read a video without the data set. The tally decodes each clip and stores the result beside the true glosses.

# %%
#| export
class _SignBatch(NamedTuple):
    "Clips with their glosses, in the collated form."

    clip: Tensor  # [B,T,3,S,S] uint8, or [B,T,14] float32
    frames: Tensor  # [B] collated length of each clip
    labels: Tensor  # [B,L] numbers of the glosses, padded with 0
    lengths: Tensor  # [B] glosses of each clip
    row: Tensor  # [B] index of the clip; -1: padding


def _prepare_clip(
    array: np.ndarray, glosses: Sequence[str], config: SignsConfig, rng: Generator | None
) -> np.ndarray:  # [T',crop,crop,3] uint8, or [T',14] float32
    "A clip [T,S,S,3] or [T,6] as the network sees it; changed at random only with an `rng`."
    c, count = config, len(array)
    if count > c.max_frames:
        what = f"clips of more than {c.max_frames} frames are thinned to {c.max_frames}"
        warnings.warn(f"{what}; to change this, set --max-frames", stacklevel=2)
    if rng is None:
        rows = np.linspace(0, count - 1, min(count, c.max_frames)).round().astype(int)
    else:
        rows = _change_tempo(count, needed_frames(glosses), c.max_frames, c.rescale, rng)
    if array.ndim == 2:
        warps = None if c.augment == "none" else rng
        return _track_features(_warp_tracks(array, len(rows), warps) if warps else array[rows])
    room = array.shape[1] - c.crop
    if room < 0:
        raise UserError(f"crop={c.crop}: frames have a side of {array.shape[1]}; use less")
    top, left = (room // 2, room // 2) if rng is None else rng.integers(room + 1, size=2)
    return array[rows, top : top + c.crop, left : left + c.crop]


def _make_network(c: SignsConfig, classes: int) -> Reader:
    "The network of the settings."
    if c.network == "tracks":
        tracks = Tracks(NUMBERS, c.hidden // 2, c.dropout)
        return OneBranch(tracks, classes, c.hidden, 1, c.dropout, c.scale)
    published = (3, 4, 6, 3) if c.network == "tfnet" else (2, 2, 2, 2)
    width, blocks = (8, (1, 1, 1, 1)) if c.backbone == "small" else (64, published)
    kind = TwoBranch if c.network == "tfnet" else OneBranch
    return kind(Frames(width, blocks, gates=c.network == "tfnet"), classes, c.hidden, scale=c.scale)


class _SignScores(Values):
    "Scores by name; `details`: the sentences by their row."

    line = "WER {wer:.3f} (S {substitutions}, D {deletions}, I {insertions} of {words} glosses)"


class _SignTally(RowTally):
    "The true and the predicted glosses of each clip."

    def count(self, log_probs: Tensor, batch: _SignBatch) -> Iterator[Any]:
        "The true glosses of each clip, and those that are read."
        rows, steps = batch.row.tolist(), out_lengths(batch.frames).tolist()
        for probs, row, count in zip(log_probs.numpy(), rows, steps, strict=True):
            found = self.task.decode(probs[:count]) if row >= 0 else []
            yield self.task.truth[row], self.task.vocabulary.decode(found)

    def scores(self) -> _SignScores:
        "Corpus WER and its parts."
        scores = _SignScores(corpus_scores(self.values))
        scores.details = self.rows
        return scores


class Signs(Task):
    "Continuous sign language."

    better = ("wer", -1)
    vocabulary = Vocabulary(())
    bigram: Bigram | None = None
    truth: Sequence[Sequence[str]] = ()  # sentences that are being scored
    places: Places | None = None  # of the training glosses
    buckets: Sequence[int] = ()

    def splits(self, names: Sequence[str] = ("train", "test")) -> dict[str, Any]:
        "Clips of a folder, or simulated ones; val where the epoch is chosen on it."
        c = self.config
        held_out = ["val"] if c.choose == "val" and "train" in names else []
        found = load_clips(c, [*names, *held_out])
        if train := found.get("train"):
            words = self.vocabulary = Vocabulary.of(train.sentences)
            self.bigram = Bigram.of(map(words.encode, train.sentences), len(words) + 1)
            if c.augment == "splice" and c.dataset_dir and any(clip.cuts for clip in train.clips):
                self.places = _shared_glosses(train.sentences)
            if c.max_frames < (least := max(map(needed_frames, train.sentences), default=0)):
                why = f"a training sentence needs {least}; use --max-frames {least} or more"
                raise UserError(f"max_frames={c.max_frames}: {why}")
        slower = {"train": 1 + c.rescale}  # by which the tempo makes a clip longer
        frames = [x.frames * slower.get(k, 1) for k, part in found.items() for x in part.clips]
        self.buckets = bucket_lengths([min(c.max_frames, math.ceil(x)) for x in frames], c.buckets)
        return found

    def load_vocabulary(self, model: Any) -> None:
        "Take the glosses and the bigram of a network; UserError if it has no glosses."
        known, self.bigram = model.stored_vocabulary()
        self.vocabulary = known or self.vocabulary
        if not self.vocabulary.words:
            raise UserError("the weights hold no glosses; use weights of a run of mshnet")

    def check_vocabulary(self, model: nn.Module, data: Any) -> None:
        "Take the glosses that a network was trained for; UserError if the data have none of them."
        self.load_vocabulary(model)
        new, known = {g for sentence in data.sentences for g in sentence}, self.vocabulary.words
        if not new & set(known):
            what = f"{len(known)} glosses like {known[0]}, none of the {len(new)} of {data.source}"
            raise UserError(f"the weights have the vocabulary of another set: {what}")

    def plan(self, data: Any, epoch: int | None) -> list[list[int]]:
        "Batches of clips of similar length, because padding is wasted work; shuffled in training."
        size, frames = self.config.batch_size, np.array([clip.frames for clip in data.clips])
        if epoch is None:
            rows = np.argsort(frames, kind="stable").tolist()
            return [(rows[i : i + size] + [-1] * size)[:size] for i in range(0, len(rows), size)]
        rng = np.random.default_rng([self.config.seed, epoch])
        rows = rng.permutation(len(frames))[: len(frames) // size * size]
        lengths = frames[rows] * rng.uniform(0.8, 1.25, len(rows))
        return rng.permutation(rows[np.argsort(lengths, kind="stable")].reshape(-1, size)).tolist()

    def _lengths(self, data: Any) -> list[int]:
        "The padded lengths of a split that is scored: the same, whatever else is loaded."
        c = self.config
        return bucket_lengths([min(c.max_frames, clip.frames) for clip in data.clips], c.buckets)

    def batch(self, data: Any, rows: list[int], epoch: int | None) -> _SignBatch:
        "The batch of these clips, changed at random in training."
        self.truth = data.sentences
        clips, glosses = zip(*(self._clip(data, max(row, 0), epoch) for row in rows), strict=True)
        needed = padded(max(map(len, clips)))
        lengths = self._lengths(data) if epoch is None else self.buckets
        array, frames = collate(clips, next((n for n in lengths if n >= needed), needed))
        if array.ndim == 5:
            array = array.transpose(0, 1, 4, 2, 3)
        labels = np.zeros((len(rows), max(LONGEST, *map(len, data.sentences))), np.int64)
        for label, sentence in zip(labels, glosses, strict=True):
            label[: len(sentence)] = self.vocabulary.encode(sentence)
        clip, steps, found = map(torch.from_numpy, (np.ascontiguousarray(array), frames, labels))
        counts = torch.tensor([*map(len, glosses)])
        return _SignBatch(clip, steps, found, counts, torch.tensor(rows))

    def _clip(self, data: Any, row: int, epoch: int | None) -> tuple[Any, tuple[str, ...]]:
        "A clip as the network sees it, perhaps spliced in training, and its glosses."
        rng = None if epoch is None else self.rng(row, epoch)
        frames, glosses = data.read(row), data.sentences[row]
        if rng is not None and self.places and rng.random() <= SPLICED:
            spliced = _splice(data, row, self.places, rng)
            if needed_frames(spliced[1]) <= self.config.max_frames:
                frames, glosses = spliced
        return _prepare_clip(frames, glosses, self.config, rng), glosses

    def batches(self, device: Device, data: Any, plan: Any, epoch: int) -> Iterator[_SignBatch]:
        "The batches of an epoch, in a few lengths; each has one length in all processes."
        device.num_shapes = max(self.config.buckets, 1)
        for batch in super().batches(device, data, plan, epoch):
            count = batch.clip.shape[1]
            more = max(device.ranks.all_gather(count)) - count
            last = batch.clip[:, -1:].expand(-1, more, *batch.clip.shape[2:])
            yield batch._replace(clip=torch.cat([batch.clip, last], 1)) if more else batch

    def model(self) -> nn.Module:
        "The network of the settings, with random weights by the seed; it stores its glosses."
        with torch.random.fork_rng(devices=[]), as_user_error():
            torch.default_generator.manual_seed(self.config.seed)
            network = _make_network(self.config, max(len(self.vocabulary) + 1, 2))
        if self.bigram:  # else its weights are loaded next
            network.store_vocabulary(self.vocabulary, self.bigram)
        return network

    def loss(self, model: Any, batch: _SignBatch, phase: str) -> Tensor:
        "The sum of the CTC losses of all outputs and of the distillation."
        outputs = model(batch.clip, batch.frames)
        clips = out_lengths(batch.frames), batch.labels, batch.lengths
        parts = signing_loss(outputs, *clips, self.config.distil, self.config.distil_weight)
        return sum(parts.values())  # type: ignore[return-value]

    def predict(self, model: Any, batch: _SignBatch, phase: str) -> Tensor:  # [B,T',C]
        "Log probabilities of each gloss in every fourth frame."
        return model(batch.clip, batch.frames)["final"].float().log_softmax(-1)

    def decode(self, log_probs: np.ndarray) -> list[int]:  # [T',C]
        "The glosses of a clip, by the decoder of the settings."
        c, bigram = self.config, self.bigram if self.config.bigram_weight else None
        if c.decoder == "greedy":
            return greedy(log_probs)
        return beam_search(log_probs, c.beam_width, bigram, c.bigram_weight)

    def rate(self, step: int, per_epoch: int) -> float:
        "The learning rate of a step; `steps`: a fifth from 35/55 and again from 45/55 of the run."
        rate, done = super().rate(step, per_epoch), step / (self.config.epochs * per_epoch)
        falls = (done >= 35 / 55) + (done >= 45 / 55) if self.config.schedule == "steps" else 0
        return float(rate * 0.2**falls)

    def tally(self) -> _SignTally:
        return _SignTally(self)

    def evaluate(self, model: Any, data: Any, device: Device, phase: str, origin: Origin) -> Any:
        "The final scores with every sentence; those of the training list apart from the others."
        self.check_vocabulary(model, data)
        device.num_shapes = max(self.config.buckets, 1)
        whole = super().evaluate(model, data, device, phase, origin)
        scores: _SignScores = whole.scores
        for name, known in (("known", True), ("new", False)) if data.known else ():
            pairs = [p for p in scores.details.values() if (p[0] in data.known) == known]
            scores |= {f"{name}_wer": corpus_errors(pairs).wer, f"{name}_sentences": len(pairs)}
        sentences = [
            {"name": data.names[row], "truth": truth, "read": read}
            | {"alignment": show_alignment(align(truth, read))}
            for row, (truth, read) in scores.details.items()
        ]
        return replace(whole, details={"sentences": sentences})

    def protocol(self, data: Any, scores: Any) -> dict[str, Any]:
        "The task, how many sentences and glosses, the vocabulary, and how it was read."
        c, words = self.config, self.vocabulary
        facts = {"vocabulary": len(words), "vocabulary_hash": digits(words.words)}
        facts["outside_vocabulary"] = words.outside(data.sentences).total()
        how = ["max_frames", "decoder"]
        how += ["beam_width", "bigram_weight"] if c.decoder == "beam" else []
        if c.network == "tfnet":  # its gates see the padding
            facts |= {"batch_size": c.batch_size, "lengths": self._lengths(data)}
        return super().protocol(data, scores) | facts | {name: getattr(c, name) for name in how}

    def describe_data(self) -> tuple[str, bool]:
        "What a folder holds, each split with its glosses."
        if folder := self.config.dataset_dir:  # by a network that reads it
            where = Path(folder).expanduser()
            known = {"network": "tfnet" if kind_of(where) == "video" else "tracks"}
            known |= {"choose": "val"} if has_val(where) else {}
            self.config = self.config.model_copy(update=known)
        lines = []
        for name, part in self.splits().items():
            count, words = sum(map(len, part.sentences)), len(Vocabulary.of(part.sentences))
            new = self.vocabulary.outside(part.sentences).total()
            held = f"{name}: {counted(len(part), 'clip')} of {part.source}, {count} glosses"
            lines.append(f"{held}, {words} different, {new} new")
        return "\n".join(lines), True

    def write_data(self, folder: Path) -> str:
        "Write simulated videos in the layout of CE-CSL; UserError if the folder holds others."
        write_simulation(folder, self.config)
        return f"{folder}: written"

    def predict_files(self, weights: str, inputs: list[str], **how: Any) -> Any:
        return resolve("mshnet.signs.reading:read_files")(weights, inputs, **how)

    def report(self, folder: Path) -> None:
        resolve("mshnet.signs.reading:draw_sentences")(folder, self.config)

# %% [markdown]
# ## Questions
#
# 1. `JOHN BUY BOOK` gets the end of `WHO BUY CAR`. What is different if we cut after BUY instead of before it?
#    <details><summary>Answer</summary>The sentence is <code>JOHN BUY CAR</code> both times. With a cut after BUY the sign BUY is that of the first clip, with a cut before it that of the second.</details>
# 2. Batches are padded to one of a few lengths. What would be worse with a single length, and what with a new length for each batch?
#    <details><summary>Answer</summary>With a single length all clips are padded to the longest, and more frames are computed in vain. With a new length for each batch there is less padding, but the compiler makes a program for each of the many lengths.</details>
# 3. You add 20 sentences of the training list to a test list. How do the WER, `known_wer` and `new_wer` of a network change that has memorised its training sentences?
#    <details><summary>Answer</summary>The WER falls, although the network is the same. <code>known_wer</code> stays low, and <code>new_wer</code> does not change. So compare networks by <code>new_wer</code>.</details>
