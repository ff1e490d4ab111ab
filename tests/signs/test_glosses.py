"The spelling of glosses, their numbers, and the word error rate."

import hashlib
import json

import numpy as np
import pytest
from conftest import SHARED, data_folder

from mshnet.signs.clips import _read_labels
from mshnet.signs.glosses import (
    PUNCTUATION,
    Errors,
    Vocabulary,
    align,
    corpus_errors,
    corpus_scores,
    normalise,
    show_alignment,
)


@pytest.fixture(scope="module")
def labels():
    "The glosses of CE-CSL's three parts."
    files = {part: data_folder("ce-csl") / f"label/{part}.csv" for part in ("train", "dev", "test")}
    return {part: [glosses for *_, glosses in _read_labels(file)] for part, file in files.items()}


def test_the_vocabulary_is_the_published_one(labels):
    "3,515 glosses with the digest of the published list, all of which occur in training."
    want = json.loads((SHARED / "golden" / "signs" / "vocabulary.json").read_text())
    every = Vocabulary.of(x for part in labels.values() for x in part)
    digest = hashlib.sha256("\n".join(every.words).encode()).hexdigest()
    assert (len(every), digest) == (want["size"], want["sha256"])
    assert all(normalise(text) == spelt for text, spelt in want["examples"])
    train = Vocabulary.of(labels["train"])
    assert train == every and not train.outside(labels["test"])


def test_punctuation_is_a_sixth_of_the_training_glosses(labels):
    "The reason for a score without it."
    every = [gloss for sentence in labels["train"] for gloss in sentence]
    signed = sum(gloss not in PUNCTUATION for gloss in every)
    assert 1 - signed / len(every) == pytest.approx(0.176, abs=0.001)


SPELT = {"退1": "退", "3小时2": "3小时2", "007": "7", "帮助(我）写字": "帮助写字", "喝[左]": "喝"}
SPELT |= {"退 1": "退", "²": "²", "5": "5", ",": "，", "  ": "", "（我）": ""}


@pytest.mark.parametrize(("text", "spelt"), SPELT.items())
def test_one_spelling(text, spelt):
    "Notes go, numbers get shorter, punctuation becomes full-width."
    assert normalise(text) == spelt
    assert normalise(spelt) == spelt


def pairs(count, seed=0):
    "Random sentences of few glosses, with many repeats."
    rng = np.random.default_rng(seed)
    for _ in range(count):
        sizes, glosses = rng.integers([1, 0], 9), int(rng.integers(2, 7))
        yield tuple([f"g{x}" for x in rng.integers(0, glosses, size)] for size in sizes)


def fewest(truth, found):
    "The fewest changes, in an independent way: one row, no alignment."
    row = list(range(len(found) + 1))
    for i, word in enumerate(truth, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(found, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


def test_alignments_are_shortest_and_rebuild_both_sentences():
    "Every gloss stands in the alignment once, in order."
    for truth, found in pairs(2000):
        steps, errors = align(truth, found), corpus_errors([(truth, found)])
        assert [true for kind, true, _ in steps if kind != "I"] == truth
        assert [word for kind, _, word in steps if kind != "D"] == found
        assert all((a == b) == (kind == "=") for kind, a, b in steps)
        assert sum(errors[1:]) == fewest(truth, found)
        assert errors.insertions - errors.deletions == len(found) - len(truth)


def test_the_scores_of_a_corpus():
    "Sentences together, on average, and without punctuation; insertions alone can exceed 1."
    scores = corpus_scores([(["A", "。"], ["B", "。"]), (["A", "B", "C"], [])])
    assert scores["wer"] == 4 / 5 and scores["sentence_wer"] == 3 / 4
    assert scores["bare_wer"] == 1
    assert (scores["substitutions"], scores["deletions"], scores["insertions"]) == (1, 3, 0)
    assert corpus_errors([(["A"], ["B", "B", "B"])]).wer == 3
    assert np.isnan(corpus_scores([])["wer"]) and np.isnan(Errors().wer)
    assert show_alignment(align(["A", "B"], ["A", "C", "D"])) in ("A [B>C] [+D]", "A [+C] [B>D]")
