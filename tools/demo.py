"""The demo: the local runner, headless, on synthetic scenes. `make demo` calls it.

    python tools/demo.py [FOLDER] [SETTING=VALUE ...]

Writes FOLDER/local.ipynb (executed) and FOLDER/run/ (default: demo/). Called again it goes on, or
shows what is there. Settings are those of the notebook, as in `demo.py quickly epochs=2 scenes=40`.
"""

import json
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent


def main(words: list[str]) -> int:
    "Run the demo; its last line is the score line."
    import papermill
    from papermill.exceptions import PapermillExecutionError

    folders = [word for word in words if "=" not in word]
    folder = Path(folders[0] if folders else "demo")
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    settings = {name: plain(value) for name, value in settings.items()}
    run, notebook = folder / "run", folder / "local.ipynb"
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    print("training MSHNet on synthetic infrared scenes, on the CPU: a few minutes")
    try:
        papermill.execute_notebook(
            str(TOP / "nbs" / "run" / "local.ipynb"),
            str(notebook),
            {"output_dir": str(run), "device": "cpu", **settings},
            progress_bar=False,
            stdout_file=sys.stdout,
        )
    except PapermillExecutionError as error:
        print(f"{notebook}: {error.ename}: {error.evalue}", file=sys.stderr)
        return 1
    print(f"\ndone in {time.perf_counter() - start:.0f} s")
    print(f"notebook  {notebook}")
    print(f"pictures  {run / 'figures'}")
    print(json.loads((run / "scores.json").read_text())["line"])
    return 0


def plain(text: str) -> object:
    "A setting's value as papermill would read it: a number if it is one."
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
