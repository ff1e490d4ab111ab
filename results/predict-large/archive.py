"""How many frames a second does a prediction of many files do?

python results/predict-large/archive.py DATA results/predict-large/archive.json

DATA holds drone-ir/. Three frames of every twentieth clip become PNG files, and are predicted by
the pretrained weights: by one process, by two, and by one that also writes pictures. Start it with
OMP_NUM_THREADS=1 on an otherwise idle machine.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from mshnet.frames import frames_of

WAYS = {
    "tables": ["--save", "none"],
    "tables, two processes": ["--save", "none", "--num-devices", "2"],
    "masks and overlays": [],
}
with TemporaryDirectory() as folder:
    frames = Path(folder) / "frames"
    frames.mkdir()
    for clip in sorted(Path(sys.argv[1], "drone-ir").glob("*.mp4"))[::20]:
        for frame in frames_of(clip):
            if frame.number in (0, 50, 100):
                picture = Image.fromarray(frame.pixels)
                picture.save(frames / f"{clip.stem}_{frame.number}.png")
    files = [*frames.iterdir()]
    found = {"frames": len(files), "pixels": list(picture.size)}
    found["megabytes"] = round(sum(file.stat().st_size for file in files) / 1e6, 2)
    for name, flags in WAYS.items():
        out = Path(folder) / name
        words = ["predict", frames, "--output-dir", out, "--device", "cpu", *flags]
        subprocess.run([sys.executable, "-m", "mshnet", *words], check=True)
        seconds = json.loads((out / "summary.json").read_text())["seconds"]
        found[name] = {"seconds": seconds, "frames a second": round(len(files) / seconds, 2)}
Path(sys.argv[2]).write_text(json.dumps(found, indent=1) + "\n")
