"""The picture of real frames in README, and what the weights find there. For whoever changes them.

    python tools/frames.py DATA

DATA holds drone-ir/ (clips and boxes.csv: Svanström, Alonso-Fernandez, Englund, "A dataset for
multi-sensor drone detection", Data in Brief 2021, Zenodo 5500576, CC0). The middle frame of every
tenth clip is taken, if it has a box; the weights were trained on no frame of these clips. Writes
results/pretrained/frames.json (all frames) and nbs/images/frames.jpg (three of them).
"""

import json
import sys
from pathlib import Path

import numpy as np
from judge import PARTS, Box, boxes_of, in_boxes
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mshnet.evaluate import Detector
from mshnet.frames import frames_of
from mshnet.predict import detections, predict_frame

TOP = Path(__file__).resolve().parent.parent
SHOWN = {"DRONE_059": "found", "DRONE_153": "missed, and a false alarm", "BIRD_003": "missed"}
COLOURS = {"found": "#56B4E9", "false alarm": "#D55E00", "missed": "#F0E442"}
ZOOM = 24  # pixels on each side of the target, in the corner


def judged(detector: Detector, pixels: np.ndarray, boxes: list[Box]) -> list[dict[str, object]]:
    "The detections of a frame, each found or a false alarm, and the boxes that hold none."
    found = [*detections(predict_frame(detector, pixels), detector.threshold).rows()]
    held, alarms = in_boxes(boxes, [row["centroid"] for row in found])
    rows: list[dict[str, object]] = [
        {"is": "false alarm" if alarm else "found"}
        | {key: row[key] for key in ("centroid", "box", "area", "peak")}
        for row, alarm in zip(found, alarms, strict=True)
    ]
    missed = [box for i, box in enumerate(boxes) if i not in held]
    return rows + [{"is": "missed", "box": [a[0], a[2], a[1], a[3]]} for a in missed]


def draw(axes: Axes, pixels: np.ndarray, rows: list[dict[str, object]], title: str) -> None:
    "A frame with its marks, and the target enlarged in the lower corner."
    y, x = pixels.shape
    first = np.clip(np.mean(np.reshape(rows[0]["box"], (2, 2)), axis=0), ZOOM, [y - ZOOM, x - ZOOM])
    corner = axes.inset_axes((0.68, 0.02, 0.3, 0.375))
    for place in (axes, corner):
        place.imshow(pixels, cmap="gray", interpolation="nearest")
        place.set(xticks=[], yticks=[])
        for row in rows:
            top, left, bottom, right = np.add(row["box"], (-4, -4, 3, 3))
            mark = Rectangle((left, top), right - left, bottom - top, fill=False, linewidth=1.6)
            mark.set_edgecolor(COLOURS[str(row["is"])])
            place.add_patch(mark)
    corner.set(xlim=(first[1] - ZOOM, first[1] + ZOOM), ylim=(first[0] + ZOOM, first[0] - ZOOM))
    corner.spines[:].set(color="white")
    axes.set_title(title, fontsize=11)


def main(data: Path) -> None:
    "Score the frames, keep the results and draw three."
    folder, table, shown = data / "drone-ir", {}, {}
    boxes, detector = boxes_of(folder), Detector("pretrained", "cpu", "fp32")  # alike everywhere
    for clip in sorted(folder.glob("*.mp4"))[5::PARTS]:
        frames = [frame.pixels for frame in frames_of(clip)]
        if not boxes[clip.name, number := len(frames) // 2]:
            continue  # something flies there all the same
        rows = judged(detector, frames[number], boxes[clip.name, number])
        table[f"{clip.stem}_{number:04d}"] = rows
        if clip.stem in SHOWN:
            shown[clip.stem] = frames[number], rows
    kinds = [row["is"] for rows in table.values() for row in rows]
    counts = {kind: kinds.count(kind) for kind in COLOURS}
    text = json.dumps({"frames": len(table), **counts, "rows": table}, indent=1)
    (TOP / "results/pretrained/frames.json").write_text(text + "\n")
    figure = Figure(figsize=(12, 3.55), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, 3), SHOWN.items(), strict=True):
        draw(axes, *shown[name], title)
    how = {"quality": 85, "optimize": True}
    figure.savefig(TOP / "nbs/images/frames.jpg", dpi=100, pil_kwargs=how)
    print(counts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
