"""The tool that turns text into notebooks, library and README, on small projects of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import TOP

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
# ![scores](../results/a.png) [core](00_core.ipynb)

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
    "nbs/00_core.py": CORE,
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
    "What a check says of the generated files."
    made = nbs.products(root)
    return [*nbs.stale(root, made), *nbs.orphans(root, made)]


def names(text):
    "The cell ids of a percent text."
    return nbs.ids(nbs.jupytext.reads(text, fmt=nbs.PERCENT).cells)


# Building


def test_two_builds_make_the_same_bytes(built, tmp_path):
    "Random ids would make every build a change to review."
    put(tmp_path)
    first, second = nbs.products(tmp_path), nbs.products(tmp_path)
    assert first == second
    assert {(built / name).read_bytes().decode() for name in first} == set(first.values())


def test_a_second_build_writes_no_file(project):
    "Times of untouched files stay, so make and editors are not misled."
    before = snapshot(project)
    nbs.build(project)
    assert snapshot(project) == before


def test_exported_cells_name_where_they_come_from(built):
    "The header is what a reader of the library searches for."
    text = (built / "mshnet/core.py").read_text()
    assert "# %% ../nbs/00_core.ipynb #area\ndef area(" in text
    assert "__all__ = ['area']" in text


def test_a_notebook_of_a_workload_is_exported_to_its_folder(tmp_path):
    "With what makes the folder a package."
    for name, text in {"settings.ini": SETTINGS, "nbs/00_core.py": CORE}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "nbs/eit").mkdir()
    text = CORE.replace("default_exp core", "default_exp eit.config")
    (tmp_path / "nbs/eit/00_config.py").write_text(text)
    made = nbs.products(tmp_path)
    assert "def area" in made["mshnet/eit/config.py"] and "mshnet/core.py" in made
    assert "mshnet/eit/__init__.py" in made


def test_main_module_is_exported(built):
    "`python -m mshnet` needs the dunder file, with imports inside the package."
    text = (built / "mshnet/__main__.py").read_text()
    assert "from .core import area" in text
    assert 'if __name__ == "__main__":' in text


def test_version_follows_settings(built):
    assert (built / "mshnet/__init__.py").read_text() == '__version__ = "1.2.3"\n'


def test_readme_shows_prose_and_code_with_links_from_the_top(built):
    text = (built / "README.md").read_text()
    assert text.startswith(nbs.README_NOTE.format("nbs/index.py"))
    assert "https://github.com/someone/mshnet/tree/main" in text
    assert "![scores](results/a.png) [core](nbs/00_core.ipynb)" in text
    assert "```python\nfrom mshnet.core import area\n\narea(2.0)\n```" in text
    assert "not shown" not in text


def test_a_second_language_has_its_readme_and_guides_name_the_repository(project):
    "Links between the notebooks become links between the files at the top."
    put(
        project,
        **{
            "nbs/index.zh-CN.py": "# %% [markdown]\n# # 目录\n# [English](index.ipynb) {{repo}}\n",
            "nbs/guide_a.py": "# %% [markdown]\n# # A\n#\n# {{repo}} [a](index.zh-CN.ipynb)\n",
        },
    )
    assert nbs.main(["build"], project) == 0
    text = (project / "README.zh-CN.md").read_text(encoding="utf-8")
    assert text.startswith(nbs.README_NOTE.format("nbs/index.zh-CN.py"))
    assert "[English](README.md) someone/mshnet" in text
    assert (
        "someone/mshnet [a](index.zh-CN.ipynb)"
        in book(project, "nbs/guide_a.ipynb").cells[0].source
    )
    assert complaints(project) == []


def test_notebooks_hold_no_outputs_and_are_valid(built):
    for path in built.rglob("*.ipynb"):
        nb = nbformat.read(path, as_version=4)
        nbformat.validate(nb)
        assert not any(cell.get("outputs") for cell in nb.cells), path.name


@pytest.mark.parametrize("home", ["", "#| default_exp core\n"])
def test_a_module_without_its_own_name_is_refused(tmp_path, capsys, home):
    "nbdev would only warn, or overwrite the other module."
    put(tmp_path, **{"nbs/01_more.py": f"# %%\n{home}x = 1\n"})
    assert nbs.main(["build"], tmp_path) == 2
    assert "01_more" in capsys.readouterr().err


# Cell ids


def test_an_empty_markdown_cell_has_an_id():
    assert names("# %% [markdown]\n#\n\n# %% [markdown]\n#\n") == ["p-empty", "p-empty-2"]


def test_colliding_headings_have_different_ids():
    text = "".join(f"# %% [markdown]\n# ## {name}\n\n" for name in ("a", "a", "a 2", "a"))
    assert names(text) == ["h-a", "h-a-2", "h-a-2-2", "h-a-3"]


@pytest.mark.parametrize("source", ["!!!", "'é'", "x" * 200, "def " + "f" * 200 + "(): pass"])
def test_ids_are_what_nbformat_allows(source):
    "Letters, digits, - and _, at most 64 of them."
    text = "".join(f"# %%\n{source}\n\n" for _ in range(3))
    for name in names(text):
        assert nbs.re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)


# Runners


def test_parameters_tag_and_accelerator_survive(built):
    "Papermill looks for the tag, Colab for the accelerator."
    nb = book(built, "nbs/run/colab.ipynb")
    assert nb.metadata.accelerator == "GPU"
    assert nb.metadata.colab == {"gpuType": "A100"}
    assert [c.metadata.tags for c in nb.cells if "parameters" in nbs.tags(c)] == [["parameters"]]


def test_a_variant_changes_defaults_and_keeps_comments(built):
    nb = book(built, "nbs/run/local.ipynb")
    [cell] = [c for c in nb.cells if "parameters" in nbs.tags(c)]
    assert cell.source.splitlines() == [
        'device = "cpu"  # "auto" # or cpu',
        "epochs: int = 7  # times over",
        "rate = 0.5",
    ]


def test_a_default_without_its_parameter_is_refused(project, capsys):
    "A default that nobody reads would be a setting that silently does nothing."
    (project / nbs.VARIANTS).write_text(VARIANTS.replace("epochs = 7", "epochz = 7"))
    assert nbs.main(["build"], project) == 2
    said = capsys.readouterr().err
    assert "[local] sets epochz = 7" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("place", ["local", "colab", "kaggle"])
def test_cells_go_to_the_places_of_their_tags(built, place):
    text = "\n".join(c.source for c in book(built, f"nbs/run/{place}.ipynb").cells)
    assert ("%pip install" in text) == (place == "colab")
    assert ("no install here" in text) == (place != "colab")


def test_a_tag_for_an_unknown_place_is_refused(project, capsys):
    (project / nbs.RUNNER).write_text(RUNNER.replace("only:colab", "only:collab"))
    assert nbs.main(["build"], project) == 2
    assert "only:collab" in capsys.readouterr().err


def test_an_unknown_table_of_a_variant_is_refused(project, capsys):
    (project / nbs.VARIANTS).write_text(VARIANTS.replace("parameters =", "parameter ="))
    assert nbs.main(["build"], project) == 2
    assert "[local.parameter]" in capsys.readouterr().err


def test_tokens_are_replaced_in_prose_and_install_cells_only(built):
    "Doubled braces in other code are Python's own."
    nb = book(built, "nbs/run/colab.ipynb")
    assert nb.cells[0].source == "# Colab (colab, Google)"
    assert "git+https://github.com/someone/mshnet@main" in nb.cells[1].source
    assert nb.cells[-1].source == 'f"{{rate}} {epochs}"'


@pytest.mark.parametrize("name", ["nbs/index.py", "nbs/run/runner.py"])
def test_an_unknown_token_is_refused(project, capsys, name):
    (project / name).write_text(FILES[name].replace("# # ", "# # {{nothing}} ", 1))
    assert nbs.main(["build"], project) == 2
    said = capsys.readouterr().err
    assert "{{nothing}}" in said
    assert name in said


# Checking


def test_check_passes_on_what_was_built_and_changes_nothing(project, capsys):
    before = snapshot(project)
    assert nbs.main(["check"], project) == 0
    assert snapshot(project) == before
    assert "as a rebuild makes them" in capsys.readouterr().out


def test_check_fails_and_changes_nothing_when_something_is_stale(project, capsys):
    (project / "nbs/00_core.py").write_text(CORE.replace("radius 1 has", "radius 1  has"))
    before = snapshot(project)
    assert nbs.main(["check"], project) == 1
    assert snapshot(project) == before
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("nbs/00_core.ipynb: stale")


@pytest.mark.parametrize(
    "name",
    [
        "nbs/00_core.ipynb",
        "nbs/index.ipynb",
        "nbs/run/local.ipynb",
        "mshnet/core.py",
        "mshnet/__init__.py",
        "mshnet/_modidx.py",
        "README.md",
    ],
)
def test_check_finds_a_stale_file(built, tmp_path, name):
    "One changed byte at the end of any generated file is enough."
    made = nbs.products(built)
    nbs.write(tmp_path, made)
    with (tmp_path / name).open("a") as file:
        file.write("\n")
    assert [line.split(": ")[0] for line in nbs.stale(tmp_path, made)] == [name]


def test_check_finds_a_missing_file(project):
    (project / "mshnet/core.py").unlink()
    assert [line.split(": ")[0] for line in complaints(project)] == ["mshnet/core.py"]


@pytest.mark.parametrize("name", ["nbs/07_old.ipynb", "nbs/run/old.ipynb", "mshnet/old.py"])
def test_check_finds_an_orphan(project, name):
    "A renamed text would leave its old notebook and module behind, still importable."
    (project / name).write_text("")
    assert [line.split(",")[0] for line in complaints(project)] == [f"{name}: orphan"]


def test_hand_written_marker_and_caches_are_no_orphans(project):
    (project / "mshnet/py.typed").write_text("")
    (project / "mshnet/__pycache__").mkdir()
    (project / "mshnet/__pycache__/core.cpython-311.pyc").write_text("")
    assert complaints(project) == []


def test_check_finds_unformatted_text_lint_and_types(project, capsys):
    bad = CORE.replace("math.pi * radius**2", "math.pi*radius ** 2 + undefined")
    (project / "nbs/00_core.py").write_text(bad)
    nbs.build(project)
    assert nbs.main(["check"], project) == 1
    said = capsys.readouterr().out
    assert "nbs/00_core.py: not formatted: run `make build`" in said
    assert "nbs/00_core.ipynb:cell 4:4:" in said  # ruff sees the name
    assert "mshnet/core.py:" in said  # and so does mypy


def test_check_finds_badly_written_tests(project):
    (project / "tests").mkdir()
    (project / "tests/test_a.py").write_text("x=1\n")
    assert len(nbs.hand_written(project)) == 1
    assert nbs.hand_written(project, mend=True) == []


def test_the_tables_follow_the_benches(project, capsys):
    "A changed bench makes them stale; one that cannot be used is one line."
    assert nbs.tables(project) == {}
    found = project / "results/mine/bench.json"
    found.parent.mkdir(parents=True)
    shutil.copy(TOP / "results/bench-cpu/bench.json", found)
    assert nbs.main(["format"], project) == 0
    assert "| `mine` | train, batch 4 | 104.4 |" in (project / nbs.TABLES).read_text()
    assert nbs.main(["check"], project) == 0
    found.write_text(found.read_text().replace("EPYC", "Zen"))
    capsys.readouterr()
    assert nbs.main(["check"], project) == 1
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("results/SPEED.md: stale: made from results/*/bench.json")
    found.write_text("{}")
    assert nbs.main(["build"], project) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("nbs.py: results/SPEED.md: a bench.json in results/ cannot be used")


# Formatting and pulling


def test_format_is_idempotent(tmp_path):
    "The text that formatting writes is the text that it would write again."
    ugly = CORE.replace(" * ", "*").replace("\n\n\n# %%", "\n# %%")
    ugly += "\n\n# %% [markdown]\n\n# %% [raw]\n# a\n\n# %%\n"
    put(tmp_path, **{"nbs/00_core.py": ugly})
    assert nbs.main(["format"], tmp_path) == 0
    once = snapshot(tmp_path)
    assert nbs.main(["format"], tmp_path) == 0
    assert snapshot(tmp_path) == once
    assert "math.pi * radius**2" in (tmp_path / "nbs/00_core.py").read_text()
    assert nbs.unformatted(tmp_path) == []


def test_format_leaves_tokens_tags_and_magics(built):
    assert (built / nbs.RUNNER).read_text() == RUNNER
    assert (built / "nbs/index.py").read_text() == INDEX


def test_pull_brings_back_an_edit_made_in_colab(project):
    "Colab adds outputs, its own metadata and ids; only the edit may come back."
    path = project / "nbs/00_core.ipynb"
    nb = nbformat.read(path, as_version=4)
    nb.cells[-1].source = "area( 2.0 )"
    nb.cells[-1].outputs = [nbformat.v4.new_output("stream", text="12.6")]
    nb.cells[-1].metadata = {"id": "abc", "outputId": "1", "colab": {"height": 1}}
    nb.metadata["colab"] = {"provenance": []}
    nbformat.write(nb, path)
    assert nbs.main(["pull", str(path)], project) == 0
    assert (project / "nbs/00_core.py").read_text() == CORE.replace("area(1.0)\n", "area(2.0)\n")
    assert complaints(project) == []
    assert "colab" not in path.read_text()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nbs/run/local.ipynb", "runner.py"),
        ("nbs/index.ipynb", "tokens"),
        ("nbs/00_core.py", "not a notebook"),
        ("nbs/99_none.ipynb", "no .py beside it"),
    ],
)
def test_pull_refuses_what_it_would_spoil(project, capsys, name, why):
    before = snapshot(project)
    assert nbs.main(["pull", str(project / "nbs/00_core.ipynb"), str(project / name)], project) == 2
    assert why in capsys.readouterr().err
    assert snapshot(project) == before


# The command line


def test_lesson_cells_run_and_failures_show(project, capfd):
    "Names may be given as module, notebook or path."
    assert nbs.main(["test"], project) == 0
    wrong = CORE.replace("area(1.0)\n", "area(1.0)\nassert False, 'lesson fails'\n")
    (project / "nbs/00_core.py").write_text(wrong)
    nbs.build(project)
    assert nbs.main(["test", "nbs/15_main.py"], project) == 0
    assert nbs.main(["test", "core"], project) == 1
    assert "lesson fails" in capfd.readouterr().err


def test_an_unknown_notebook_is_named(project, capsys):
    assert nbs.main(["test", "corr"], project) == 2
    assert "no notebook corr; there are 00_core, 15_main" in capsys.readouterr().err


@pytest.mark.parametrize("line", [[], ["bulid"], ["build", "extra"], ["pull"], ["build", "--all"]])
def test_misuse_is_status_2_without_a_traceback(line):
    tool = Path(nbs.__file__)
    done = subprocess.run([sys.executable, str(tool), *line], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "usage" in done.stderr


def test_a_text_that_is_no_python_is_told_in_one_line(project, capsys):
    (project / "nbs/00_core.py").write_text(CORE.replace("def area(", "def area(("))
    assert nbs.main(["build"], project) == 2
    assert capsys.readouterr().err.count("\n") == 1
