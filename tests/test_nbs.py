"""The tool that turns text into notebooks, library and README, on small projects of its own."""

import base64
import io
import re

import nbformat
import numpy as np
import outputs
import pytest
from PIL import Image

import nbs

SETTINGS = """[DEFAULT]
user = someone
repo = mshnet
branch = main
author = someone
git_url = https://github.com/%(user)s/%(repo)s
doc_host = https://%(user)s.github.io
doc_baseurl = /%(repo)s
lib_name = mshnet
lib_path = mshnet
version = 1.2.3
nbs_path = nbs
recursive = True
tst_flags = slow
update_pyproject = False
"""

CORE = """# %% [markdown]
# # Core
#
# > The first module.

# %%
#| default_exp core

# %%
#| export
import math


# %%
#| export
def area(radius: float) -> float:
    "Area of a disc."
    return math.pi * radius**2


# %% [markdown]
# A disc of radius 1 has area pi:

# %%
area(1.0)
"""

MAIN = """# %% [markdown]
# # Main

# %%
#| default_exp __main__

# %%
#| export
from mshnet.core import area

# %%
#| export
#| eval: false
if __name__ == "__main__":
    print(area(1.0))
"""

INDEX = """# %% [markdown]
# # MSHNet
#
# [code](https://github.com/{{repo}}/tree/{{branch}})
# ![scores](../results/a.png) [core](10_core.ipynb)

# %%
#| hide
print("not shown")

# %%
from mshnet.core import area

area(2.0)
"""

RUNNER = """# %% [markdown]
# # {{title}} ({{name}}, {{place}})

# %% tags=["install", "only:colab"]
# %pip install -q "mshnet @ git+https://github.com/{{repo}}@{{branch}}"

# %% tags=["only:local", "only:kaggle"]
print("no install here")

# %% tags=["parameters"]
device = "auto"  # "auto" # or cpu
epochs: int = 3  # times over
rate = 0.5

# %%
f"{{rate}} {epochs}"
"""

VARIANTS = """[local]
title = {title = "Local", place = "here"}
parameters = {device = "cpu", epochs = 7}
[colab]
title = {title = "Colab", place = "Google"}
metadata = {accelerator = "GPU", colab = {gpuType = "A100"}}
[kaggle]
title = {title = "Kaggle", place = "Kaggle"}
"""

FILES = {
    "settings.ini": SETTINGS,
    "nbs/10_core.py": CORE,
    "nbs/15_main.py": MAIN,
    "nbs/index.py": INDEX,
    "nbs/run/runner.py": RUNNER,
    "nbs/run/variants.toml": VARIANTS,
}


def put(root, **changes):
    "Write a project's files, some of them changed."
    for name, text in (FILES | changes).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    "The small project, built once; read only."
    root = tmp_path_factory.mktemp("built")
    put(root)
    assert nbs.main(["format"], root) == 0
    return root


@pytest.fixture
def project(tmp_path):
    "The small project, built, for a test to change."
    put(tmp_path)
    nbs.build(tmp_path)
    return tmp_path


def snapshot(root):
    "Every file with its bytes and its time, but for the type checker's own cache."
    paths = [p for p in root.rglob("*") if p.is_file() and ".mypy_cache" not in p.parts]
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in paths}


def book(root, name):
    "A built notebook."
    return nbformat.read(root / name, as_version=4)


def complaints(root):
    "What a check reports of the generated files."
    made = nbs.products(root)
    return [*nbs.stale(root, made), *nbs.orphans(root, made)]


def names(text):
    "The cell ids of a percent text."
    return nbs.ids(nbs.jupytext.reads(text, fmt=nbs.PERCENT).cells)


# Building


def test_the_library_is_exported(built):
    "With where each cell comes from, __all__, imports inside the package, the version."
    text = (built / "mshnet/core.py").read_text()
    assert "# %% ../nbs/10_core.ipynb #area\ndef area(" in text
    assert "__all__ = ['area']" in text
    text = (built / "mshnet/__main__.py").read_text()
    assert "from .core import area" in text
    assert 'if __name__ == "__main__":' in text
    assert (built / "mshnet/__init__.py").read_text() == '__version__ = "1.2.3"\n'
    for path in built.rglob("*.ipynb"):
        nb = nbformat.read(path, as_version=4)
        nbformat.validate(nb)
        assert not any(cell.get("outputs") for cell in nb.cells), path.name


def test_a_notebook_of_a_workload_is_exported_to_its_folder(tmp_path):
    "With what makes the folder a package."
    text = CORE.replace("default_exp core", "default_exp eit.config")
    put(tmp_path, **{"nbs/eit/00_config.py": text})
    made = nbs.products(tmp_path)
    assert "def area" in made["mshnet/eit/config.py"] and "mshnet/core.py" in made
    assert "mshnet/eit/__init__.py" in made


def test_readme_shows_prose_and_code_with_links_from_the_top(built):
    text = (built / "README.md").read_text()
    assert text.startswith(nbs.README_NOTE.format("nbs/index.py"))
    assert "https://github.com/someone/mshnet/tree/main" in text
    assert "![scores](results/a.png) [core](nbs/10_core.ipynb)" in text
    assert "```python\nfrom mshnet.core import area\n\narea(2.0)\n```" in text
    assert "not shown" not in text


def test_a_second_language_has_its_readme_and_guides_name_the_repository(project):
    "Links between the notebooks become links between the files at the top."
    index = "# %% [markdown]\n# # 目录\n# [English](index.ipynb) {{repo}}\n"
    guide = "# %% [markdown]\n# # A\n#\n# {{repo}} [a](index.zh-CN.ipynb)\n"
    put(project, **{"nbs/index.zh-CN.py": index, "nbs/guides/a.py": guide})
    assert nbs.main(["build"], project) == 0
    text = (project / "README.zh-CN.md").read_text(encoding="utf-8")
    assert text.startswith(nbs.README_NOTE.format("nbs/index.zh-CN.py"))
    assert "[English](README.md) someone/mshnet" in text
    [cell] = book(project, "nbs/guides/a.ipynb").cells
    assert "someone/mshnet [a](index.zh-CN.ipynb)" in cell.source
    assert complaints(project) == []


MISTAKES = [  # a file, what is replaced in it, by what, and the words of the line
    ("nbs/10_core.py", "def area(", "def area((", "SyntaxError"),
    (nbs.VARIANTS, "epochs = 7", "epochz = 7", "[local] sets epochz = 7"),
    (nbs.VARIANTS, "parameters =", "parameter =", "[local.parameter]"),
    (nbs.RUNNER, "only:colab", "only:collab", "only:collab"),
    (nbs.RUNNER, "# # ", "# # {{no}} ", f"{nbs.RUNNER}: unknown token {{{{no"),
    ("nbs/index.py", "# # ", "# # {{no}} ", "nbs/index.py: unknown token"),
    (nbs.RUNNER, "rate = 0.5", "# %%\n# {{first.py}}", "first.py: no such file"),
    ("nbs/01_more.py", "", "# %%\nx = 1\n", "01_more"),  # nbdev would only warn
    ("nbs/01_more.py", "", "# %%\n#| default_exp core\nx = 1\n", "01_more"),  # or overwrite
]


@pytest.mark.parametrize(("name", "old", "new", "reported"), MISTAKES)
def test_a_mistake_in_a_text_is_one_line(tmp_path, capsys, name, old, new, reported):
    "A module without a name of its own, a default that nobody reads, an unknown place or token."
    put(tmp_path, **{name: FILES.get(name, "").replace(old, new, 1)})
    assert nbs.main(["build"], tmp_path) == 2
    error = capsys.readouterr().err
    assert reported in error and error.count("\n") == 1


def test_ids_come_from_content_and_differ():
    "Also those of empty cells and of equal headings: letters, digits, - and _, at most 64."
    assert names("# %% [markdown]\n#\n\n# %% [markdown]\n#\n") == ["p-empty", "p-empty-2"]
    text = "".join(f"# %% [markdown]\n# ## {name}\n\n" for name in ("a", "a", "a 2", "a"))
    assert names(text) == ["h-a", "h-a-2", "h-a-2-2", "h-a-3"]
    for source in ("!!!", "'é'", "x" * 200, "def " + "f" * 200 + "(): pass"):
        found = names("".join(f"# %%\n{source}\n\n" for _ in range(3)))
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in found), source


# Runners


def test_a_runner_has_its_place_its_defaults_and_its_machine(built):
    "Papermill looks for the tag, Colab for the accelerator. Other code keeps doubled braces."
    books = {name: book(built, f"nbs/run/{name}.ipynb") for name in ("local", "colab", "kaggle")}
    colab = books["colab"]
    assert colab.metadata.accelerator == "GPU"
    assert colab.metadata.colab == {"gpuType": "A100"}
    assert colab.cells[0].source == "# Colab (colab, Google)"
    assert "git+https://github.com/someone/mshnet@main" in colab.cells[1].source
    assert colab.cells[-1].source == 'f"{{rate}} {epochs}"'
    [cell] = [c for c in books["local"].cells if "parameters" in nbs.tags(c)]
    assert cell.metadata.tags == ["parameters"]
    assert cell.source.splitlines() == [
        'device = "cpu"  # "auto" # or cpu',
        "epochs: int = 7  # times over",
        "rate = 0.5",
    ]
    for place, nb in books.items():
        text = "\n".join(c.source for c in nb.cells)
        assert ("%pip install" in text) == (place == "colab")
        assert ("no install here" in text) == (place != "colab")


def test_a_cell_of_a_runner_may_be_a_file(tmp_path):
    "So that two runners begin with one text; its tokens are filled, its tags those of the cell."
    put(tmp_path)
    plain = nbs.runners(tmp_path)
    [line] = [line for line in RUNNER.splitlines() if "%pip" in line]
    text = RUNNER.replace(line, "# {{first.py}}")
    put(tmp_path, **{nbs.RUNNER: text, "nbs/run/first.py": f"# %%\n{line}\n"})
    assert nbs.runners(tmp_path) == plain


# Checking


def test_a_tool_that_is_killed_is_a_finding(tmp_path, monkeypatch):
    "Such as one that has no memory: no line of its own is no good sign."
    (tmp_path / "ruff").write_text("#!/bin/sh\nkill -9 $$\n")
    (tmp_path / "ruff").chmod(0o700)
    monkeypatch.setattr(nbs, "BIN", tmp_path)
    assert nbs.complaints("ruff", "check", cwd=tmp_path) == ["ruff: status -9"]


def test_check_passes_on_what_was_built_and_changes_nothing(project, capsys):
    (project / "mshnet/__pycache__").mkdir()
    (project / "mshnet/__pycache__/core.cpython-311.pyc").write_text("")
    assert nbs.main(["execute"], project) == 0
    capsys.readouterr()
    assert nbs.main(["check"], project) == 0
    assert "as a rebuild makes them" in capsys.readouterr().out
    (project / "nbs/10_core.py").write_text(CORE.replace("radius 1 has", "radius 1  has"))
    before = snapshot(project)
    assert nbs.main(["check"], project) == 1
    assert snapshot(project) == before
    assert capsys.readouterr().out.startswith("nbs/10_core.ipynb: stale")


GENERATED = ("nbs/10_core.ipynb", "nbs/index.ipynb", "nbs/run/local.ipynb", "mshnet/core.py")
GENERATED += ("mshnet/__init__.py", "mshnet/_modidx.py", "README.md")


def test_check_finds_a_stale_a_missing_and_an_orphaned_file(built, tmp_path):
    "One byte at the end of any generated file is enough. An orphan could still be imported."
    made = nbs.products(built)
    nbs.write(tmp_path, made)
    for name in GENERATED:
        (tmp_path / name).write_bytes(made[name].encode() + b"\n")
        assert [line.split(": ")[0] for line in nbs.stale(tmp_path, made)] == [name]
        (tmp_path / name).unlink()
        assert [line.split(": ")[0] for line in nbs.stale(tmp_path, made)] == [name]
        nbs.write(tmp_path, made)
    for name in ("nbs/07_old.ipynb", "nbs/run/old.ipynb", "mshnet/old.py"):
        (tmp_path / name).write_text("")
        assert [line.split(",")[0] for line in nbs.orphans(tmp_path, made)] == [f"{name}: orphan"]
        (tmp_path / name).unlink()


def test_check_finds_unformatted_text_lint_and_types(project, capsys):
    "In the texts, in the library, and in tests, which formatting mends."
    bad = CORE.replace("math.pi * radius**2", "math.pi*radius ** 2 + undefined")
    (project / "nbs/10_core.py").write_text(bad)
    (project / "tests").mkdir()
    (project / "tests/test_a.py").write_text("x=1\n")
    nbs.build(project)
    assert nbs.main(["check"], project) == 1
    reported = capsys.readouterr().out
    assert "nbs/10_core.py: not formatted: run `make build`" in reported
    assert "nbs/10_core.ipynb:cell 4:4:" in reported  # ruff sees the name
    assert "mshnet/core.py:" in reported  # and so does mypy
    assert "tests/test_a.py" in reported
    assert nbs.hand_written(project, mend=True) == []


# Outputs

LESSON = f"""{CORE}
# %%
import os
import sys

print(os.getcwd(), object())
print("progress", file=sys.stderr)

# %%
#| hide
print("hidden")
"""


def stored(project, name="nbs/10_core.ipynb"):
    "The outputs of each code cell as text."
    cells = [c for c in book(project, name).cells if c.cell_type == "code"]
    return [str(c.outputs) for c in cells]


def test_execute_stores_outputs_that_stay_until_their_code_changes(project, capsys):
    "Without what only this day and machine know; executing again changes nothing."
    put(project, **{"nbs/10_core.py": LESSON})
    assert nbs.main(["execute", str(project / "nbs/10_core.py")], project) == 0
    [*_, area, where, hidden] = stored(project)
    assert "3.14159" in area and "<object object>" in where and hidden == "[]"
    assert not any(word in where for word in (str(project), "/tmp", "progress", "0x"))
    assert nbs.older(project) == ["nbs/15_main.ipynb", "nbs/index.ipynb"]
    assert nbs.main(["execute"], project) == 0
    before = snapshot(project)
    assert nbs.main(["execute", str(project / "nbs/10_core.ipynb")], project) == 0
    assert nbs.main(["build"], project) == 0
    assert snapshot(project) == before and nbs.older(project) == complaints(project) == []
    assert stored(project, "nbs/run/local.ipynb") == ["[]"] * 3
    capsys.readouterr()
    put(project, **{"nbs/10_core.py": LESSON.replace("has area pi", "has an area of pi")})
    assert nbs.main(["build"], project) == 0
    assert stored(project)[-3:] == [area, where, "[]"]
    assert nbs.main(["check"], project) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == "nbs/10_core.ipynb: no outputs of its present cells: run `make outputs`"
    put(project, **{"nbs/10_core.py": LESSON.replace("area(1.0)", "area(2.0)")})
    assert nbs.main(["build"], project) == 0
    assert stored(project)[-3:] == ["[]", where, "[]"]


def test_a_page_that_fails_is_named_and_keeps_its_outputs(project, capsys):
    "The others are stored. A runner and a path elsewhere are no pages."
    put(project, **{"nbs/10_core.py": LESSON.replace("area(1.0)", "area('x')")})
    assert nbs.main(["execute"], project) == 1
    assert "nbs/10_core.ipynb: TypeError" in capsys.readouterr().out
    assert nbs.older(project) == ["nbs/10_core.ipynb"]
    for name in ("nbs/run/local.ipynb", "nbs/none.py", "settings.ini"):
        assert nbs.main(["execute", str(project / name)], project) == 2
        assert "no lesson or guide" in capsys.readouterr().err


def png(pixels):
    "An image as a notebook stores it."
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_figures_are_small_and_stay_where_they_hardly_differ():
    "Noise, which no palette helps; a thin coloured line; a grey image, which loses no level."
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    assert len(base64.b64decode(outputs.small(png(noise)))) <= outputs.MOST
    noise[:] = noise[..., :1]
    noise[200] = 230, 159, 0
    line = Image.open(io.BytesIO(base64.b64decode(outputs.small(png(noise))))).convert("RGB")
    assert np.ptp(np.asarray(line).astype(int), axis=2).max() > 150
    grey = np.arange(256, dtype=np.uint8)[None].repeat(8, 0)
    kept = Image.open(io.BytesIO(base64.b64decode(outputs.small(png(grey)))))
    assert (np.asarray(kept) == grey).all()
    one, near, far = (
        [nbformat.v4.new_output("display_data", {"image/png": png(grey // 2 + i), "text/plain": t})]
        for i, t in ((0, "IoU 0.7311"), (1, "IoU 0.7312"), (40, "IoU 0.7311"))
    )
    near[0].data["image/png"] = one[0].data["image/png"]
    assert outputs.alike(one, near) and not outputs.alike(one, far) and not outputs.alike(one, [])


def test_format_is_idempotent(tmp_path):
    "What formatting writes it would write again; tokens, tags and magics stay."
    ugly = CORE.replace(" * ", "*").replace("\n\n\n# %%", "\n# %%")
    ugly += "\n\n# %% [markdown]\n\n# %% [raw]\n# a\n\n# %%\n"
    put(tmp_path, **{"nbs/10_core.py": ugly})
    assert nbs.main(["format"], tmp_path) == 0
    once = snapshot(tmp_path)
    assert nbs.main(["format"], tmp_path) == 0
    assert snapshot(tmp_path) == once
    assert "math.pi * radius**2" in (tmp_path / "nbs/10_core.py").read_text()
    assert nbs.unformatted(tmp_path) == []
    assert (tmp_path / nbs.RUNNER).read_text() == RUNNER
    assert (tmp_path / "nbs/index.py").read_text() == INDEX


def test_lesson_cells_run_and_failures_show(project, capfd):
    "Names may be given as module, notebook or path; an unknown one is named."
    assert nbs.main(["test", "nbs/15_main.py"], project) == 0
    wrong = CORE.replace("area(1.0)\n", "area(1.0)\nassert False, 'lesson fails'\n")
    (project / "nbs/10_core.py").write_text(wrong)
    nbs.build(project)
    assert nbs.main(["test", "core"], project) == 1
    assert "lesson fails" in capfd.readouterr().err
    assert nbs.main(["test", "corr"], project) == 2
    assert "no notebook corr; there are 10_core, 15_main" in capfd.readouterr().err


@pytest.mark.parametrize("line", [[], ["bulid"], ["build", "--all"]])
def test_misuse_is_status_2_with_the_usage(line, capsys):
    with pytest.raises(SystemExit, match="2"):
        nbs.main(line)
    assert "usage" in capsys.readouterr().err
