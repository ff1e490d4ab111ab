"""Speed and scores of an exported file in 8-bit integers: python int8.py DATA FOLDER OUT.json

DATA is IRSTD-1k; FOLDER has float.onnx and int8.onnx (`mshnet export`, without and with --int8).
Every eighth training image, one thread, the runtimes in turns on each image; one image size.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
import openvino
import torch
from PIL import Image

from mshnet.evaluate import Detector
from mshnet.metrics import Tally

data, folder, out = map(Path, sys.argv[1:])
names = (data / "trainval.txt").read_text().split()[::8]
torch.set_num_threads(1)
detector = Detector("pretrained", "cpu", "fp32")
core, options = openvino.Core(), onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
how = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}


def programs(name: str) -> dict:
    "Functions from an image to its probabilities."
    session = onnxruntime.InferenceSession(folder / f"{name}.onnx", options)
    model = core.read_model(folder / f"{name}.onnx")
    model.reshape([1, 3, 512, 512])
    compiled = core.compile_model(model, "CPU", how)
    return {
        f"onnxruntime, {name}": lambda x: session.run(["probability"], {"image": x})[0],
        f"OpenVINO, {name}": lambda x: compiled(x)["probability"],
    }


run = {"PyTorch": lambda x: detector(torch.from_numpy(x)).numpy()}
run |= programs("float") | programs("int8")
tallies, seconds = {name: Tally() for name in run}, {name: [] for name in run}
for name in names:
    image = np.asarray(Image.open(data / "IRSTD1k_Img" / f"{name}.png").convert("L"))
    mask = np.asarray(Image.open(data / "IRSTD1k_Label" / f"{name}.png").convert("L")) > 127
    pixels = np.repeat(image[None, None], 3, 1)
    for kind, program in run.items():
        start = time.process_time()
        prob = torch.from_numpy(np.array(program(pixels)))
        seconds[kind].append(time.process_time() - start)
        tallies[kind].add(prob - 0.5, torch.from_numpy(mask)[None, None])
table = {}
for kind, tally in tallies.items():
    ratio = np.median(np.divide(seconds[kind], seconds["PyTorch"]))
    table[kind] = {"processor time beside PyTorch": round(float(ratio), 3)} | tally.scores().as_dict()
versions = {m.__name__: m.__version__ for m in (torch, onnxruntime, openvino)}
out.write_text(json.dumps({"versions": versions, "table": table}, indent=1) + "\n")
