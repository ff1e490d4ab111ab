"""The outputs of lessons and guides: made in a copy, without what depends on day or machine.

A figure is stored with a palette and at most MOST bytes. Error streams, counts and widgets are left
out, and so are paths, times and the machine. Cells with `#| hide` or `#| output: false` keep
nothing: use that for a cell whose output differs from day to day. Where a new output differs from
the old one by rounding only, the old one stays.
"""

import base64
import os
import platform
import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from PIL import Image

import nbs

MOST = 100_000  # bytes of a figure
UNRUN = re.compile(r"(?m)^#\|\s*(eval:\s*false|slow|tpu|cuda|mps)\b")
LEFT_OUT = re.compile(r"(?m)^#\|\s*(hide\b|output:\s*false)")
FORGOTTEN = {  # what depends on the day, the machine and its speed
    re.escape(tempfile.gettempdir()) + r"/[\w-]+": "TMP",
    r" at 0x[0-9a-f]+": "",
    r"\b(\d+ h )?(\d+ min )?\d+(\.\d+)? s\b": "... s",
    r"\b\d+(\.\d+)? ([kMGT]i?B) (free|memory)\b": r"... \2 \3",
    r"\b(cpu, \w+): [^,\n']+, \d+ threads?\b": r"\1",
}
DECIMAL = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?")
PICTURE = re.compile(r"(?<=data:image/png;base64,)[A-Za-z0-9+/=\s]+")


def store(root: Path, names: list[str]) -> int:
    "Execute built pages, two at a time, and write their outputs into the repository's notebooks."
    texts, failed = {name: nbs.read((root / name).with_suffix(".py")) for name in names}, []
    with tempfile.TemporaryDirectory(prefix="mshnet-") as folder, ThreadPoolExecutor(2) as pool:
        there = Path(folder).resolve()
        for part in ("nbs", nbs.LIBRARY, "results"):
            if (root / part).is_dir():
                shutil.copytree(root / part, there / part)
        for name, problem in zip(names, pool.map(partial(execute, there), names), strict=True):
            if problem:
                failed.append(problem)
                continue
            keep(root, there, name, nbs.digest(texts[name]))
            print(f"executed {name}", flush=True)
    nbs.print_lines(failed)
    return bool(failed)


def execute(there: Path, name: str) -> str:
    "Run a notebook of the copy in place; what went wrong, in one line, or nothing."
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    path = there / name
    nb = nbformat.read(path, as_version=4)
    for cell in nb.cells:
        if cell.cell_type == "code" and UNRUN.search(cell.source):
            cell.metadata.tags = [*nbs.tags(cell), "skip-execution"]
    env = {k: v for k, v in os.environ.items() if k != "MPLBACKEND"}  # pictures go into the page
    env = {"OMP_NUM_THREADS": "1"} | env | {"PYTHONPATH": str(there)}
    how = {"coalesce_streams": True, "record_timing": False, "timeout": 1800}
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(nb, kernel_name="python3", resources=where, **how)
    client.extra_arguments = ["--log-level=ERROR"]
    try:
        client.execute(env=env)
    except CellExecutionError as error:
        return f"{name}: {error.ename}: {error.evalue}".splitlines()[0]
    except (CellTimeoutError, DeadKernelError) as error:
        return f"{name}: {type(error).__name__}"
    nbformat.write(nb, path)
    return ""


def keep(root: Path, there: Path, name: str, digest: str) -> None:
    "Write a page with its new outputs."
    nb, done = (nbformat.read(folder / name, as_version=4) for folder in (root, there))
    for cell, executed in zip(nb.cells, done.cells, strict=True):
        if cell.cell_type == "code":
            new = [] if LEFT_OUT.search(cell.source) else cleaned(executed.outputs, there)
            cell.outputs = cell.outputs if alike(cell.outputs, new) else new
    nb.metadata[nbs.OUTPUTS_OF] = digest
    nbs.write(root, {name: nbs.dump(nb)})


def cleaned(outputs: list[Any], there: Path) -> list[Any]:
    "Outputs as they are kept."
    kept: list[Any] = []
    for output in outputs:
        if output.output_type == "stream":
            if output.name == "stdout":
                kept.append(nbformat.v4.new_output("stream", text=scrubbed(output.text, there)))
        elif data := {k: mended(k, output.data[k], there) for k in wanted(output.data)}:
            kept.append(nbformat.v4.new_output(output.output_type, data))
    return kept


def wanted(data: dict[str, Any]) -> list[str]:
    "The forms of an output that are kept: no widget; of a figure or a table only that."
    rich = [k for k in ("image/png", "text/html", "text/markdown") if k in data]
    return [k for k in rich or data if "widget" not in k]


def mended(kind: str, value: Any, there: Path) -> Any:
    "One form of an output: figures small, text without places."
    if kind == "image/png":
        return small(value)
    return scrubbed(value, there) if isinstance(value, str) else value


def scrubbed(text: str, there: Path) -> str:
    "Text without paths, addresses and machine, and with the last state of a progress bar."
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    text = text.replace(f"{there}/", "").replace(str(there), ".")
    for pattern, instead in FORGOTTEN.items():
        text = re.sub(pattern, instead, text)
    text = text.replace(str(Path.home()), "~").replace(platform.node() or "\0", "HOST")
    return PICTURE.sub(lambda match: small(match[0]), text)


def picture(encoded: str) -> Image.Image:
    "The image of a figure, base64."
    return Image.open(BytesIO(base64.b64decode(encoded)))


def small(encoded: str) -> str:
    "A figure, base64, with a palette; with fewer colours, then fewer pixels, until it is small."
    image = picture(encoded)
    image = image if image.mode == "L" else image.convert("RGB")
    for colours, scale in ((256, 1.0), *((64, 0.8**i) for i in range(9))):
        file, made = BytesIO(), image.resize([round(scale * side) for side in image.size])
        if made.mode != "L" or colours < 256:
            palette = greys_and_colours(made) if colours < 256 else None
            made = made.quantize(colours, palette=palette, dither=Image.Dither.NONE)
        made.save(file, "PNG", optimize=True)
        if file.tell() <= MOST:
            break
    return base64.b64encode(file.getvalue()).decode()


def greys_and_colours(image: Image.Image) -> Image.Image:
    "A palette of 48 greys and of up to 16 colours: thin coloured lines stay in a picture."
    pixels = np.asarray(image.convert("RGB"))
    coloured = pixels[np.ptp(pixels, axis=2) > 12]
    colours = np.linspace(0, 255, 48).round().astype(int).repeat(3).tolist()
    if len(coloured):
        few = Image.fromarray(coloured[None]).quantize(16, Image.Quantize.MAXCOVERAGE)
        colours += few.getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette(colours)
    return palette


def alike(old: list[Any], new: list[Any]) -> bool:
    "Whether outputs differ by rounding only: decimals by a thousandth, figures by a shade."
    return len(old) == len(new) and all(map(same, old, new))


def same(one: Any, other: Any) -> bool:
    "Whether two outputs are of a kind and differ by rounding only."
    first, second = (x.get("data", {"text/plain": x.get("text")}) for x in (one, other))
    if one.output_type != other.output_type or first.keys() != second.keys():
        return False
    rules = {"image/png": same_figure}
    return all(rules.get(kind, same_text)(first[kind], second[kind]) for kind in first)


def same_text(one: Any, other: Any) -> bool:
    "Whether two texts differ in their decimals only, and there by a thousandth."
    if not isinstance(one, str) or not isinstance(other, str):
        return bool(one == other)
    numbers = [np.array(DECIMAL.findall(text), float) for text in (one, other)]
    return DECIMAL.sub("#", one) == DECIMAL.sub("#", other) and np.allclose(*numbers, rtol=1e-3)


def same_figure(one: str, other: str) -> bool:
    "Whether two figures of a size differ by less than eight grey levels in each 8x8 pixels."
    first, second = (np.array(picture(x).convert("RGB").reduce(8), float) for x in (one, other))
    return first.shape == second.shape and float(np.abs(first - second).max(initial=0)) < 8
