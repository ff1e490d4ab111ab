"""The scores of the runs in results/, seed by seed, as one page. `make build` calls it.

    python tools/scores.py

Writes results/SCORES.md from the folders `NAME/seedN` (config.json, log.jsonl, scores.json). Runs
of one NAME differ in their seed alone, so a mean over them means something.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

TOP = Path(__file__).resolve().parent.parent
COLLAPSED = 0.05  # an IoU below this: the run predicts nothing, or everything
COLUMNS = (("iou", 3), ("niou", 3), ("f1", 3), ("pd", 3), ("fa", 1))
HEADINGS = ["IoU", "nIoU", "F1", "Pd", "Fa"]
SUMMARY = ["runs", "epochs", "seeds", "mean IoU", "lowest", "highest", "Pd", "Fa", "collapsed"]
HEAD = """<!-- made by tools/scores.py: edit that -->

# Scores

For whoever checks a number of README or of the guides. Test scores of every folder NAME/seedN
whose run has ended (`cross-camera`: held-out training images): the last epoch, exact matching,
threshold 0.5. Fa counts pixels of false alarms per million. A seed has collapsed if its IoU is
below 0.05: it predicts nothing, or everything. In the first table Pd and Fa are means of the seeds
that have not; IoU is of all.
"""


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    "A Markdown table."
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def cells(scores: dict[str, Any]) -> list[str]:
    "Scores as they stand in a table."
    return [f"{scores[key]:.{digits}f}" for key, digits in COLUMNS]


def read_run(folder: Path, config: dict[str, Any]) -> dict[str, Any] | None:  # None: it stopped
    "The last epoch's scores of a run."
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    last = max(entry["epoch"] for entry in log)
    if last + 1 < config["epochs"] and not config.get("patience"):
        return None
    scores = {e["epoch"]: e["scores"] for e in log if "scores" in e and e["split"] == "test"}
    if (folder / "scores.json").exists():
        scores[last] = json.loads((folder / "scores.json").read_text())["scores"]
    return {"epochs": last + 1, "seed": config["seed"], **scores[last]}


def all_runs(results: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    "Each run: the name that the seeds of its recipe share, its folder, its settings."
    for file in sorted(results.glob("**/seed*/config.json")):
        name = file.parent.parent.relative_to(results).as_posix()
        yield name, file.parent, {"task": "detect", **json.loads(file.read_text())}


def groups(results: Path) -> dict[str, list[dict[str, Any]]]:
    "Finished runs by the name that they share, in the order of their seeds."
    found = defaultdict(list)
    for name, folder, config in all_runs(results):
        if config["task"] == "detect" and (run := read_run(folder, config)):
            found[name].append(run)
    return {name: sorted(runs, key=lambda run: run["seed"]) for name, runs in found.items()}


def summary(name: str, runs: list[dict[str, Any]]) -> list[str]:
    "One row for all seeds of a recipe."
    iou = [run["iou"] for run in runs]
    alive = [run for run in runs if run["iou"] >= COLLAPSED] or runs
    return [
        *(name, str(runs[0]["epochs"]), ", ".join(str(run["seed"]) for run in runs)),
        *(f"{value:.3f}" for value in (mean(iou), min(iou), max(iou))),
        *(f"{mean(run['pd'] for run in alive):.3f}", f"{mean(run['fa'] for run in alive):.1f}"),
        f"{sum(value < COLLAPSED for value in iou)} of {len(runs)}",
    ]


def others(results: Path) -> list[str]:
    """A section for each recipe of another task and each scored data set (scores-NAME.json).

    Its scores seed by seed, their means, and baselines (a folder *-yardsticks has NAME.json).
    """
    found = defaultdict(list)
    for name, folder, config in all_runs(results):
        for file in sorted(folder.glob("scores*.json")) if config["task"] != "detect" else ():
            title = f"{name}{file.stem.removeprefix('scores').replace('-', ': ', 1)}"
            found[title].append((config["seed"], json.loads(file.read_text())["scores"]))
    parts = []
    for name, runs in found.items():
        names = [name for name in runs[0][1] if name != "latency_ms"]  # no score: of a machine
        rows = [[str(seed), *(f"{each[k]:.4g}" for k in names)] for seed, each in sorted(runs)]
        rows.append(["mean", *(f"{mean(each[k] for _, each in runs):.4g}" for k in names)])
        for file in sorted(results.glob(f"*-yardsticks/{name}.json")):
            for method, each in json.loads(file.read_text()).items():
                rows.append([method, *(f"{each[k]:.4g}" if k in each else "" for k in names)])
        parts += [f"## {name}", markdown_table(["seed", *names], rows)]
    return parts


def page(results: Path) -> str:
    "The page of all runs."
    found = groups(results)
    parts = [HEAD, markdown_table(SUMMARY, [summary(*group) for group in found.items()])]
    for name, runs in found.items():
        rows = [[str(run["seed"]), *cells(run)] for run in runs]
        parts += [f"## {name}", markdown_table(["seed", *HEADINGS], rows)]
    return "\n\n".join(part.strip() for part in [*parts, *others(results)]) + "\n"


if __name__ == "__main__":
    (TOP / "results" / "SCORES.md").write_text(page(TOP / "results"), encoding="utf-8")
