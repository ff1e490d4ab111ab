# %% [markdown]
# # CTC: learning without times
#
# > The CTC loss, distillation between two outputs, and decoders that turn probabilities into glosses.
#
# A label lists *which* signs a video shows, and in which order, but not *when*. Connectionist temporal classification (CTC; Graves et al., 2006) sums over all possible times. The network predicts for every step one of the glosses or a **blank**, number 0. A path of such predictions is read by merging repeats, then dropping blanks: `0 J J 0 W W` reads J W. The probability of a sentence is the sum over all paths that read as it, and the loss is its negative logarithm.

# %%
#| export
#| default_exp signs.ctc
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

# %% [markdown]
# ## The recursion
#
# A sentence of L glosses has 2L + 1 states, those of J W are `0 J 0 W 0`. In each step a path stays in its state, moves to the next one, or skips the blank between two *different* glosses (from J to W). It begins in one of the first two states and ends in one of the last two. We go over the steps once and keep, for each state, the probability of all paths that end in it; as a logarithm, because the products are far below the smallest float32.

# %%
#| export
_NEVER = -1e30  # the logarithm of an impossible state; finite, because inf - inf is NaN


def least_frames(labels: Sequence[object]) -> int:
    "The fewest steps, not frames, to read a sentence: one a gloss, and a blank between repeats."
    return len(labels) + sum(a == b for a, b in pairwise(labels))


def ctc_loss(
    logits: Tensor,  # [B,T,C]; class 0 is the blank
    frames: Tensor,  # [B] steps that count
    labels: Tensor,  # [B,L] padded with zeros
    lengths: Tensor,  # [B] glosses of each sentence
) -> Tensor:  # [B] float32
    """The negative log probability of each sentence.

    Infinite, with gradient zero, where a sentence needs more steps than there are
    (`least_frames`). Equal to `F.ctc_loss` of torch in values and gradients. That one runs on the
    host of a TPU in every step; this one is made of plain operations.
    """
    log_probs = logits.float().log_softmax(-1)
    states = F.pad(torch.stack([torch.zeros_like(labels), labels], 2).flatten(1), (0, 1))
    emitted = log_probs.gather(2, states[:, None].expand(-1, logits.shape[1], -1).long())
    skips = (states != 0) & (states != F.pad(states, (2, 0))[:, :-2])
    place = torch.arange(states.shape[1], device=logits.device)
    paths = emitted[:, 0].masked_fill(place > 1, _NEVER)
    for t in range(1, logits.shape[1]):
        one, two = (F.pad(paths, (by, 0), value=_NEVER)[:, :-by] for by in (1, 2))
        ways = [paths, one, two.masked_fill(~skips, _NEVER)]  # stay, move on, skip a blank
        moved = torch.stack(ways).logsumexp(0) + emitted[:, t]
        paths = torch.where((t < frames)[:, None], moved, paths)
    last = (place[None] == 2 * lengths[:, None]) | (place[None] == 2 * lengths[:, None] - 1)
    loss = -paths.masked_fill(~last, _NEVER).logsumexp(1)
    return torch.where(loss < -_NEVER / 2, loss, torch.inf)


# %% [markdown]
# ## What is learnt without times
#
# An untrained output has ten steps, and the label is gloss 1, gloss 2. The first line below compares our loss with that of torch. Then we follow the gradient and plot the probabilities. The label has no times. Training finds two steps for each gloss, which are read as one, and the blank between them:

# %%
import matplotlib.pyplot as plt

torch.manual_seed(1)
free = (0.1 * torch.randn(1, 10, 3)).requires_grad_()
steps, label, count = (torch.tensor(x) for x in ([10], [[1, 2]], [2]))
log_probs = free.log_softmax(2).transpose(0, 1)
by_torch = F.ctc_loss(log_probs, label, steps, count, reduction="sum")
print(f"loss {ctc_loss(free, steps, label, count).item():.4f}, by torch {by_torch.item():.4f}")
figure = plt.figure(figsize=(9, 2), layout="constrained")
axes = dict(zip((0, 3, 30), figure.subplots(1, 3, sharey=True), strict=True))
for update in range(31):
    if axis := axes.get(update):
        axis.plot(free.detach()[0].softmax(1), label=["blank", "gloss 1", "gloss 2"])
        axis.set(title=f"after {update} updates", xlabel="step", ylim=(0, 1))
    loss = ctc_loss(free, steps, label, count).sum()
    (gradient,) = torch.autograd.grad(loss, free)
    free = (free - 2 * gradient).detach().requires_grad_()
axes[0].set_ylabel("probability")
axes[0].legend(loc="upper center", ncols=2, fontsize="small")
print("most probable class of each step:", *free.detach()[0].argmax(1).tolist())

# %% [markdown]
# ## Distillation
#
# VAC (Min et al., ICCV 2021) has two outputs. A BiLSTM sees the whole sentence; the convolutions before it see only a short part of it. The convolutions get a classifier, too, and learn from the BiLSTM's output. TFNet has two such pairs. Both outputs are softened by a temperature of 8, without the blank, and compared by the Kullback-Leibler divergence. In the published code the gradient also flows into the teacher and pulls the better output towards the worse one, and the mean includes padded steps. Ours detaches the teacher and counts valid steps only; `published` computes what the paper's code did. The example below compares a teacher with copies of it. The loss is 0 for an exact copy and grows with the noise.

# %%
#| export
TEMPERATURE = 8.0


def distil(
    student: Tensor,  # [B,T,C] logits
    teacher: Tensor,  # [B,T,C] logits
    frames: Tensor | None = None,  # [B] steps that count; None: all of them
) -> Tensor:  # a number
    "How far the student's glosses are from the teacher's, without the blank."
    wanted = (teacher.float()[..., 1:] / TEMPERATURE).log_softmax(-1)
    found = (student.float()[..., 1:] / TEMPERATURE).log_softmax(-1)
    each = (wanted.exp() * (wanted - found)).sum(-1) * TEMPERATURE**2
    if frames is None:
        return each.mean()
    valid = torch.arange(each.shape[1], device=each.device)[None] < frames[:, None]
    return ((each * valid).sum(1) / frames).mean()  # clips weigh the same, in parts of a batch too


def signing_loss(
    outputs: dict[str, Tensor],  # logits [B,T,C]; "X_conv" learns from "X"
    frames: Tensor,  # [B] steps of the outputs that count
    labels: Tensor,  # [B,L]
    lengths: Tensor,  # [B]
    how: str = "detached",  # or "published"; "none": no distillation
    weight: float = 25.0,  # of the distillation
) -> dict[str, Tensor]:
    "The parts of the training loss: CTC of each output, and distillation of each pair."
    count = len(outputs)
    repeated = frames.repeat(count), labels.repeat(count, 1), lengths.repeat(count)
    ctc = ctc_loss(torch.cat(list(outputs.values())), *repeated)  # all outputs at once
    means = ctc.view(count, -1).mean(1).unbind()
    parts = {f"ctc_{name}": mean for name, mean in zip(outputs, means, strict=True)}
    for name in [] if how == "none" else [k for k in outputs if k.endswith("_conv")]:
        teacher, valid = outputs[name.removesuffix("_conv")], None
        if how == "detached":
            teacher, valid = teacher.detach(), frames
        parts[f"distil_{name}"] = weight * distil(outputs[name], teacher, valid)
    return parts


# %%
teacher, change = torch.randn(2, 1, 6, 5)
for noise in (0, 0.1, 1):
    print(f"noise {noise}: {distil(teacher + noise * change, teacher):.3f}")


# %% [markdown]
# ## Reading
#
# The simplest reading is **greedy**: the most probable class of each step, repeats merged, blanks dropped. It returns the most probable *path*. The most probable *sentence* may be a different one, because many paths read as it. In the cell below three paths read as "1". Each is less probable than two blanks, but together they have 0.64.
#
# **Prefix beam search** adds such paths up. It keeps the most probable *prefixes*, which are beginnings of sentences, each with two probabilities: that its last step is a blank, and that it is not. After the two steps of the example it has the prefixes () with 0.36 and (1) with 0.64. To save time, each step tries only the most probable classes.

# %%
#| export
def collapse(path: Iterable[int]) -> list[int]:
    "Read a path: merge repeats, then drop blanks."
    return [x for x, _ in groupby(path) if x]


def greedy(log_probs: np.ndarray) -> list[int]:
    "The reading [L] of the most probable path, of log probabilities [T,C]."
    return collapse(log_probs.argmax(1).tolist())


# %%
probs = np.array([[0.6, 0.4], [0.6, 0.4]])
paths = [((a, b), float(probs[0, a] * probs[1, b])) for a in (0, 1) for b in (0, 1)]
print(greedy(np.log(probs)), {path: (collapse(path), round(p, 2)) for path, p in paths})


# %% [markdown]
# A **bigram** counts which gloss follows which in the training sentences, so that a beam search prefers probable sequences. It is mixed with how often each gloss occurs; number 0 stands for the beginning and the end of a sentence.

# %%
#| export
class Bigram:
    "How probable a gloss is after another, counted in training sentences."

    def __init__(self, pairs: Counter[tuple[int, int]], classes: int) -> None:
        self.pairs, self.classes = pairs, classes  # with the blank: the beginning and the end
        self.firsts, self.seconds = Counter[int](), Counter[int]()
        for (before, after), count in pairs.items():
            self.firsts[before] += count
            self.seconds[after] += count
        self.total = self.seconds.total()

    @classmethod
    def of(cls, sentences: Iterable[Sequence[int]], classes: int) -> "Bigram":
        "Count the pairs in these sentences of numbers."
        return cls(Counter(pair for s in sentences for pair in pairwise([0, *s, 0])), classes)

    def log(self, before: int, gloss: int) -> float:
        "The log probability of a gloss (0: the end) after another (0: the beginning)."
        unigram = (self.seconds[gloss] + 0.5) / (self.total + 0.5 * self.classes)
        return float(np.log((self.pairs[before, gloss] + 2 * unigram) / (self.firsts[before] + 2)))


Prefix = tuple[int, ...]


def beam_search(
    log_probs: np.ndarray,  # [T,C] log probabilities
    width: int = 10,  # prefixes that are kept
    bigram: Bigram | None = None,
    weight: float = 0.0,  # of the bigram's log probability
) -> list[int]:  # [L]
    "The most probable sentence, as far as `width` prefixes are enough to find it."

    def prior(prefix: Prefix, gloss: int) -> float:
        return weight * bigram.log(prefix[-1] if prefix else 0, gloss) if bigram else 0.0

    never = -np.inf
    language: dict[Prefix, float] = {(): 0.0}  # of each prefix, by the bigram
    beams: dict[Prefix, tuple[float, float]] = {(): (0.0, never)}  # ends in a blank; in a gloss
    for step in log_probs.astype(float):
        found: dict[Prefix, list[float]] = defaultdict(lambda: [never, never])
        tried = [c for c in np.argsort(-step)[: width + 1].tolist() if c]
        for prefix, (blank, gloss) in beams.items():
            both, last = np.logaddexp(blank, gloss), prefix[-1] if prefix else 0
            found[prefix][0] = np.logaddexp(found[prefix][0], both + step[0])
            if last:
                found[prefix][1] = np.logaddexp(found[prefix][1], gloss + step[last])
            for c in tried:
                longer = (*prefix, c)
                if longer not in language:
                    language[longer] = language[prefix] + prior(prefix, c)
                before = blank if c == last else both  # a repeat needs a blank between
                found[longer][1] = np.logaddexp(found[longer][1], before + step[c])
        total = {p: np.logaddexp(a, b) + language[p] for p, (a, b) in found.items()}
        ranked = sorted(found, key=total.__getitem__, reverse=True)
        beams = {prefix: (found[prefix][0], found[prefix][1]) for prefix in ranked[:width]}
    ends = {p: np.logaddexp(a, b) + language[p] + prior(p, 0) for p, (a, b) in beams.items()}
    return list(max((total, prefix) for prefix, total in ends.items())[1])


# %% [markdown]
# In three training sentences 4 follows 3 more often than 5 does. The beam search reads the example above as "1". A second example has two steps: a 3, then a 5 (0.45) or a 4 (0.35). The beam search reads 3 5, and with the bigram 3 4:

# %%
bigram = Bigram.of([[3, 5, 2], [3, 4, 1], [3, 4, 2]], classes=6)
after = [f"{name} {np.exp(bigram.log(3, i)):.2f}" for i, name in enumerate(["end", *range(1, 6)])]
print("after gloss 3:", ", ".join(after))
noisy = np.log(np.array([[0.1, 0.1, 0.1, 0.6, 0.1, 0.0], [0.05, 0.05, 0, 0.1, 0.35, 0.45]]) + 1e-9)
print("the example above:", beam_search(np.log(probs)), "two steps:", beam_search(noisy))
print("two steps with the bigram:", beam_search(noisy, bigram=bigram, weight=1.0))

# %% [markdown]
# ## Questions
#
# 1. How many steps does the sentence A A B need at least, and why?
#    <details><summary>Answer</summary>Four: A, blank, A, B. Without the blank the two A would be merged.</details>
# 2. Why does the beam search keep two probabilities of each prefix, one that ends in a blank and one that ends in a gloss?
#    <details><summary>Answer</summary>The same gloss again is a new sign only after a blank. Otherwise it is merged, and the prefix does not change.</details>
