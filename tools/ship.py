"""Make a run the pretrained weights of its task.

    python tools/ship.py RUN

Writes mshnet/pretrained-TASK.safetensors, weights of two axes or more as float16.
"""

import sys
from pathlib import Path

from pretrain import half_precision

from mshnet.core import UserError
from mshnet.evaluate import trained_model
from mshnet.export import safetensors_bytes
from mshnet.files import write_atomic
from mshnet.weights import weights_file


def main(words: list[str]) -> int:
    "Write the file, and print its name."
    if len(words) != 1:
        raise UserError("write python tools/ship.py RUN")
    trained = trained_model(Path(words[0]))
    file = weights_file("pretrained", trained.task)
    half_precision(trained.model)
    write_atomic(file, safetensors_bytes(trained))
    print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"ship: {error}", file=sys.stderr)
        sys.exit(2)
