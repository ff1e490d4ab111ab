"""The tests in other environments than our own: python tools/matrix.py [ROW ...]. `make matrix`.

Each row is a Python and the versions of some packages; all others are the newest that fit. Its
environment is made from nothing in .venv-matrix/ROW, and its line in results/environments/table.csv
is written anew: versions, tests passed, failed and skipped, the names of those that failed. A row
takes a quarter of an hour and more, and some gigabytes.
"""

import configparser
import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
TABLE = TOP / "results" / "environments" / "table.csv"
SHOWN = ("torch", "numpy", "pillow", "pydantic", "ipython", "ipywidgets")
COLAB = (
    "torch==2.11.0 numpy==2.1.3 ipython==7.34.0 ipykernel==6.17.1 ipywidgets==7.7.1 "
    "traitlets==5.7.1 tornado==6.5.*"
)
KAGGLE = (  # of Kaggle/docker-python: installed_cpu_packages.txt at 1ebea3c
    "torch==2.10.0 numpy==2.4.6 scipy==1.16.3 scikit-image==0.25.2 matplotlib==3.10.0 "
    "pillow==11.3.0 pydantic==2.12.3 psutil==5.9.5 requests==2.32.4 safetensors==0.7.0 "
    "ipython==7.34.0 ipykernel==6.17.1 ipywidgets==8.1.5 jupyter_client==7.4.9 papermill==2.7.0"
)
ROWS = {  # a command of Python, and versions
    "tested": ("python3.11", "-c constraints.txt"),
    "lowest": ("python3.11", "lowest"),
    "newest": ("python3.13", ""),
    "colab": ("python3.13", COLAB),
    "kaggle": ("python3.12", KAGGLE),
}


def required(*keys: str) -> list[str]:
    "Packages of settings.ini, such as torch>=2.8."
    parser = configparser.ConfigParser()
    parser.read(TOP / "settings.ini")
    return " ".join(parser["DEFAULT"][f"{key}requirements"] for key in keys).split()


def name_of(package: str) -> str:
    "The name in torch>=2.8."
    return re.split("[=<>]", package)[0]


def wanted(versions: str) -> list[str]:
    "The words of pip for a row: its versions, and the tests' packages without other versions."
    own = versions.split()
    if versions == "lowest":
        some = required("", "notebook_", "export_", "video_")
        own = [package.replace(">=", "==") for package in some]
    named = set(map(name_of, own))
    return [*own, *(each for each in required("dev_") if name_of(each) not in named)]


def output(*words: str | Path, check: bool = True) -> str:
    "What a command prints."
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=TOP)
    if check and done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def run(row: str) -> dict[str, str]:
    "The line of a row: versions and counts."
    command, versions = ROWS[row]
    folder, python = TOP / ".venv-matrix" / row, shutil.which(command)
    if not python:
        sys.exit(f"{row}: there is no {command}; install it, or name other rows: {', '.join(ROWS)}")
    shutil.rmtree(folder, ignore_errors=True)
    output(python, "-m", "venv", folder)
    python = folder / "bin" / "python"
    words = wanted(versions)
    if first := [word for word in words if word.startswith("torch==")]:  # or the newest comes
        output(python, "-m", "pip", "install", "--quiet", *first)
    output(python, "-m", "pip", "install", "--quiet", *words, "-e", ".")
    listed = json.loads(output(python, "-m", "pip", "list", "--format", "json"))
    found = {package["name"].lower(): package["version"] for package in listed}
    tests = ["-q", "-n", "2", "--dist", "loadfile", "-m", "not nightly", "-p", "no:cacheprovider"]
    said = output(python, "-m", "pytest", *tests, check=False)
    counts = {kind: re.findall(rf"(\d+) {kind}", said)[-1:] for kind in ("passed", "skipped")}
    if not counts["passed"]:  # pytest itself has failed
        sys.exit(f"{row}: {said[-2000:]}")
    failed = sorted(set(re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.M)))
    line = {"row": row, "python": output(python, "--version").split()[1]}
    line |= {name: found.get(name, "") for name in SHOWN}
    line |= {kind: "".join(number) or "0" for kind, number in counts.items()}
    return line | {"failed": str(len(failed)), "names": " ".join(failed)}


def main(rows: list[str]) -> int:
    "Run the rows, and write each into the table when it ends."
    if unknown := set(rows) - ROWS.keys():
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    for row in rows or ROWS:
        line = run(row)
        kept = list(csv.DictReader(TABLE.open())) if TABLE.exists() else []
        lines = [*(old for old in kept if old["row"] != row), line]
        TABLE.parent.mkdir(exist_ok=True)
        with TABLE.open("w", newline="") as file:
            writer = csv.DictWriter(file, line.keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(lines, key=lambda each: [*ROWS].index(each["row"])))
        print(", ".join(f"{key} {value}" for key, value in line.items() if value), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
