"""Train the weights that come with the library, and write their file and their card.

    python tools/pretrain.py DATA [FOLDER] [SETTING=VALUE ...]
    python tools/pretrain.py card
    python tools/pretrain.py ship RUN

DATA holds nuaa-sirst/, nudt-sirst/, irstd-1k/ (only scored) and clutter/images/. FOLDER
(runs/pretrained) gets the training set, the run, and at the end pretrained.safetensors and
pretrained.json. Run it again to resume, also after status 75: the time was over. Test lists are
never trained on; they are scored once, at the end. `card` writes mshnet/pretrained.md from
tools/pretrained.md and results/pretrained/*/pretrained.json; the file of continued ships. `ship`
makes a run the pretrained weights of its task, with weights of two axes or more as float16.

Training set: both training lists, the frames without a target, and synthetic scenes, half of them
without a target. An epoch sees one crop of an image, so images larger than 640 pixels are cut into
pieces. One image in ten is held out, whole: these choose the threshold and show the calibration.
After the first training, patches around its false alarms on the training images are added, and it
is trained once more, briefly. The file has a weighted mean of both sets of weights.
"""

import mshnet  # noqa: F401  before torch, which reads once how its threads are to wait

# isort: split
import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy import ndimage
from scores import cells

from mshnet.core import Settings, UserError, configure
from mshnet.data import load_data, splits
from mshnet.evaluate import Detector, evaluate, trained_model
from mshnet.export import safetensors_bytes
from mshnet.files import digest, write_atomic, write_json
from mshnet.metrics import BINS, Found, Histogram, objects, pd_fa
from mshnet.predict import detections, predict_frame
from mshnet.recipe import Config
from mshnet.scenes import background, scene, warm
from mshnet.task import Trained
from mshnet.train import average, train
from mshnet.weights import weights_file

SETS = ("nuaa-sirst", "nudt-sirst")
ORIGINS = "nuaa", "nudt", "irstd", "clutter", "scene", "drone-ir"
SCENES = 200  # half of them without a target
HELD_OUT = 10  # one image in so many
PIECE = 640  # pixels, the longest side of a training image
MOST_ALARMS = 0.2  # false alarms a held-out frame without a target, at the kept threshold
TOP = Path(__file__).resolve().parent.parent
ALARMS, REAL = "alarms per empty frame", "alarms per real empty frame"  # not a synthetic scene
CURVE = "pd", "alarms a frame"  # of tools/judge.py
RECIPE = {"augment": "robust", "crop": "native", "target_share": 0.9}
RECIPE |= {"epochs": 90, "eval_every": 90}
AGAIN = {"lr": 0.0003, "epochs": 6, "eval_every": 6}  # with a patch around each false alarm
PATCH = 192  # pixels
SECOND = 0.75  # the share of the second training's weights in the file
MULTISCALE = 0.3, 0.3, 3.0, 2.0  # see `mshnet.predict.predict_frame`

Picture = tuple[str, np.ndarray, np.ndarray]  # name, pixels, mask


def pictures(data: Path) -> Iterator[Picture]:
    "Every training image. Test lists are not read."
    yield from listed(data, SETS)
    yield from without_target(data)


def listed(data: Path, sets: Sequence[str]) -> Iterator[Picture]:
    "The images of training lists."
    for name in sets:
        parts, findings = load_data(Config(dataset_dir=str(data / name)), ["train"])
        findings.raise_or_warn()
        split = parts["train"]
        for key, pair in zip(split.names, split.pairs, strict=True):
            yield f"{name}_{key}", *pair


def without_target(data: Path) -> Iterator[Picture]:
    "The frames without a target, and the scenes."
    frames = sorted((data / "clutter" / "images").glob("*.png"))
    if not frames:
        raise UserError(f"{data / 'clutter' / 'images'}: no frames without a target (*.png)")
    for file in frames:
        pixels = np.asarray(Image.open(file).convert("L"))
        yield f"clutter_{file.stem}", pixels, np.zeros_like(pixels)
    for i in range(SCENES):
        rng = np.random.default_rng([5, i])
        if i < SCENES // 2:
            yield f"scene_{i:03d}", *scene(rng, 256)
        else:
            pixels = background(rng, 256) + warm(rng, 256)
            pixels += rng.normal(scale=rng.uniform(1, 3), size=pixels.shape)
            yield f"scene_{i:03d}", np.uint8(pixels.clip(0, 255)), np.zeros((256, 256), np.uint8)


def save_pair(folder: Path, name: str, image: np.ndarray, mask: np.ndarray) -> None:
    "Write an image and its mask of 0 and 1."
    for kind, pixels in (("images", image), ("masks", mask * np.uint8(255))):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / kind / f"{name}.png")


def pieces(height: int, width: int, most: int = PIECE) -> list[tuple[slice, slice]]:
    "The rectangles of at most so many pixels a side into which an image is cut."
    rows, columns = -(-height // most), -(-width // most)
    return [
        np.s_[
            height * i // rows : height * (i + 1) // rows,
            width * j // columns : width * (j + 1) // columns,
        ]
        for i, j in np.ndindex(rows, columns)
    ]


def write_pictures(
    pictures: Callable[[], Iterable[Picture]],
    folder: Path,
    group: Callable[[str], str] = str,  # of names that are held out together
) -> None:
    "Write images as a data set; of each origin one group in ten is held out, whole."
    if (folder / "test.txt").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    names: dict[str, list[str]] = {"trainval": [], "test": []}
    groups: dict[str, dict[str, int]] = {}  # of each origin: its groups, by number
    for name, pixels, mask in pictures():
        seen = groups.setdefault(name.split("_")[0], {})
        if seen.setdefault(group(name), len(seen) + 1) % HELD_OUT == 0:
            save_pair(folder, name, pixels, mask)
            names["test"].append(name)
            continue
        for i, cut in enumerate(pieces(*mask.shape)):
            names["trainval"].append(f"{name}_{i}")
            save_pair(folder, names["trainval"][-1], pixels[cut], mask[cut])
    for part, listed in names.items():
        (folder / f"{part}.txt").write_text("".join(f"{name}\n" for name in listed))


def write_patches(detector: Detector, pairs: Iterable[Any], folder: Path, least: int = 1) -> None:
    "Add patches to a data set: around each false alarm on images, of `least` pixels or more."
    names: list[str] = []
    for image, mask in pairs:
        near = ndimage.binary_dilation(mask > 0, iterations=3)
        for row in detections(predict_frame(detector, image), detector.threshold).rows():
            top, left, bottom, right = row["box"]
            if near[top:bottom, left:right].any() or row["area"] < least:
                continue
            starts = np.round(row["centroid"]) - PATCH // 2
            starts = np.maximum(np.minimum(starts, np.array(mask.shape) - PATCH), 0).astype(int)
            cut = tuple(slice(start, start + PATCH) for start in starts)
            names.append(f"hard_{len(names):04d}")
            save_pair(folder, names[-1], image[cut], mask[cut])
    with (folder / "trainval.txt").open("a") as file:
        file.writelines(f"{name}\n" for name in names)


def write_hard(detector: Detector, folder: Path, hard: Path) -> None:
    "Write the same data set with a patch around each false alarm on its training images."
    if (hard / "test.txt").exists():
        return
    shutil.rmtree(hard, ignore_errors=True)
    shutil.copytree(folder, hard, ignore=shutil.ignore_patterns("test.txt"))
    write_patches(detector, splits(Config(dataset_dir=str(folder)))["train"].pairs, hard)
    shutil.copy(folder / "test.txt", hard)


def counts(folder: Path, group: Callable[[str], str] = str) -> dict[str, int]:
    "How many images, or groups, of each origin are trained on and held out."
    said = {}
    for part, word in (("trainval", "trained"), ("test", "held")):
        names = (folder / f"{part}.txt").read_text().split()
        if part == "trainval":
            said["hard_trained"] = sum(name.startswith("hard") for name in names)
            names = [name.rsplit("_", 1)[0] for name in names]  # not the number of the piece
        for origin in ORIGINS:
            said[f"{origin}_{word}"] = len({group(x) for x in names if x.startswith(origin)})
    return said


def iou_from(histogram: Histogram, threshold: float) -> float:
    "IoU of all pixels, for `prob >= threshold`."
    start = round(threshold * BINS)
    hit, false = histogram.counts[:, start:].sum(1)
    return float(hit / (histogram.counts[0].sum() + false))


def held_out(detector: Detector, folder: Path) -> dict[str, Any]:
    "IoU, Pd and Fa at many thresholds on held-out frames at their own size; how often 0.7 is 0.7."
    split = splits(Config(dataset_dir=str(folder)))["test"]
    thresholds = [round(0.05 * i, 2) for i in range(1, 20)]
    total, histogram = [Found(0, 0, 0)] * len(thresholds), Histogram()
    alarms = {kind: np.zeros(len(thresholds)) for kind in (ALARMS, REAL)}
    pixels, empty = 0, Counter[str]()
    for name, (image, mask) in zip(split.names, split.pairs, strict=True):
        prob = predict_frame(detector, image).astype(np.float64)
        found = pd_fa(prob[None], [objects(mask > 0)], thresholds, "exact")
        total = [a + b for a, b in zip(total, found, strict=True)]
        pixels += prob.size
        if not mask.any():
            for kind in [ALARMS] if name.startswith("scene") else [ALARMS, REAL]:
                alarms[kind] += [len(objects(prob > t)) for t in thresholds]
                empty[kind] += 1
        histogram.add(prob, mask > 0)
    rows = [
        {"threshold": t, "pd": f.matched / f.targets, "fa": f.false_pixels * 1e6 / pixels}
        | {"iou": iou_from(histogram, t)}
        | {kind: float(alarms[kind][i] / max(empty[kind], 1)) for kind in alarms}
        for i, (t, f) in enumerate(zip(thresholds, total, strict=True))
    ]
    return {"thresholds": rows, "calibration": calibration(histogram)}


def calibration(histogram: Histogram) -> list[dict[str, Any]]:
    "Mean probability, share of target pixels and number of pixels in ten steps of probability."
    middle = (np.arange(BINS) + 0.5) / BINS  # of each bin
    target, pixels = histogram.counts[0], histogram.counts.sum(0)
    tenths = (x.reshape(10, -1).sum(1).tolist() for x in (pixels * middle, target, pixels))
    return [
        {"said": round(total / max(n, 1), 4), "true": round(right / max(n, 1), 4), "pixels": n}
        for total, right, n in zip(*tenths, strict=True)
    ]


def choose_threshold(rows: list[dict[str, float]]) -> float:
    "The one nearest to 0.5 with few enough false alarms; if none has, that with the fewest."
    fewest = min(row[ALARMS] for row in rows)
    good = [row for row in rows if row[ALARMS] <= max(MOST_ALARMS, fewest)]
    return min(good, key=lambda row: abs(row["threshold"] - 0.5))["threshold"]


def half_precision(model: torch.nn.Module) -> None:
    "Weights of two axes or more become float16; batch norm and biases stay float32, they are few."
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.data = weight.data.half()
    assert all(value.isfinite().all() for value in model.state_dict().values())


def ship(run: str) -> None:
    "Make the kept weights of a run the pretrained ones of its task."
    trained = trained_model(run)
    half_precision(trained.model)
    file = weights_file("pretrained", trained.task)
    write_atomic(file, safetensors_bytes(trained))
    print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB")


def card(found: list[dict[str, Any]]) -> str:
    "The model card of the first of several weights, with the scores of all of them."
    first = found[0]
    kept = next(r for r in first["thresholds"] if r["threshold"] == first["threshold"])
    scores = [
        f"| {title} | {name} | {' | '.join(cells(f['scores'][name]['scores']))} |"
        for title, f in zip(("file", "seed 0", "seed 1", "seed 2"), found, strict=True)
        for name in f["scores"]
    ]
    calibration = [
        f"| {c['said']:.2f} | {c['true']:.2f} | {c['pixels']:,} |" for c in first["calibration"]
    ]
    thresholds = [
        f"| {r['threshold']:.2f} | {r['pd']:.3f} | {r['fa']:.1f} |"
        for r in first["thresholds"]
        if round(r["threshold"] * 100) % 10 == 0 or r is kept
    ]
    judged = json.loads((TOP / "results/pretrained/continued/judged.json").read_text())
    before = judged["second edition"]["last"]
    columns = [sensor[k] for sensor in (before, judged["file"]["clips"]) for k in CURVE]
    curve = [
        f"| {t:g} | {' | '.join(f'{column[i]:.2f}' for column in columns)} |"
        for i, t in enumerate(before["thresholds"])
        if t in (0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.99)
    ]
    template = (TOP / "tools" / "pretrained.md").read_text()
    return template.format(
        recipe=RECIPE,
        again=AGAIN,
        counts=first["counts"],
        kept=kept,
        most=MOST_ALARMS,
        curve="\n".join(curve),
        scores="\n".join(scores),
        calibration="\n".join(calibration),
        thresholds="\n".join(thresholds),
    )


def main(words: list[str]) -> int:
    "Train, choose the threshold, score the test lists, write the file and what the card needs."
    if words == ["card"]:
        files = sorted((TOP / "results").glob("pretrained/*/pretrained.json"))
        text = card([json.loads(file.read_text()) for file in files])
        (TOP / "mshnet" / "pretrained.md").write_text(text)
        return 0
    if words[:1] == ["ship"]:
        if len(words) != 2:
            raise UserError("write python tools/pretrain.py ship RUN")
        ship(words[1])
        return 0
    places = [Path(word) for word in words if "=" not in word]
    if not places:
        raise UserError("write python tools/pretrain.py DATA [FOLDER] [SETTING=VALUE ...]")
    data, folder = places[0], places[1] if len(places) > 1 else Path("runs/pretrained")
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    write_pictures(lambda: pictures(data), folder / "data")
    own = {"dataset_dir": str(folder / "data"), "output_dir": str(folder / "run")}
    config = configure({**RECIPE, **own, **settings})
    begun = train(config)
    if not begun.finished:
        return 75  # as the status of `mshnet train`
    first = begun.folder / "best.pt"
    write_hard(Detector(first, config.device, config.precision), folder / "data", folder / "hard")
    own = {"dataset_dir": str(folder / "hard"), "output_dir": str(folder / "again")}
    config = configure({**RECIPE, **AGAIN, **own, **settings, "weight_path": str(first)})
    run = train(config)
    if not run.finished:
        return 75  # as the status of `mshnet train`
    trained, model = trained_model(run.folder), trained_model(first).model
    average(model, trained.model, SECOND)
    numbers = counts(folder / "hard")
    finish(replace(trained, model=model), config, data, folder / "data", folder, numbers)
    return 0


def finish(
    trained: Trained,
    config: Settings,
    data: Path,
    held: Path,  # the data set whose test list is its held-out part
    folder: Path,
    numbers: dict[str, int],  # of images, by `counts`
) -> None:
    "Choose the threshold, score the test lists, write the file and what the card needs."
    half_precision(trained.model)
    detector = Detector(trained.model, config.device, config.precision)
    detector.multiscale = MULTISCALE
    found = held_out(detector, held)
    threshold = choose_threshold(found["thresholds"])
    trained = replace(trained, threshold=threshold, multiscale=MULTISCALE)
    file = folder / "pretrained.safetensors"
    write_atomic(file, safetensors_bytes(trained))
    scores = {}
    for name in (*SETS, "irstd-1k"):
        test = Config(dataset_dir=str(data / name), weight_path=str(file), device=config.device)
        result = evaluate(test)
        scores[name] = {"line": str(result.scores), "scores": result.scores.as_dict()}
        scores[name]["protocol"] = result.protocol
        print(f"{name:12}{result.scores}")
    found |= {"threshold": threshold, "scores": scores, "config": config.recipe()}
    found |= {"counts": numbers, "sha256": digest(file)}
    write_json(folder / "pretrained.json", found)
    print(f"threshold {threshold}\nfile      {file}")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"pretrain: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as stopped:
        number = getattr(stopped, "number", 2)  # 0: the time was over
        sys.exit(128 + number if number else 75)
