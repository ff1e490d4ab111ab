"""Two yardsticks for hand tracks: the nearest training sentence, and always the same gloss.

    python results/signs-yardsticks/yardsticks.py ../shared/data/boston104

`nearest sentence`: each test clip gets the glosses of the training clip that is nearest by dynamic
time warping (no learning). A frame is both hands relative to the nose, in pixels; frames are
compared by their Euclidean distance; the sum along the best path is divided by the lengths of both
clips. Seven other ways were tried on the same sentences (scaled by training frames or by the clip,
nose of the clip instead of the frame, not divided): WER 0.242 to 0.365. The plainest is kept.
`always JOHN`: the most frequent gloss, once a clip.
Writes boston104.json beside this file.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from mshnet.signs.clips import load_clips
from mshnet.signs.glosses import corpus_errors, corpus_scores
from mshnet.signs.signs_config import SignsConfig


def hands(tracks):
    "Both hands relative to the nose, in pixels."
    return tracks[:, :4] - np.tile(tracks[:, 4:], 2)


def warped(a, b):
    "The distance of two clips by dynamic time warping."
    cost = np.sqrt(((a[:, None] - b[None]) ** 2).sum(2))
    best = np.full((len(a) + 1, len(b) + 1), np.inf)
    best[0, 0] = 0
    for i in range(1, len(a) + 1):
        above = np.minimum(best[i - 1, 1:], best[i - 1, :-1])
        left = np.inf
        for j in range(len(b)):
            left = best[i, j + 1] = cost[i - 1, j] + min(above[j], left)
    return best[-1, -1] / (len(a) + len(b))


def scores(truth, found, learnt):
    "Scores as a run has them, also of the sentences that occur in training and of the others."
    pairs = [(list(t), list(f)) for t, f in zip(truth, found, strict=True)]
    table = corpus_scores(pairs)
    for name, known in (("known", True), ("new", False)):
        part = [pair for pair in pairs if (tuple(pair[0]) in learnt) == known]
        table |= {f"{name}_wer": corpus_errors(part).wer, f"{name}_sentences": len(part)}
    return {k: round(v, 4) for k, v in table.items()}


def main(folder):
    "Compute and write both."
    parts = load_clips(SignsConfig(dataset_dir=folder), ["train", "test"])
    train, test = parts["train"], parts["test"]
    known = [hands(train.read(i)) for i in range(len(train))]
    nearest = []
    for i in range(len(test)):
        clip = hands(test.read(i))
        nearest.append(train.sentences[int(np.argmin([warped(clip, other) for other in known]))])
    [(gloss, _)] = Counter(g for s in train.sentences for g in s).most_common(1)
    learnt = set(train.sentences)
    table = {
        "nearest sentence": scores(test.sentences, nearest, learnt),
        f"always {gloss}": scores(test.sentences, [(gloss,)] * len(test), learnt),
    }
    text = json.dumps(table, indent=1) + "\n"
    (Path(__file__).parent / "boston104.json").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1])
