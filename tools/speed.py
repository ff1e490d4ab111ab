"""The benches of results/ as one page of tables. `make build` calls it by tools/nbs.py.

Writes results/SPEED.md from every results/NAME/bench.json. It imports nothing of the library, which
may not be built yet. Every number is measured, but those of 400 epochs, which follow from them.
"""

import json
from pathlib import Path
from typing import Any

from scores import markdown_table

EPOCHS = 400  # of the paper's recipe
DATA_SETS = {  # images to train with and to test with, as commonly split
    "NUAA-SIRST": (213, 214),
    "NUDT-SIRST": (663, 664),
    "IRSTD-1k": (800, 201),
}
SIDE = 256  # of their images in training and scoring
HEAD = """<!-- made from results/*/bench.json by make build: edit tools/speed.py -->

# Speed and memory

Each number was measured by `mshnet bench` on the machine that its folder names.
[The guide](../nbs/guides/speed.ipynb) explains the columns. A device that is not here was not
measured. Measure yours: a new bench is a new folder, nothing is typed in."""
PROJECTED = """What 400 epochs of the paper's recipe would take, projected from the times above at
the batch size that is fastest, without the start and the checkpoints. An epoch trains all training
images in whole batches and scores the test list once."""
FURTHER = "What each further image of a batch takes in training, from the peaks above:"

Benches = dict[str, dict[str, Any]]  # contents by the name of their folder
Rows = list[list[str]]


def read_benches(results: Path) -> Benches:
    "Every bench that timed something."
    found = {p.parent.name: json.loads(p.read_text()) for p in sorted(results.glob("*/bench.json"))}
    return {name: content for name, content in found.items() if not content["problem"]}


def milliseconds(row: dict[str, Any]) -> float:
    "Our time for an image."
    return 1e3 * float(row["seconds_per_image"]["ours"])


def machines(benches: Benches) -> str:
    "What each bench was measured on."
    rows = []
    for name, content in benches.items():
        found, size = content["environment"], content["config"]["crop_size"]
        system = f"{found['system']}, {found['cores']} cores"
        data = f"{content['data']}; {size}x{size} pixels"
        rows.append([f"`{name}`", found["device"], system, found["packages"]["torch"], data])
    return markdown_table(["folder", "device", "machine", "torch", "data"], rows)


def speeds(benches: Benches) -> str:
    "Training at each batch size, and scoring."
    rows: Rows = []
    for name, content in benches.items():
        for row in content["rows"]:
            ours, roof = milliseconds(row), row["roofline"]
            plain = row["seconds_per_image"].get("plain")
            batch = "" if f"batch {row['batch']}" in row["what"] else f", batch {row['batch']}"
            rows.append(
                [
                    *(f"`{name}`", row["what"] + batch, f"{ours:.4g}", f"{1e3 / ours:.3g}"),
                    *([f"{1e3 * plain:.4g}", f"{row['ratio']:.1f}"] if plain else ["-", "-"]),
                    f"{roof:.0%}" if roof else "-",
                ]
            )
    head = ["folder", "what", "ms an image", "images/s", "plain script, ms", "times as fast"]
    return markdown_table([*head, "of the limit"], rows)


def starts(benches: Benches) -> str:
    "Time to the first step, and peak memory by batch size."
    rows: Rows = []
    for name, content in benches.items():
        for row in content["starts"]:
            ours, plain = row["ours"], row.get("plain", {})
            first = ours.get("error") or f"{ours['seconds']:.1f}"
            peaks = [f"{x['peak'] / 2**20:.0f}" if "peak" in x else "-" for x in (ours, plain)]
            rows.append([f"`{name}`", str(row["batch"]), first, *peaks, row["memory"]])
    head = ["folder", "batch", "first step after, s", "peak, MiB", "plain script, MiB", "memory"]
    return markdown_table(head, rows)


def growth(benches: Benches) -> str:
    "Memory of each further image, between the smallest and the largest batch."
    rows: Rows = []
    for name, content in benches.items():
        rooms = [(row["batch"], row["ours"].get("peak")) for row in content["starts"]]
        known = sorted((batch, peak) for batch, peak in rooms if peak)
        if len(known) > 1:
            (few, low), (many, high) = known[0], known[-1]
            more = f"{(high - low) / (many - few) / 2**20:.0f}"
            rows.append([f"`{name}`", content["environment"]["device"], more])
    return markdown_table(["folder", "device", "MiB"], rows)


def hours(benches: Benches) -> str:
    "400 epochs of the known data sets; images of another size allow no such projection."
    rows: Rows = []
    for name, content in benches.items():
        if {content["config"]["base_size"], content["config"]["crop_size"]} != {SIDE}:
            continue
        fast = min((r for r in content["rows"] if r["kind"] == "train"), key=milliseconds)
        score = next(milliseconds(r) for r in content["rows"] if r["kind"] == "scores")
        batch = fast["batch"]
        for data, (train, test) in DATA_SETS.items():
            epoch = (train // batch * batch * milliseconds(fast) + test * score) / 1e3
            whole, minutes = divmod(int(EPOCHS * epoch) // 60, 60)
            counts = [str(batch), data, f"{train} + {test}"]
            rows.append([f"`{name}`", *counts, f"{epoch:.0f} s", f"{whole} h {minutes:02d} min"])
    head = ["folder", "batch", "data set", "images", "an epoch", f"{EPOCHS} epochs"]
    return markdown_table(head, rows)


def page(results: Path) -> str:
    "The page of all benches."
    found = read_benches(results)
    parts = [HEAD, "## Machines", machines(found), "## Speed", speeds(found)]
    parts += ["## Start and memory", starts(found), FURTHER, growth(found)]
    return "\n\n".join([*parts, f"## {EPOCHS} epochs", PROJECTED, hours(found)]) + "\n"
