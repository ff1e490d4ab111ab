"""Make a run the pretrained weights of its task: ship.py RUN.

Writes mshnet/pretrained-TASK.safetensors, weights of two axes or more as float16.
"""

import sys
from dataclasses import replace
from pathlib import Path

from pretrain import half_precision

from mshnet.evaluate import trained_model
from mshnet.export import safetensors_bytes
from mshnet.files import write_atomic
from mshnet.weights import weights_file


def main(words: list[str]) -> int:
    "Write the file, and print its name."
    trained = trained_model(Path(words[0]))
    file = weights_file("pretrained", trained.task)
    trained = replace(trained, model=half_precision(trained.model))
    write_atomic(file, safetensors_bytes(trained))
    print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
