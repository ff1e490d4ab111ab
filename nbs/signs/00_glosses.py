# %% [markdown]
# # Glosses and the word error rate
#
# > How the errors of a reading are counted, and the one spelling and number of each gloss.
#
# A **gloss** is the written name of a sign: JOHN, BOOK, 小时. The gloss sequence of a sentence follows the order of the hands, not the grammar of the spoken language. Continuous recognition reads it from a video without knowing where one sign ends and the next begins. So a reading has three kinds of errors. `JOHN [MUST>WRITE] [-READ] NEW BOOK [+IX]` has one of each: WRITE instead of MUST, READ is missing, and IX is invented. This page counts them. The [guide](../guides/signs.ipynb) shows a signed sentence.

# %%
#| export
#| default_exp signs.glosses
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

# %% [markdown]
# ## Errors of a prediction
#
# A prediction is aligned with the truth by the fewest changes: substituted glosses (S), missed or *deleted* ones (D), and invented or *inserted* ones (I). The **word error rate** (WER) is (S + D + I) / N, where N is the number of true glosses. It can exceed 1.
#
# The table below has the fewest changes between all prefixes of both sentences. Each entry follows from three neighbours: above, to the left, and diagonally between. The line is the alignment. A diagonal step is a gloss that was read, right or wrong; a step down is a deletion, one to the right an insertion. Several alignments may have equally many changes, with different S, D and I. We choose the same one as the package jiwer: equal glosses at both ends are aligned first.

# %%
import matplotlib.pyplot as plt
import numpy as np

from mshnet.signs.glosses import _distances, align, show_alignment

truth, found = ["JOHN", "MUST", "READ", "NEW", "BOOK"], ["JOHN", "WRITE", "NEW", "BOOK", "IX"]
steps = align(truth, found)
print(show_alignment(steps))
axis = plt.subplots(figsize=(3.4, 3), layout="constrained")[1]
axis.imshow(_distances(truth, found), cmap="Blues", vmax=10)
for (row, column), count in np.ndenumerate(_distances(truth, found)):
    axis.text(column + 0.3, row - 0.25, count, ha="center", va="center", size=7)
path = np.cumsum([(kind != "I", kind != "D") for kind, *_ in steps], 0)
axis.plot([0, *path[:, 1]], [0, *path[:, 0]], "o-", color="tab:orange")
axis.set_xticks(range(6), ["", *found], rotation=90)
axis.set(yticks=range(6), yticklabels=["", *truth], xlabel="prediction", ylabel="ground truth");

# %%
#| export
Step = tuple[str, str, str]  # "=", "S", "D" or "I", the true gloss ("": none), the predicted one


def _distances(truth: Sequence[str], found: Sequence[str]) -> list[list[int]]:
    "The fewest changes between all prefixes of both."
    rows = [list(range(len(found) + 1))]
    for i, word in enumerate(truth, 1):
        row = [i]
        for j, other in enumerate(found, 1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (word != other)))
        rows.append(row)
    return rows


def align(truth: Sequence[str], found: Sequence[str]) -> list[Step]:
    "Align a prediction with the truth by the fewest changes; equal ends stay together."
    head, tail = list[Step](), list[Step]()
    while truth and found and truth[0] == found[0]:
        head, truth, found = [*head, ("=", truth[0], found[0])], truth[1:], found[1:]
    while truth and found and truth[-1] == found[-1]:
        tail, truth, found = [("=", truth[-1], found[-1]), *tail], truth[:-1], found[:-1]
    table, i, j = _distances(truth, found), len(truth), len(found)
    steps = list[Step]()  # from the end
    while i or j:
        if i and table[i][j] == table[i - 1][j] + 1:
            i -= 1
            steps.append(("D", truth[i], ""))
        elif j and (not i or table[i][j - 1] < table[i - 1][j - 1]):
            j -= 1
            steps.append(("I", "", found[j]))
        else:
            i, j = i - 1, j - 1
            steps.append(("=" if truth[i] == found[j] else "S", truth[i], found[j]))
    return [*head, *steps[::-1], *tail]


def show_alignment(steps: Sequence[Step]) -> str:
    "An alignment in one line: `JOHN [READ>WRITE] [-MUST] [+BOOK]`."
    forms = {"=": "{0}", "S": "[{0}>{1}]", "D": "[-{0}]", "I": "[+{1}]"}
    return " ".join(forms[kind].format(true, found) for kind, true, found in steps)


# %% [markdown]
# ## The score of a test split
#
# **Corpus WER**, our main score, counts all sentences together. The published scripts average the WERs of sentences instead, so a wrong gloss in a short sentence costs more; `sentence_wer` is that mean. In CE-CSL 17.6% of the glosses are 。？， and nobody signs a full stop. They are easy to predict and improve the score, so `bare_wer` leaves them out. In the example the sentence above is scored with a second one, `JOHN ？`, that was read without an error. Together they have 3 errors in 7 glosses, or in 6 without the question mark:

# %%
#| export
PUNCTUATION = frozenset("。？，！、；：.?,!;:")


class Errors(NamedTuple):
    "Errors by their kind, and the number of true glosses."

    words: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def wer(self) -> float:  # NaN where there are no true glosses
        "Word error rate."
        return sum(self[1:]) / self.words if self.words else float("nan")


Pair = Sequence[Sequence[str]]  # a sentence: the truth, and what was read


def corpus_errors(pairs: Iterable[Pair]) -> Errors:
    "The errors of many sentences together."
    kinds = Counter(kind for truth, read in pairs for kind, *_ in align(truth, read))
    words = kinds["="] + kinds["S"] + kinds["D"]
    return Errors(words, kinds["S"], kinds["D"], kinds["I"])


def corpus_scores(pairs: Sequence[Pair]) -> dict[str, float]:
    "Corpus WER with its three parts, the mean WER of sentences, and the WER without punctuation."
    whole, each = corpus_errors(pairs), [corpus_errors([pair]).wer for pair in pairs if pair[0]]
    bare = [[[g for g in side if g not in PUNCTUATION] for side in pair] for pair in pairs]
    mean = sum(each) / len(each) if each else float("nan")
    scores = {"wer": whole.wer, **whole._asdict(), "sentence_wer": mean}
    return scores | {"bare_wer": corpus_errors(bare).wer}


# %%
pairs = [(truth, found), (["JOHN", "？"], ["JOHN", "？"])]
errors: Errors = corpus_errors(pairs)
print(errors, f"WER {errors.wer:.2f}")
corpus_scores(pairs)

# %% [markdown]
# ## The machinery: one spelling
#
# Annotators add notes to a gloss: which of two variants was signed (退1), in which direction (称赞（我）), from which word a movement is borrowed. The published recipe for CE-CSL (arXiv:2409.11960) drops brackets with their content, and one final digit if the gloss does not begin with a digit. A comma and a question mark become full-width, and a number gets its shortest form. 3,862 written forms become 3,515 classes. These rules belong to that data set. In RWTH-BOSTON-104 the final digit is part of the name (GIVE1 and GIVE3 are different signs), so its glosses are taken as they are. In all tables Ü may be one character or two, U and its dots (Unicode NFC or NFD); both forms count as the same gloss.

# %%
#| export
_BRACKETS = re.compile(r"[(（\[［【{｛〔].*?[)）\]］】}｝〕]")
_FULL_WIDTH = {",": "，", "?": "？"}


def normalise(gloss: str) -> str:  # "" if nothing is left
    "A gloss of CE-CSL in its one spelling."
    text = _BRACKETS.sub("", gloss).strip()
    if len(text) > 1 and text[-1].isdecimal() and not text[0].isdecimal():
        text = text[:-1].rstrip()
    if text.isdecimal():
        return str(int(text))
    return _FULL_WIDTH.get(text[:1], text[:1]) + text[1:]


def split_glosses(text: str) -> list[str]:
    "The glosses of a label that separates them by slashes; empty ones are dropped."
    return [gloss for part in text.split("/") if (gloss := normalise(part))]


# %%
print({text: normalise(text) for text in ["退1", "称赞（我）", "007", "?", "T恤", "3小时"]})
print(split_glosses("小时/时间1/（我）/007/?"))


# %% [markdown]
# ## The machinery: a number for each gloss
#
# The network predicts numbers. 0 is the blank of [CTC](02_ctc.ipynb), which stands for "nothing new"; the glosses have 1 to V in sorted order. The vocabulary is made from the training split only. A gloss that is not in it gets -1: it cannot be predicted, and counts as an error. Below, MUST is such a gloss:

# %%
#| export
@dataclass(frozen=True)
class Vocabulary:
    "The glosses that a network can predict: the first has number 1, because 0 is the blank."

    words: tuple[str, ...]

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]]) -> "Vocabulary":
        "The different glosses of these sentences, sorted."
        return cls(tuple(sorted({gloss for sentence in sentences for gloss in sentence})))

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        "The number of each gloss."
        return {word: i for i, word in enumerate(self.words, 1)}

    def encode(self, sentence: Sequence[str]) -> list[int]:
        "The numbers of the glosses of a sentence; -1 for one that is not in the vocabulary."
        return [self._numbers.get(gloss, -1) for gloss in sentence]

    def decode(self, numbers: Iterable[int]) -> list[str]:
        "The glosses of numbers, from 1."
        return [self.words[number - 1] for number in numbers]

    def outside(self, sentences: Iterable[Sequence[str]]) -> Counter[str]:
        "How often each gloss of these sentences occurs that is not in the vocabulary."
        return Counter(g for sentence in sentences for g in sentence if g not in self._numbers)


# %%
vocabulary = Vocabulary.of([["JOHN", "WRITE"], ["JOHN", "READ", "BOOK"]])
new = ["JOHN", "MUST", "READ"]
print(vocabulary.words, vocabulary.encode(new), vocabulary.outside([new]))

# %% [markdown]
# ## Questions
#
# 1. The truth is A B, the prediction is B A. Find two alignments with two changes and different S, D and I.
#    <details><summary>Answer</summary>Two substitutions: <code>[A&gt;B] [B&gt;A]</code>. Or one insertion and one deletion: <code>[+B] A [-B]</code>. The WER is 1 in both.</details>
# 2. How can the word error rate exceed 1?
#    <details><summary>Answer</summary>Insertions count as errors, but N is the number of true glosses. One true gloss that is read as three wrong ones has WER 3.</details>
