"""The rules of the house. Each test shows that its rule catches a bad example, then applies it."""

import ast
import base64
import functools
import getpass
import importlib
import json
import platform
import re
from pathlib import Path

import jupytext
import nbformat
import yaml

import nbs
from mshnet.cli import _OPTIONS, make_parser
from mshnet.core import TASKS, settings_class
from mshnet.recipe import Config

ROOT = Path(__file__).resolve().parents[1]
DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMMON = {"root", "localhost", "runner", "user", "admin", "ubuntu", "debian", "jovyan", "colab"}
PLACE = re.compile(r"(?<![\w./~-])/(content|kaggle)\b")
FOLDERS = "home|root|Users|work|content|kaggle|tmp|mnt|var|opt"
ABSOLUTE = re.compile(rf"(?<![\w.:/~<+-])/({FOLDERS})\b")
PRIVATE = re.compile(r"\b[A-Z]:\\|\"(host|hostname|node|user|username)\"\s*:")


# What the rules look at


def cells(text):
    "The cells of a percent text."
    return jupytext.reads(text, fmt=nbs.PERCENT).cells


@functools.cache
def suite():
    "The numbered notebooks: name and cells."
    top = ROOT / "nbs"
    found = sorted([*top.glob("[0-9][0-9]_*.py"), *top.glob("*/[0-9][0-9]_*.py")])
    return {p.relative_to(top).with_suffix("").as_posix(): nbs.read(p).cells for p in found}


@functools.cache
def runners():
    "The built runner notebooks: name and cells."
    return {p.stem: nbs.read(p).cells for p in sorted((ROOT / "nbs/run").glob("*.ipynb"))}


def directives(cell):
    "The words after #| at the top of a cell."
    return re.findall(r"(?m)^#\|\s*(.+?)\s*$", cell.source) if cell.cell_type == "code" else []


def exported(cell):
    "Does the library hold this cell?"
    return any(re.match(r"exports?i?\b", word) for word in directives(cell))


@functools.cache
def parsed(source):
    "The Python of a text, without magics, and every node of it."
    lines = ["" if ln.lstrip()[:1] in ("%", "!") else ln for ln in source.splitlines()]
    tree = ast.parse("\n".join(lines))
    return tree, list(ast.walk(tree))


def nodes_of(cells):
    "Every node of the Python of some code cells."
    return [node for cell in cells for node in parsed(cell.source)[1]]


def code(cells, export=None):
    "The code cells: all, the exported ones, or the lessons."
    found = [c for c in cells if c.cell_type == "code"]
    return found if export is None else [c for c in found if exported(c) == export]


def imported(nodes):
    "Every module that syntax imports, as written: `from a import b` gives a and a.b."
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return found


def home(name):
    "The folder and the number of a notebook."
    folder, _, stem = name.rpartition("/")
    return folder, int(stem[:2])


def homes(suite):
    "The folder and the number of each module, by its dotted name."
    number = {}
    for name, found in suite.items():
        for word in (word for c in found for word in directives(c)):
            if word.startswith("default_exp "):
                number[f"mshnet.{word.split()[1]}"] = home(name)
    return number


# The rules: each returns what offends


GROUND = {"core", "files", "places", "fetch", "mirror"}  # notebooks 1x
ENGINE = {f"mshnet.{name}" for name in GROUND | {"device", "xla", "ranks", "weights"}}
ENGINE |= {f"mshnet.{name}" for name in ("run", "session", "task", "train")}  # with these, 3x


def upward_imports(name, cells, homes):
    """Imports that are relative, of the same or a higher number, or of a workload's folder.
    A workload imports its own lower numbers and the engine. A lesson imports what it shows, too."""
    folder, number = home(name)
    bad = []
    exports = imported(nodes_of(code(cells, export=True)))
    for module in sorted(imported(nodes_of(code(cells)))):
        parts = module.split(".")
        dotted = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
        found = next((m for m in dotted if m in homes), "")
        there, height = homes.get(found, ("", -1))
        inside = there == folder and height >= number + (module not in exports)
        outside = there != folder and (there or found not in ENGINE)
        if module.startswith(".") or inside or (found and outside):
            bad.append(f"{name}: {module}")
    return bad


def beyond_the_engine(name, cells):
    "Modules of the library that are imported and are not of the engine."
    every = imported(nodes_of(code(cells)))
    found = {".".join(m.split(".")[:2]) for m in every if m.startswith("mshnet.")}
    return [f"{name}: {module}" for module in sorted(found - ENGINE)]


def mentions(name, cells, pattern):
    "Code cells in which a word stands."
    return [f"{name}: {m[0]}" for c in cells for m in [re.search(pattern, c.source)] if m]


def long_exports(name, cells, most_of_a_function=40, most_of_a_class=200):
    "Exported functions, methods and classes with too many lines."
    limits = {**dict.fromkeys(DEFS, most_of_a_function), ast.ClassDef: most_of_a_class}
    found = [n for n in nodes_of(code(cells, export=True)) if isinstance(n, tuple(limits))]
    lengths = [(n.name, n.end_lineno - n.lineno + 1, limits[type(n)]) for n in found]
    return [f"{name}: {what} has {size} lines" for what, size, most in lengths if size > most]


def prose(cells):
    "Cells of prose per cell of code."
    told = [c for c in cells if c.cell_type == "markdown" and c.source.strip()]
    return len(told) / max(1, len(code(cells)))


def unshown(name, cells, elsewhere=frozenset()):
    "Exported public functions and classes that no lesson uses, and no other notebook imports."
    exports = [n for c in code(cells, export=True) for n in parsed(c.source)[0].body]
    names = [n.name for n in exports if isinstance(n, (*DEFS, ast.ClassDef)) and n.name[0] != "_"]
    run = nodes_of([c for c in code(cells, export=False) if "eval: false" not in directives(c)])
    used = {getattr(n, "id", None) or getattr(n, "attr", None) for n in run} | elsewhere
    return [f"{name}: {word}" for word in names if word not in used]


def without_example(name, cells, most=60):
    "Exported cells of many lines, empty ones not counted, with no lesson next to them."
    shown = code(cells)
    lessons = {i for i, c in enumerate(shown) if not exported(c) and "hide" not in directives(c)}
    lines = [sum(map(bool, c.source.split("\n"))) if exported(c) else 0 for c in shown]
    long = [i for i, size in enumerate(lines) if size > most and not {i - 1, i + 1} & lessons]
    return [f"{name}: {shown[i].source[:60]}" for i in long]


def borrowed(suite):
    "The names that the notebooks import from each other, or name as the text `module:name`."
    lines = [node for found in suite.values() for node in nodes_of(code(found))]
    found = {n.name for x in lines if isinstance(x, ast.ImportFrom) for n in x.names}
    texts = [x.value for x in lines if isinstance(x, ast.Constant) and isinstance(x.value, str)]
    return found | {t.split(":")[1] for t in texts if re.fullmatch(r"mshnet(\.\w+)+:\w+", t)}


def programming(name, cells):
    "def, class and for statements, which belong in the library."
    kinds = (*DEFS, ast.ClassDef, ast.For, ast.AsyncFor, ast.While)
    found = [n for n in nodes_of(code(cells)) if isinstance(n, kinds)]
    return [f"{name}: {type(n).__name__} statement" for n in found]


def wrong_parameters(name, cells):
    "A number of parameters cells that is not one, or a parameter that is no Config field."
    found = [c for c in code(cells) if "parameters" in nbs.tags(c)]
    stored = [n for n in nodes_of(found) if isinstance(n, ast.Name)]
    names = [n.id for n in stored if isinstance(n.ctx, ast.Store)]
    bad = [f"{name}: {n} is no field of Config" for n in names if n not in Config.model_fields]
    return bad + ([] if len(found) == 1 else [f"{name}: {len(found)} parameters cells"])


def private(name, text, people=()):
    "Absolute paths, and the names of machines and people."
    found = [m[0] for pattern in (ABSOLUTE, PRIVATE) for m in pattern.finditer(text)]
    found += [p for p in people if re.search(rf"\b{re.escape(p)}\b", text)]
    return [f"{name}: {word}" for word in found]


def people():
    "What this machine and its user are called, where that is no common word."
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    return {n for n in (platform.node(), user) if len(n) > 3 and n.lower() not in COMMON}


def results():
    "The text files of results/: name and text."
    found = sorted(p for p in (ROOT / "results").rglob("*") if p.is_file())
    texts = [p for p in found if not re.fullmatch(r"\.(png|jpg|pt|npz|pyc|safetensors)", p.suffix)]
    return {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in texts}


JARGON = {  # words that only we used, and the term that everybody knows
    r"writ(?:e|es|ing) (?:--|\w+ ?= ?)": "use, set, pass",
    r"floods?\b|flooded|dead (?:prediction|seed|layer)|count\w* the dead\b": "collapse; inactive",
    r"(?:predictions?|seeds?|layers?|recipe)(?: that| has| have)? die[sd]?\b": "collapse; inactive",
    r"(?<!signal-to-)clutter(?![-_]share)": "occluder, false alarm, background frame",
    r"yardsticks?\b": "baseline",
    r"near twins?\b": "near-duplicate",
    r"runners?\b": "notebook",
    r"(?:take|takes|taken|taking) along|come along|turn by turn|in turns\b": "download, alternate",
    r"first look|look from near|from near\b": "trial run; zoom",
    r"one word too many|means nothing to": "unexpected argument; has no option",
    r"the words of the guide|the guide's|the port\b": "name the document and link it",
    r"spreads?\b": "standard deviation",
    r"never rests|has died": "saturated; inactive",
    r"empty picture": "zero reconstruction",
    r"stand-ins?\b|at hand\b": "mock object; available",
    r"squash\w*": "resize",
}


def jargon(name, text):
    "Private words in prose: without code, addresses, and names of files and flags."
    plain = re.sub(r"(?ms)^```.*?^```|`[^`\n]+`|\]\([^)]*\)|https?://\S+", " ", text)
    found = [m for word in JARGON for m in re.findall(rf"(?i)(?<![\w-])(?:{word})", plain)]
    return [f"{name}: {word}" for word in found]


def helps():
    "The help of every command, for each task, whole."
    for task in TASKS:
        parser = make_parser(settings_class(task))
        [commands] = [a for a in parser._actions if a.dest == "command"]
        yield f"mshnet --task {task}", parser.format_help()
        for command, each in commands.choices.items():
            yield f"mshnet {command} --task {task}", each.format_help()


def everywhere(rule, *more):
    "What a rule finds in all numbered notebooks."
    return [bad for name, found in suite().items() for bad in rule(name, found, *more)]


# The claims


def test_imports_point_to_lower_numbers():
    "Readers go from the first notebook to the last; so does the library."
    where = {"mshnet.a": ("", 0), "mshnet.b": ("", 1), "mshnet.c": ("", 2)}
    where |= {"mshnet.core": ("", 0), "mshnet.x.a": ("x", 0), "mshnet.x.b": ("x", 1)}

    def bad(name, line, export=True):
        text = f"# %%\n{'#| export' * export}\ndef f():\n    {line}\n"
        return upward_imports(name, cells(text), where)

    lines = ["from mshnet.b import x", "import mshnet.c", "from mshnet import c"]
    for line in [*lines, "from .a import x", "from mshnet.x.a import y", "from mshnet.x import a"]:
        assert bad("01_b", line), line
        assert bool(bad("01_b", line, export=False)) == ("mshnet.b" not in line), line
    assert not bad("01_b", "from mshnet.a import x")
    for line in ("from mshnet.x.a import y", "from mshnet.core import x"):
        assert not bad("x/01_b", line), line
        assert line.endswith(" x") or bad("y/01_b", line)
    for line in ("from mshnet.a import x", "from mshnet.x.b import y", "import mshnet.x.b"):
        assert bad("x/01_b", line), line
    assert len(homes(suite())) == len(suite()) > 0  # a notebook without a module would escape
    assert everywhere(upward_imports, homes(suite())) == []


def test_the_engine_knows_no_mask():
    "Notebooks 1x and 3x import nothing of the method, the images or the detector's recipe."
    assert beyond_the_engine("a", cells("# %%\ndef f():\n    import mshnet.data\n"))
    found = {k: v for k, v in suite().items() if k[0] in "13" and k != "14_recipe"}
    assert len(found) == len(ENGINE)
    assert [bad for k, v in found.items() for bad in beyond_the_engine(k, v)] == []


def test_torch_xla_is_named_in_one_place():
    "Its successor is announced: one file to change."
    assert mentions("a", code(cells("# %%\nimport torch_xla\n")), "torch_xla")
    found = {k: v for k, v in suite().items() if k != "31_xla"}
    assert [bad for k, v in found.items() for bad in mentions(k, code(v), "torch_xla")] == []


def test_only_places_knows_the_folders_of_colab_and_kaggle():
    "Elsewhere a folder is an argument."
    for path in ("/content/drive", "/kaggle/input"):
        assert mentions("a", code(cells(f"# %%\nx = '{path}'\n")), PLACE)
    assert not mentions("a", code(cells("# %%\nx = 'https://a.b/content'\n")), PLACE)
    found = {k: code(v, export=True) for k, v in suite().items() if k != "12_places"}
    assert [bad for k, v in found.items() for bad in mentions(k, v, PLACE)] == []


def test_scripts_import_names_that_exist():
    "Those of tools/ and results/ that no test runs, such as the one that makes the weights."
    found = [*(ROOT / "tools").glob("*.py"), *(ROOT / "results").rglob("*.py")]
    nodes = [n for p in found for n in parsed(p.read_text("utf-8"))[1]]
    nodes = [n for n in nodes if isinstance(n, ast.ImportFrom)]
    ours = [n for n in nodes if str(n.module).startswith("mshnet.")]
    wanted = [(n.module, alias.name) for n in ours for alias in n.names]
    assert len(wanted) > 20
    assert [w for w in wanted if not hasattr(importlib.import_module(w[0]), w[1])] == []


def test_functions_have_at_most_40_lines_and_classes_200():
    "A function is read at one look; a class is one cell of short methods."
    short = "# %%\n#| export\n" + "def f():\n" + "    x = 1\n" * 39
    assert not long_exports("a", cells(short))
    assert long_exports("a", cells(short + "    x = 1\n")) == ["a: f has 41 lines"]
    methods = "".join(f"    def f{i}(self):\n" + "        x = 1\n" * 19 for i in range(10))
    found = long_exports("a", cells("# %%\n#| export\nclass A:\n" + methods))
    assert found == ["a: A has 201 lines"]
    assert everywhere(long_exports) == []


def test_there_is_prose_for_the_code():
    "At least 0.4 cells of prose per cell of code."
    assert prose(cells("# %% [markdown]\n#\n\n# %% [markdown]\n# a\n" + "# %%\nx\n" * 3)) < 0.4
    found = suite() | runners()
    assert {k: prose(v) for k, v in found.items() if prose(v) < 0.4} == {}


def test_every_public_name_is_shown_or_used():
    "What a library offers is demonstrated; a helper of one notebook begins with an underscore."
    text = "# %%\n#| export\ndef f(): pass\n"
    for more in ("", "# %%\n#| export\nf()\n", "# %%\n'f'\n", "# %%\n#| eval: false\nf()\n"):
        assert unshown("a", cells(text + more)) == ["a: f"]
    assert not unshown("a", cells("# %%\nf()\n" + text))
    uses = {"b": cells("# %%\nfrom mshnet.a import f\n"), "c": cells("# %%\n'mshnet.a:f'\n")}
    assert [borrowed({k: v}) for k, v in uses.items()] == [{"f"}, {"f"}]
    assert not unshown("a", cells(text), {"f"})
    assert everywhere(unshown, borrowed(suite())) == []
    long = "# %%\n#| export\n" + "x = 1\n" * 60
    for more in ("", "\n# %%\n#| hide\nx\n"):
        assert without_example("a", cells(long + more))
    assert not without_example("a", cells(long + "# %% [markdown]\n# a\n\n# %%\nx\n"))
    assert everywhere(without_example) == []


BUDGETS = ROOT / "tests" / "budgets.json"


def sizes():
    "What must not grow: lines of each notebook and of the whole, settings, entries, bytes."
    lines = {k: (ROOT / f"nbs/{k}.py").read_text("utf-8").count("\n") for k in suite()}
    whole = {"core": sum(v for k, v in lines.items() if "/" not in k)}
    for name in ("eit", "events", "signs"):
        whole[name] = sum(v for k, v in lines.items() if k.startswith(f"{name}/"))
    for name in ("tests", "tools"):
        whole[name] = sum(p.read_text("utf-8").count("\n") for p in (ROOT / name).rglob("*.py"))
    whole |= {"settings": len(Config.model_fields), "options": sum(map(len, _OPTIONS.values()))}
    whole |= {"results": len(list((ROOT / "results").iterdir()))}
    pages = [p.stat().st_size for p in (ROOT / "experiments").rglob("*") if p.is_file()]
    whole |= {"experiments": sum(pages), "CHANGELOG.md": (ROOT / "CHANGELOG.md").stat().st_size}
    return whole | lines


def test_nothing_grows():
    "A budget rises only as another falls; `python tests/test_house.py` sets all to what is there."
    budgets, found = json.loads(BUDGETS.read_text()), sizes()
    assert found.keys() == budgets.keys()
    assert {k: (v, budgets[k]) for k, v in found.items() if v > budgets[k]} == {}


def test_runners_only_call():
    "A runner is read by people who want to run it: what it does stands in the library."
    for line in ("def f(): 1", "class A: 1", "for x in y: 1", "while x: 1"):
        assert programming("a", cells(f"# %%\nif a:\n    {line}\n"))
    assert not programming("a", cells("# %%\n# !ls\n\n# %%\nx = [a for a in b]\n"))
    assert [bad for k, v in runners().items() for bad in programming(k, v)] == []


def test_runners_have_one_parameters_cell_of_config_fields():
    "Papermill takes the first such cell, and a misspelt name would be silently ignored."
    one = '# %% tags=["parameters"]\nepochs = 1\n'
    assert not wrong_parameters("a", cells(one))
    assert wrong_parameters("a", cells(one + one))
    assert wrong_parameters("a", cells("# %%\nepochs = 1\n"))
    assert wrong_parameters("a", cells(one.replace("epochs", "epochz")))
    assert runners()
    assert [bad for k, v in runners().items() for bad in wrong_parameters(k, v)] == []


def test_results_name_no_machine_person_or_absolute_path():
    "Results are published: what a run was is told, not where and by whom."
    paths = ['"out": "/home/a/b"', "saved to /root", "/content/x", '"C:\\\\data"']
    for text in [*paths, '"host": "x"', "by marvin9"]:
        assert private("a", text, {"marvin9"})
    assert not private("a", '"url": "https://a.b/home/c", "out": "runs/home/x"', {"marvin9"})
    assert [bad for k, v in results().items() for bad in private(k, v, people())] == []


def test_private_words_do_not_come_back():
    "In README, the guides and the help: what only we said, and nobody else understands."
    bad = "write --device cpu, The run floods., seeds die, Its clutter, a spread of 2"
    assert all(jargon("a", text) for text in bad.split(", "))
    good = "dead pixels, `write --device cpu`, --clutter-share, [a](clutter.md)\n```\ndead\n```"
    assert not jargon("a", good)
    pages = [ROOT / "nbs/index.py", *sorted((ROOT / "nbs/guides").glob("*.py"))]
    found = [(p.stem, nbs.read(p).cells) for p in pages if "zh-CN" not in p.name]
    texts = [(k, "\n".join(c.source for c in v if c.cell_type == "markdown")) for k, v in found]
    assert [bad for k, v in [*texts, *helps()] for bad in jargon(k, v)] == []


def test_outputs_are_small_and_name_no_machine_person_or_path():
    "Runners stay empty; of the others each figure has 100 kB at most, and all together 8 MB."
    whole, bad = 0, []
    for path in sorted((ROOT / "nbs").rglob("*.ipynb")):
        name = path.relative_to(ROOT).as_posix()
        cells = nbformat.read(path, as_version=4).cells
        found = [o for c in cells for o in c.get("outputs", [])]
        bad += [f"{name}: a runner with outputs"] if found and "/run/" in name else []
        for output in found:
            data = output.get("data", {"text/plain": output.get("text", "")})
            whole += len(json.dumps(data))
            figure = base64.b64decode(data.get("image/png", ""))
            bad += [f"{name}: a figure of {len(figure)} bytes"] if len(figure) > 100_000 else []
            texts = [str(value) for kind, value in data.items() if kind != "image/png"]
            bad += [line for text in texts for line in private(name, text, people())]
    assert bad == [] and whole < 8e6


def test_what_a_user_puts_into_a_clone_is_not_committed():
    "Data sets, predictions and runs lie where the guides say, and a copy is pushed whole."
    assert {"/data/", "/predictions/", "runs/"} <= set((ROOT / ".gitignore").read_text().split())


def listed(entries):
    "Every page of a menu, section by section."
    for entry in entries if isinstance(entries, list) else []:
        yield from [entry] if isinstance(entry, str) else listed(entry["contents"])


def test_the_site_lists_every_page_once_and_guides_name_their_reader():
    "A page that no menu names is not found. Start and Use are the guides; the rest are lessons."
    text = (ROOT / "_quarto.yml").read_text(encoding="utf-8")
    entries = yaml.safe_load(text)["website"]["sidebar"]["contents"]
    sections = {e["section"]: list(listed([e])) for e in entries if isinstance(e, dict)}
    guides = {p.stem: p.read_text("utf-8") for p in (ROOT / "nbs/guides").glob("*.py")}
    pages = [*suite(), *(f"guides/{name}" for name in guides), "index", "index.zh-CN"]
    assert sorted(listed(entries)) == sorted(f"{page}.ipynb" for page in pages)
    assert len(sections["Start"] + sections["Use"]) == 12
    for name in sections["Start"] + sections["Use"] + sections["Look up"]:
        assert re.search(r"(?m)^# > (.{4})", guides[Path(name).stem])[1] == "For ", name


if __name__ == "__main__":
    kept = json.loads(BUDGETS.read_text()) if BUDGETS.exists() else {}
    lower = {k: min(v, kept.get(k, v)) for k, v in sizes().items()}
    BUDGETS.write_text(json.dumps(lower, indent=1) + "\n")
