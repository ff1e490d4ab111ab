"""The documents: links lead somewhere, commands parse, figures are in results/, errors exist; the
site is built from copies. Each check is shown to catch a bad example, then applied."""

import ast
import configparser
import functools
import importlib
import json
import re
import shlex
import sys
import threading
from pathlib import Path

import docs
import jupytext
import nbformat
import pytest
import test_nbs
import yaml
from conftest import make_dataset, refused

import nbs
from mshnet.cli import parse
from mshnet.core import UserError, configure, settings_class
from mshnet.evaluate import evaluate
from mshnet.model import MSHNet
from mshnet.recipe import Config

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"(?ms)^```(\w*)\n(.*?)^```")
GUIDES = sorted(f"guides/{p.stem}" for p in (ROOT / "nbs/guides").glob("*.py"))
TRANSLATED = ["index", *(n.removesuffix(".zh-CN") for n in GUIDES if "zh" in n)]
COMMAND = re.compile(r"^(?:!|nohup |python -m |\.venv/bin/|[A-Z_]+=\S+ )*(?=mshnet\b|papermill\b)")
OTHERS = {"pip", "python3", "py", "git", "cd", "conda", "make", "gcloud", "torchrun", "tail"}
OTHERS |= {"aws", "az", "source", "jupyter", ".venv\\Scripts\\activate"}


# What the checks look at


def prose(name):
    "The Markdown of a guide or of an index."
    cells = nbs.read(ROOT / "nbs" / f"{name}.py").cells
    return "\n\n".join(c.source for c in cells if c.cell_type == "markdown")


def blocks(text, *languages):
    "The code blocks of a text in these languages."
    return [code for language, code in FENCE.findall(text) if language in languages]


def words(text):
    "The words of a text that a reader reads: no code, table, badge or address."
    plain = re.sub(r"\]\([^)]*\)", "]", FENCE.sub("", text))
    return [w for ln in plain.splitlines() if not ln.startswith(("|", "[![")) for w in ln.split()]


def lines(text):
    "The commands of a text: those of its blocks, and the whole ones in backticks."
    found = [ln for code in blocks(text, "bash") for ln in code.splitlines()]
    rest = FENCE.sub("", text)
    found += [c for c in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", rest) if re.match(r"mshnet \w", c)]
    return [ln.split("  #")[0].strip() for ln in found if ln.strip() and ln.strip()[0] != "#"]


def fault(line):
    "What is wrong with a command; empty: nothing, or it is no command of ours."
    words = shlex.split(line.removesuffix("&").removesuffix(" ..."), posix="\\" not in line)
    if "torchrun" in words[:1] and "-m" in words:
        words = words[words.index("-m") + 1 :]
    elif "gcloud" in words[:1]:
        return fault(words[-1])
    elif not COMMAND.match(line):
        return "" if words[0] in OTHERS else f"{words[0]} is no command that is known here"
    else:
        words = shlex.split(COMMAND.sub("", line.removesuffix("&")))
    if words[0] == "papermill":
        return papermill_fault(words)
    try:
        if not {"--help", "--help-all", "--version"} & set(words):
            _, written, file, _ = parse(words[1:])
            fields = settings_class(written.get("task") or "detect").model_fields
            configure({k: v for k, v in written.items() if k in fields}, file)
    except UserError as error:
        mine = "no file or folder fits this pattern" in str(error)  # a run of the reader
        return "" if mine else f"{line}: {error}"
    return ""


def papermill_fault(words):
    "What is wrong with a call of papermill."
    names = [words[i + 1] for i, word in enumerate(words) if word == "-p"]
    strange = [f"{name} is no field of Config" for name in names if name not in Config.model_fields]
    return "; ".join(strange if (ROOT / words[1]).exists() else [*strange, f"no {words[1]}"])


def python_fault(code):
    "What is wrong with a block of Python: its syntax, a name that it imports, a setting."
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except SyntaxError as error:
        return f"{error.msg}: {error.text}"
    found = [
        f"{node.module} has no {alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module.startswith("mshnet")
        for alias in node.names
        if not hasattr(importlib.import_module(node.module), alias.name)
    ]
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    calls = [n for n in calls if getattr(n.func, "id", "") in ("Config", "configure")]
    given = [a for n in calls for a in n.args if isinstance(a, ast.Dict)]
    names = [k.arg for n in calls for k in n.keywords] + [k.value for a in given for k in a.keys]
    return "; ".join(found + [f"no field {n}" for n in names if n not in Config.model_fields])


@functools.cache
def numbers(*patterns):
    "Every number in the texts of these files."
    texts = [p.read_text("utf-8") for pattern in patterns for p in sorted(ROOT.glob(pattern))]
    return {n for text in texts for n in re.findall(r"\d+(?:\.\d+)?", text)}


@functools.cache
def measured():
    "Numbers in the tables of results/, rounded scores, memory, sizes; MSHNet's published scores."
    tables = ("**/*.md", "history.csv", "cross-camera/**/*.txt", "predict-large/*.json")
    found, top = set(numbers(*(f"results/{name}" for name in tables))), ROOT / "results"
    kept = [top.rglob("scores*.json"), top.glob("*/bench.json"), top.glob("*/beside.json")]
    read = {path: json.loads(path.read_text()) for some in kept for path in some}
    for path, content in read.items():
        for value in content.get("scores", {}).values():
            if isinstance(value, int | float):
                found |= {str(value), f"{value:.1f}", f"{value:.2f}", f"{value:.3f}"}
        if path.name == "bench.json":  # in MiB; before the first step some
            found |= {f"{row['peak'] / 2**20:.0f}" for row in content["memory"]}
            found |= {f"{round(row['before'] / 2**20, -2):.0f}" for row in content["memory"]}
        if path.name == "beside.json":
            found |= {f"{row['ratio']:.1f}" for row in content["rows"] if "ratio" in row}
    found |= {"0.8055", "0.9799", "11.77", "0.6716", "0.9388", "15.03", "0.6787", "0.9286", "8.88"}
    size = sum(p.numel() for p in MSHNet().parameters())
    words = (8, 16)  # bytes a weight: itself and Adagrad's sum; itself, AdamW's two and its average
    return found | {f"{n * size / 1e6:.0f}" for n in words}  # MB


def figures(text):
    "Numbers of a text: those that someone measured, estimated or scored; and other decimals."
    plain = re.sub(r"https?://\S+|`[^`\n]*`|\]\([^)]*\)|Python 3\.\d+", "", FENCE.sub("", text))
    number, units = r"(?<![\w.])(\d+(?:\.\d+)?)", r"(?:ms|MiB|GiB|GB|MB|minutes|min|h|分钟)"
    found = re.findall(rf"(?a){number}(?= (?:(?:to|到) \d[\d.]* )?{units}(?!\w))", plain)
    found += re.findall(
        rf"(?a)(?<![\w.])\d+(?:\.\d+)? (?:to|到) (\d+(?:\.\d+)?)(?= {units}(?!\w))", plain
    )
    found += re.findall(r"(?:IoU|Pd|Fa|F1)(?: is)? (\d+\.\d+)(?!\d)", plain)
    rest = re.findall(r"(?a)(?<![\w.])(\d+\.\d+)(?![\w.]|\.\d)", plain)
    return sorted(set(found)), sorted(set(rest) - set(found))


def literals():
    "Every text in the library, with ... where a value is put in."
    found = set()
    for path in sorted((ROOT / "mshnet").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [getattr(v, "value", "...") for v in node.values]
                found.add("".join(p if isinstance(p, str) else "..." for p in parts))
    return found


def quoted(text):
    "The lines that a table of errors quotes in its first column."
    found = []
    for row in re.findall(r"(?m)^\| (.+?) \|", text):
        found += [q for q in re.findall(r"`([^`]+)`", row) if len(q.replace("...", "")) > 12]
    return found


def said(quote, known):
    "Whether the library can say this: each piece between ..., : and ; stands in one of its texts."
    parts = re.split(r"\.\.\.|[:;]", quote)
    pieces = [part.strip() for part in parts if len(part.strip(" ,()=")) > 3]
    return bool(pieces) and all(any(piece in text for text in known) for piece in pieces)


# The claims


def test_every_link_and_badge_leads_to_a_file(tmp_path):
    "In notebooks and documents: relative ones, those of the repository itself, badges."
    (tmp_path / "settings.ini").write_text(test_nbs.SETTINGS)
    (tmp_path / "nbs/run").mkdir(parents=True)
    for name in ("nbs/10_core.ipynb", "nbs/run/local.ipynb", "a.png"):
        (tmp_path / name).touch()
    ours, colab = "https://github.com/someone/mshnet", "https://colab.research.google.com/github"
    kaggle = "https://kaggle.com/kernels/welcome?src="
    good = ["10_core.ipynb", "../a.png", "#here", "https://else.org/x", f"{ours}/blob/main/a.png"]
    good += [ours, f"{colab}/someone/mshnet/blob/main/nbs/run/local.ipynb", "run"]
    good += [f"{kaggle}{ours}/blob/main/nbs/run/local.ipynb"]
    bad = ["01_core.ipynb", "a.png", f"{ours}/blob/main/b.png", "/a.png", "http://x", "file:a"]
    bad += [f"{colab}/other/mshnet/blob/main/nbs/run/local.ipynb", "../../a.png"]
    bad += [f"{kaggle}{ours}/blob/main/nbs/run/x.ipynb", f"{ours}/tree/main/c"]
    for target in good:
        assert docs.broken(tmp_path, "nbs/index.ipynb", f"a [b]({target}) ![c]({target})") == []
    for target in bad:
        assert docs.broken(tmp_path, "nbs/index.ipynb", f'[![b](x.png)]({target}) "c"')[1:], target
        assert docs.broken(tmp_path, "nbs/index.ipynb", f'<img src="{target}">'), target
    assert docs.broken(tmp_path, "nbs/index.ipynb", "`[a](b.md)`\n```\n[a](b.md)\n```") == []
    texts = docs.texts(ROOT)
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "nbs/run/local.ipynb"} <= set(texts)
    assert [bad for page, text in texts.items() for bad in docs.broken(ROOT, page, text)] == []


@pytest.mark.parametrize("user", [nbs.PLACEHOLDER, "alice"])
def test_an_address_is_everywhere_or_nowhere(tmp_path, user):
    """What `make build` makes of `user` in settings.ini: badges and lines that lead to files of
    this repository, or, for the placeholder, none that lead to a stranger."""
    for path in ROOT.iterdir():
        if path.name not in ("settings.ini", "README.md", "README.zh-CN.md"):
            (tmp_path / path.name).symlink_to(path)
    settings = (ROOT / "settings.ini").read_text()
    (tmp_path / "settings.ini").write_text(re.sub(r"(?m)^user = .*", f"user = {user}", settings))
    made = nbs.notebooks(tmp_path)
    pages = {k: "\n".join(c.source for c in nb.cells if c.cell_type == "markdown")
             for k, nb in made.items()}  # fmt: skip
    pages |= {to: nbs.readme(made[name], name) for name, to in nbs.READMES.items()}
    for name in nbs.READMES.values():
        (tmp_path / name).write_text(pages[name])
    assert [bad for page, text in pages.items() for bad in docs.broken(tmp_path, page, text)] == []
    text = "\n".join(pages.values())
    repo, branch = nbs.settings(tmp_path)["repo"], nbs.settings(tmp_path)["branch"]
    named = ["its badge", f"git clone https://github.com/{repo}", f"git+https://github.com/{repo}"]
    named += [f"github/{repo}/blob/{branch}/nbs/run/tpu_setup.ipynb"]
    named += [f"src=https://github.com/{repo}/blob/{branch}/nbs/run/kaggle_gpu.ipynb"]
    assert [line in text for line in named] == [user == "alice"] * 5
    assert (f"{nbs.PLACEHOLDER}/" in text, "git clone" in text) == (False, user == "alice")
    assert len(words("| a |\n[b c](d e)\n```bash\ng\n```\n**h**")) == 3
    assert len(words(pages["README.md"])) <= 900


def test_badges_and_citation_do_not_lie():
    "Licence and Python are those of setup.py; the citation has the version, and the paper twice."
    parser = configparser.ConfigParser()
    parser.read(ROOT / "settings.ini", encoding="utf-8")
    ours = parser["DEFAULT"]
    for name in nbs.READMES.values():
        text = (ROOT / name).read_text(encoding="utf-8")
        badges = re.findall(r"\[!\[([^]]+)\]\(https://img\.shields\.io/badge/([^)]+)\)\]", text)
        licence = ours["license"]
        assert badges == [
            (f"Licence: {licence}", f"licence-{licence.replace('-', '--')}-blue"),
            (f"Python: {ours['min_python']} or newer", f"python-{ours['min_python']}%2B-blue"),
        ]
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert "python_requires=f\">={cfg['min_python']}\"" in setup
    assert re.search(r"Apache License\s+Version 2\.0", (ROOT / "LICENSE").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["license"]) == (ours["version"], licence)
    [paper] = citation["references"]
    [bibtex] = blocks(prose("index"), "bibtex")
    fields = dict(re.findall(r"(\w+) = \{(.+)\}", bibtex))
    people = [f"{a['family-names']}, {a['given-names']}" for a in paper["authors"]]
    assert fields["author"] == " and ".join(people)
    assert (fields["title"], fields["year"]) == (paper["title"], str(paper["year"]))
    assert fields["pages"] == f"{paper['start']}--{paper['end']}"


@pytest.mark.parametrize("name", [*GUIDES, "index"])
def test_commands_and_python_in_the_guides_are_possible(name):
    "Each line is parsed, each value is in its range; blocks that are not executed can be imported."
    assert fault("mshnet train --epochz 3") and fault(".venv/bin/mshnet train --crop-size 250")
    assert fault("mshnet tran") and fault("papermill nbs/run/local.ipynb o.ipynb -p epochz 3")
    assert fault("papermill nbs/run/no.ipynb o.ipynb") and fault("rm -r x")
    assert fault("torchrun --nproc-per-node=2 -m mshnet train --batch 1")
    assert not fault("nohup mshnet train --epochs 3 &") and not fault("pip install x")
    assert [bad for line in lines(prose(name)) if (bad := fault(line))] == []
    assert python_fault("from mshnet.train import trian") and python_fault("a b")
    assert python_fault("Config(epochz=1)") and python_fault("configure({'epochz': 1})")
    assert not python_fault("from mshnet.core import Config\nConfig(epochs=1)")
    assert [bad for code in blocks(prose(name), "python") if (bad := python_fault(code))] == []


@pytest.mark.parametrize("name", GUIDES)
def test_figures_in_the_guides_are_in_results(name):
    "No measured or estimated number is typed that no folder holds."
    known, code = measured(), numbers("mshnet/**/*.py")
    text = "takes 2.7 to 11 minutes, 104.4 ms, 需 3.5 到 14 分钟, IoU 0.59; stops after 11.5 hours"
    assert figures(text) == (["0.59", "104.4", "11", "14", "2.7", "3.5"], ["11.5"])
    assert not set(figures("takes 9.87 minutes")[0]) & known
    typed, rest = figures(prose(name))
    assert [number for number in typed if number not in known] == []
    assert [number for number in rest if number not in known | code] == []


def test_every_error_that_is_quoted_exists():
    "A remedy for a line that nobody ever sees helps nobody."
    known = literals()
    assert said("...: there is no such file", known) and not said("no such thing as ...", known)
    pages = {"trouble": 30, "trouble.zh-CN": 30, "tpu": 5, "tpu.zh-CN": 5, "eit": 6, "events": 6}
    for name, least in {f"guides/{page}": least for page, least in pages.items()}.items():
        words = ("--", "python", "mshnet")  # of a table of flags
        text = prose(name).split("## Options of the original script")[0]
        found = [quote for quote in quoted(text) if not quote.startswith(words)]
        assert len(found) >= least
        assert [q for q in found if not said(q, known) and not (ROOT / q).exists()] == []


QUOTES = {
    "train --epochz 3": "unknown setting ...; did you mean ...?",
    "train --crop-size 250": "...=... is not possible: use ...",
    "train --mode train": "... is retired: use ...",
    "test --epochs 3": "mshnet ... has no option ...; leave it out",
    "data no-such-folder": "dataset_dir=...: there is no such folder (...); name one, or ...",
    "test --weight-path no.pt": "...: there is no such file",
    "export": "weight_path is empty: name the weights to export, such as runs/NAME/best.pt, or "
    "pretrained",
}


@pytest.mark.parametrize(("line", "quote"), QUOTES.items())
def test_the_troubleshooting_page_quotes_what_is_said(line, quote, capsys):
    "A mistake is made, and its line is the one on the page."
    pattern = ".*".join(map(re.escape, quote.split("...")))
    assert re.search(pattern, refused(capsys, line))
    assert f"`{quote}`" in prose("guides/trouble")


def test_the_fifteen_functions_are_those_of_a_scoring(tmp_path):
    "The guide's headings are functions that `evaluate` calls, in this order."
    named = re.findall(r"\d+\. `([\w.]+)`", prose("guides/fifteen"))
    assert len(named) == 15
    made = make_dataset(tmp_path / "data", train=2, test=3)
    config = Config(dataset_dir=str(made), batch_size=2, base_size=32, device="cpu")
    called = []

    def look(frame, event, _):
        "Note the functions of the library, under the names of the guide."
        if event == "call" and Path(frame.f_code.co_filename).parent.name == "mshnet":
            called.append(frame.f_code.co_qualname.removesuffix("_on_cpu"))

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        evaluate(config)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    rest = iter(called)
    assert [name for name in named if name not in rest] == []  # each after the one before it


# Two languages


def bare(code):
    "A block of code without its comments, which are translated."
    return [ln.split("  #")[0].rstrip() for ln in code.splitlines() if not ln.startswith("#")]


def apart(one, other):
    "In what a page and its translation differ, one word each; both are lists of cells."
    texts = [
        "\n\n".join(c.source for c in cells if c.cell_type == "markdown") for cells in (one, other)
    ]
    codes = [[c.source for c in cells if c.cell_type == "code"] for cells in (one, other)]
    plain = [FENCE.sub("", text) for text in texts]
    views = {
        "blocks": [[(k, bare(code)) for k, code in FENCE.findall(t)] for t in texts],
        "cells": codes,
        "headings": [re.findall(r"(?m)^(#+) ", t) for t in plain],
        "rows": [len(re.findall(r"(?m)^\|", t)) for t in plain],
        "commands": [sorted(c for c in lines(t) if c.startswith("mshnet ")) for t in texts],
        "flags": [sorted(re.findall(r"(?<=`)--[^`\n]+(?=`)", t)) for t in plain],
        "links": [sorted(re.sub(r"\.zh-CN|#.*", "", t) for t in docs.targets(t)) for t in texts],
        "decimals": [
            sorted(re.findall(r"(?a)(?<![\w.])\d+\.\d+(?![\w.])", re.sub(r"\.(?=\s)", "", t)))
            for t in plain
        ],
    }
    return [word for word, (a, b) in views.items() if a != b]


@pytest.mark.parametrize("name", TRANSLATED)
def test_a_translation_says_the_same(name):
    "Command blocks one by one, headings, executed cells, tables, links and numbers."
    one, other = (nbs.read(ROOT / "nbs" / f"{name}{end}.py").cells for end in ("", ".zh-CN"))
    assert apart(one, other) == []
    first, second = (docs.targets("\n".join(c.source for c in cells)) for cells in (one, other))
    page = Path(name).name
    assert f"{page}.zh-CN.ipynb" in first and f"{page}.ipynb" in second


def test_a_translation_that_has_fallen_behind_is_found():
    "Each way in which it can."
    page = "# %% [markdown]\n# # A\n#\n# [B](b.ipynb), `--lr`, 0.5\n#\n# | a |\n#\n# ```bash\n"
    page += "# mshnet doctor  # look\n# ```\n\n# %%\nx = 1\n"
    one = jupytext.reads(page, fmt=nbs.PERCENT).cells
    for old, new, word in [
        ("look", "看", ""),
        ("doctor", "doctor --json", "blocks"),
        ("# # A", "# ## A", "headings"),
        ("b.ipynb", "c.ipynb", "links"),
        ("b.ipynb", "b.zh-CN.ipynb", ""),
        ("--lr", "--seed", "flags"),
        ("0.5", "0.6", "decimals"),
        ("# | a |", "#", "rows"),
        ("x = 1", "x = 2", "cells"),
    ]:
        other = jupytext.reads(page.replace(old, new, 1), fmt=nbs.PERCENT).cells
        assert word in ["", *apart(one, other)] and (word or apart(one, other) == []), old


def test_the_headings_of_the_runners_are_bilingual():
    "Whoever opens one reads at least what each part is."
    both = re.compile(r"[A-Za-z].* / .*[\u4e00-\u9fff]|/ .*[A-Z]")
    for path in (ROOT / "nbs/run").glob("*.ipynb"):
        prose = "\n".join(c.source for c in nbs.read(path).cells if c.cell_type == "markdown")
        heads = re.findall(r"(?m)^#+ (.+)$", prose)
        assert len(heads) > 8 and [h for h in heads if not both.search(h)] == []


# The site, of a small project


GUIDE = """# %% [markdown]
# # Guide
#
# See [core](../10_core.ipynb#area), [a score](../../results/a.png), `[a](b.md)` and
# [all](../../settings.ini).
#
# ![scores](../../results/a.png)

# %%
print("the area")
"""
SITE = """website:
  sidebar:
    contents:
      - index.ipynb
      - section: Guides
        contents: [guides/a.ipynb]
      - section: Runners
        contents: run/*.ipynb
"""


def test_the_site_has_a_page_for_each_notebook(tmp_path, capsys):
    "With the stored outputs; the first lists all pages. What is wrong is one line."
    test_nbs.put(tmp_path, **{"nbs/guides/a.py": GUIDE, "_quarto.yml": SITE})
    (tmp_path / "results").mkdir()
    (tmp_path / "results/a.png").write_bytes(b"PNG")
    assert nbs.main(["build"], root=tmp_path) == 0
    page = tmp_path / "nbs/guides/a.ipynb"
    nb = nbs.read(page)
    nb.cells[-1].outputs = [nbformat.v4.new_output("stream", text="is 3.14")]
    nb.metadata[nbs.OUTPUTS_OF] = "1"
    page.write_text(nbs.dump(nb))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert nbs.main(["docs"], root=tmp_path) == 0
    assert "no broken links" in capsys.readouterr().out
    site = tmp_path / "_docs"
    assert {p: p.read_bytes() for p in before} == before
    guide = (site / "guides/a.html").read_text()
    assert "is 3.14" in guide and 'href="../10_core.html#area"' in guide
    assert "pictures/results/a.png" in guide and (site / "pictures/results/a.png").exists()
    assert "blob/main/settings.ini" in guide and "[a](b.md)" in guide
    core = (site / "10_core.html").read_text()
    assert "Area of a disc." in core and "default_exp" not in core
    index = (site / "index.html").read_text()
    assert 'href="guides/a.html"' in index and 'href="run/local.html"' in index
    assert 'href="../index.html"' in (site / "run/local.html").read_text()
    page.write_text(page.read_text().replace("10_core.ipynb#area", "01_core.ipynb"))
    assert nbs.main(["docs"], root=tmp_path) == 1
    said = capsys.readouterr().out
    assert "guides/a.ipynb: ../01_core.ipynb: there is no nbs/01_core.ipynb" in said
    (tmp_path / "_quarto.yml").write_text(SITE.replace("guides/a", "guides/b"))
    assert nbs.main(["docs"], root=tmp_path) == 2
    assert "lists guides/b.ipynb, and there is no such page" in capsys.readouterr().err
