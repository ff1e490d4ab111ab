"""Methods without a network on small N-MNIST: logistic regression and nearest neighbours.

    python results/events-yardsticks/yardsticks.py ../shared/data/nmnist-small

Both see the events of each pixel and polarity, counted over the whole recording: 2,312 numbers,
as they are or as their roots. Form and penalty are chosen by five folds within the 1,000 training
recordings; the 100 test recordings are scored once. The number of neighbours is 3. The same is done
for each of the five folds of results/events-folds, where all 1,100 recordings are answered once.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "events-folds"))
from folds import divided

from mshnet.events.events_config import EventsConfig
from mshnet.events.recognition import load_recordings
from mshnet.task import wilson

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
FORMS = {"counts": lambda x: x, "roots": np.sqrt}


def regression(x, y, new, penalty):
    "Answers of a logistic regression with an L2 penalty, on normalised features."
    mean, spread = x.mean(0), x.std() + 1e-9
    a, b = (torch.tensor((v - mean) / spread) for v in (x, new))
    y = torch.tensor(y)
    weight = torch.zeros(a.shape[1], 10, dtype=a.dtype, requires_grad=True)
    bias = torch.zeros(10, dtype=a.dtype, requires_grad=True)
    search = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        search.zero_grad()
        loss = F.cross_entropy(a @ weight + bias, y) + penalty * weight.square().sum()
        loss.backward()
        return loss

    search.step(closure)
    return (b @ weight + bias).argmax(1).numpy()


def neighbours(x, y, new, count):
    "Answers of the nearest training recordings; of equal votes the nearest one wins."
    apart = ((new**2).sum(1)[:, None] - 2 * new @ x.T) + (x**2).sum(1)
    near = y[np.argsort(apart, 1, kind="stable")[:, :count]]
    votes = (near[:, :, None] == near[:, None, :]).sum(2)
    return near[np.arange(len(new)), votes.argmax(1)]


def folds(method, x, y, *more):
    "Accuracy over five folds of the training recordings."
    fold = np.random.default_rng(0).permutation(len(y)) % 5
    right = [
        method(x[fold != k], y[fold != k], x[fold == k], *more) == y[fold == k] for k in range(5)
    ]
    return float(np.concatenate(right).mean())


def chosen(method, values, x, y):
    "What each form and value reaches in five folds, and the best of them."
    tried = {
        f"{form} {value:g}": folds(method, make(x), y, value)
        for form, make in FORMS.items()
        for value in values
    }
    best = max(tried, key=tried.get)
    return tried, best, FORMS[best.split()[0]], type(values[0])(float(best.split()[1]))


def main(folder):
    "Choose, then score once."
    config = EventsConfig(dataset_dir=folder, output_dir="runs/yardsticks")
    data = load_recordings(config, ["train", "test"])
    x, new = (
        np.stack([d.frames(i).sum(0, dtype=float).ravel() for i in range(len(d))])
        for d in data.values()
    )
    y, truth = (np.array(d.labels) for d in data.values())
    every, labels = np.concatenate([x, new]), np.concatenate([y, truth])
    fold = divided(labels)
    found = {}
    for name, method, values in (
        ("logistic regression", regression, PENALTIES),
        ("3 nearest neighbours", neighbours, (3,)),
    ):
        tried, best, make, value = chosen(method, values, x, y)
        right = int((method(make(x), y, make(new), value) == truth).sum())
        low, high = wilson(right, len(truth))
        found[name] = {"folds": tried, "chosen": best, "accuracy": right / len(truth)}
        found[name] |= {"accuracy_low": round(low, 4), "accuracy_high": round(high, 4)}
        right = 0
        for k in range(5):
            part, rest = fold == k, fold != k
            _, _, make, value = chosen(method, values, every[rest], labels[rest])
            answers = method(make(every[rest]), labels[rest], make(every[part]), value)
            right += int((answers == labels[part]).sum())
        low, high = (round(v, 4) for v in wilson(right, len(labels)))
        whole = {"right": right, "accuracy": right / len(labels)}
        found[name]["five folds"] = whole | {"accuracy_low": low, "accuracy_high": high}
    content = {"training recordings": len(y), "test recordings": len(truth), **found}
    file = Path(__file__).with_name("yardsticks.json")
    file.write_text(json.dumps(content, indent=1) + "\n")
    print(file.read_text())


if __name__ == "__main__":
    main(sys.argv[1])
