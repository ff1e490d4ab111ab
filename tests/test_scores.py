"The page of scores: made from the runs in results/, and quoted by README as it is."

import json
import re
from statistics import mean

import pytest
from conftest import TOP
from scores import all_runs, groups, page


def put(folder, seed, iou, epochs=3, done=3):
    "A run with scores in each epoch; 0.1 less in all but the last."
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"seed": seed, "epochs": epochs}))
    entries = []
    for epoch in range(done):
        value = iou if epoch == done - 1 else iou - 0.1
        scores = {"iou": value, "niou": 0.5, "f1": 0.5, "pd": 0.9, "fa": 10.0}
        entries.append({"epoch": epoch, "split": "test", "scores": scores})
    (folder / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_seeds_of_one_recipe_are_a_row(tmp_path):
    "Mean, lowest, highest and the collapsed; a run that was stopped early does not count."
    for seed, iou in ((0, 0.7), (1, 0.02), (2, 0.6)):
        put(tmp_path / f"steady/seed{seed}", seed, iou)
    put(tmp_path / "steady/seed3", 3, 0.9, done=2)
    (tmp_path / "steady/seed3/scores.json").write_text('{"scores": {"iou": 0.9}}')
    put(tmp_path / "selected", 6, 0.9)
    assert [run["seed"] for run in groups(tmp_path)["steady"]] == [0, 1, 2]
    text = page(tmp_path)
    assert "| steady | 3 | 0, 1, 2 | 0.440 | 0.020 | 0.700 | 0.900 | 10.0 | 1 of 3 |" in text
    assert "| 0 | 0.700 | 0.500 | 0.500 | 0.900 | 10.0 |" in text
    assert "0.900 | 0.500" not in text


def test_other_tasks_have_their_own_scores(tmp_path):
    "A section for each recipe, with the mean of every score; no row among detection's."
    for seed, accuracy in ((0, 0.9), (1, 0.95)):
        folder = tmp_path / f"digits/seed{seed}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"task": "events", "seed": seed}))
        scores = {"scores": {"accuracy": accuracy, "spikes": 4000.5}}
        (folder / "scores.json").write_text(json.dumps(scores))
    assert groups(tmp_path) == {}
    text = page(tmp_path)
    assert "| seed | accuracy | spikes |" in text and "| mean | 0.925 | 4000 |" in text


def test_the_page_is_that_of_the_runs():
    "`make build` was called after the last run was added."
    assert (TOP / "results" / "SCORES.md").read_text(encoding="utf-8") == page(TOP / "results")
    how = {(c["choose"], c.get("rule", "exact")) for *_, c in all_runs(TOP / "results")}
    assert how == {("last", "exact")}  # as the page says


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_readme_quotes_the_page(name):
    "Every row of its results, digit by digit, and of the recipe and the data that it names."
    rows = (TOP / "results" / "SCORES.md").read_text(encoding="utf-8").splitlines()
    text = (TOP / name).read_text(encoding="utf-8")
    text = re.sub(r"\b(\d)/(\d) \|", r"\1 of \2 |", text)  # in the Chinese one
    quoted = re.findall(r"(?m)^\| ([\w-]+).*? \| `(\w+)` \| (\d+)(?: of |/)?\d* \| (\d.*\|)$", text)
    assert len(quoted) == 5
    for data, recipe, epochs, row in quoted:
        names = (f"{data.lower()}-{recipe}{end}" for end in ("", f"-{epochs}", "-scored"))
        assert any(f"| {group} | {epochs} | {row}" in rows for group in names), data


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_readme_quotes_the_scores_at_native_size(name):
    "Mean, lowest and highest IoU, mean Pd and Fa."
    text = (TOP / name).read_text(encoding="utf-8")
    for recipe in ("nuaa-sirst-steady-scored", "irstd-1k-steady"):
        files = TOP.glob(f"results/{recipe}/seed?/scores-native.json")
        found = [json.loads(file.read_text())["scores"] for file in files]
        iou, pd, fa = ([scores[k] for scores in found] for k in ("iou", "pd", "fa"))
        values = [f"{x:.3f}" for x in (mean(iou), min(iou), max(iou), mean(pd))]
        assert f"| 0, 1, 2 | {' | '.join(values)} | {mean(fa):.1f} |" in text


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_readme_quotes_the_means_without_twins(name):
    "Of NUDT-SIRST by the default recipe and the paper's, and of IRSTD-1k."
    means = []
    for recipe in ("nudt-sirst-steady", "nudt-sirst-paper-60", "irstd-1k-steady"):
        files = TOP.glob(f"results/{recipe}/seed?/scores-without-twins.json")
        ious = [json.loads(file.read_text())["scores"]["iou"] for file in files]
        assert len(ious) == 3
        means.append(f"{mean(ious):.3f}")
    assert re.search(".{1,20}".join(means), (TOP / name).read_text(encoding="utf-8"))
