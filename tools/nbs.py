"""Text to notebooks, library and README.

The .py files under nbs/ are what people edit (jupytext percent format). From them are made the
.ipynb beside them, one runner notebook per entry of nbs/run/variants.toml, mshnet/*.py and
README.md. The same text always gives the same bytes. The outputs of lessons and guides are the one
thing that no text makes: `execute` stores them, and they stay until their code changes.
"""

import argparse
import configparser
import contextlib
import hashlib
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat import v4

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
LIBRARY = "mshnet"
READMES = {"nbs/index.ipynb": "README.md", "nbs/index.zh-CN.ipynb": "README.zh-CN.md"}
FILLED = re.compile(r"nbs/(index|guides/)[^/]*\.ipynb")  # whose prose names the repository
RUNNER = "nbs/run/runner.py"
VARIANTS = "nbs/run/variants.toml"
MODULE = re.compile(r"nbs/(?!run/)(\w+/)?\d\d_\w+\.ipynb")  # of the library, or of a workload
DEFINED = re.compile(r"(?m)^(?:async )?(?:def|class) (\w+)")
DEFAULT_EXP = re.compile(r"(?m)^#\|\s*default_exp\s+(\S+)")
TOKEN = re.compile(r"\{\{(\w+)\}\}")
INCLUDED = re.compile(r"# \{\{(\w+\.py)\}\}")  # a runner's cell, written in this file
CODE_OR_LINK = re.compile(  # the last two groups: what begins a link, and where it leads
    r"(?ms)^ *(```|~~~).*?^ *\1|``.+?``|`[^`\n]+`|(\]\(|\bsrc=\"|\bhref=\")<?([^)\s\">]+)"
)
PLACEHOLDER = "your-username"  # the user in settings.ini until an owner writes another
BADGE = r"\[!\[[^]]*\]\([^)]*\)\]\([^)]*\{\{repo\}\}[^)]*\)"
NEEDS_ADDRESS = r"\{\{published: (.+?)\}\}"  # prose that needs a published address
PUBLISHED = {NEEDS_ADDRESS: r"\1"}
UNPUBLISHED = {  # prose that would lead to a stranger's page as long as the placeholder stands
    rf" ?{BADGE}( {BADGE})*": "",
    r"git clone https://github\.com/\{\{repo\}\}\ncd mshnet": "# in the folder of setup.py:",
    r'"mshnet @ git\+https://github\.com/\{\{repo\}\}"': ".",
    NEEDS_ADDRESS: "",
}
KERNEL = {"display_name": "python3", "language": "python", "name": "python3"}
PERCENT = {"extension": ".py", "format_name": "percent", "notebook_metadata_filter": "-all"}
OUTPUTS_OF = "outputs_of"  # metadata of a page: the digest of the cells that made its outputs
README_NOTE = "<!-- made from {} by make build: edit that -->"

Notebook = nbformat.NotebookNode


class Mistake(Exception):
    "Something for the user to mend: reported in one line, exit status 2."


# Reading and writing notebooks


def read(path: Path) -> Notebook:
    "The notebook in a percent .py file or in an .ipynb."
    if not path.exists():
        raise Mistake(f"{path}: no such file")
    try:
        return jupytext.read(path, fmt=PERCENT if path.suffix == ".py" else "ipynb")
    except Exception as error:
        raise Mistake(f"{path}: not a readable notebook ({error})") from error


def percent(nb: Notebook) -> str:
    "The notebook as the .py text that people edit."
    return jupytext.writes(nb, fmt=PERCENT)


def dump(nb: Notebook) -> str:
    "The notebook as .ipynb text."
    return nbformat.writes(nb, indent=1) + "\n"


def tags(cell: Notebook) -> list[str]:
    "The tags of a cell."
    return cell.metadata.get("tags", [])


def slug(text: str) -> str:
    "Text as a short word that may stand in a cell id."
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "cell"


def label(cell: Notebook) -> str:
    "A name for a cell: what it defines, its heading, or its first words."
    lines = [ln for ln in cell.source.splitlines() if ln.strip() and not ln.startswith("#|")]
    words = slug(" ".join(lines[0].split()[:4])) if lines else "empty"
    if cell.cell_type != "code":
        heading = next((ln for ln in lines if re.match(r"#+ ", ln)), None)
        return f"h-{slug(heading)}" if heading else f"p-{words}"
    found = DEFINED.search(cell.source)
    return re.sub(r"[^A-Za-z0-9_]", "-", found[1])[:50] if found else f"c-{words}"


def ids(cells: Iterable[Notebook]) -> list[str]:
    "One id per cell, from its content; the second of a name gets -2, or the next that is free."
    given: list[str] = []
    for name in map(label, cells):
        count, unique = 1, name
        while unique in given:
            count += 1
            unique = f"{name}-{count}"
        given.append(unique)
    return given


def finish(nb: Notebook, metadata: dict[str, Any] | None = None) -> Notebook:
    "A notebook of stable ids, without outputs, and without metadata but tags and what is given."
    made = v4.new_notebook(metadata={"kernelspec": KERNEL, **(metadata or {})})
    for cell, name in zip(nb.cells, ids(nb.cells), strict=True):
        new = getattr(v4, f"new_{cell.cell_type}_cell")
        kept = {"tags": tags(cell)} if tags(cell) else {}
        made.cells.append(new(cell.source, id=name, metadata=kept))
    nbformat.validate(made)
    return made


# From text to notebooks


def relative(path: Path, root: Path) -> str:
    "The path as it is written in messages and as a key."
    return path.relative_to(root).as_posix()


def texts(root: Path) -> dict[str, Notebook]:
    "Every text that becomes notebooks, the runner among them, by its path."
    paths = {relative(path, root): path for path in sorted((root / "nbs").rglob("*.py"))}
    return {n: read(path) for n, path in paths.items() if not re.search(r"(^|/)[._]", n)}


def settings(root: Path) -> dict[str, str]:
    "The repository's address, from its one home."
    path = root / "settings.ini"
    if not path.exists():
        raise Mistake(f"{path}: no such file; it names the repository and the library")
    parser = configparser.ConfigParser()
    parser.read(path, encoding="utf-8")
    found = parser["DEFAULT"]
    return {"repo": f"{found['user']}/{found['repo']}", "branch": found["branch"]}


def fill(text: str, values: dict[str, str], where: str) -> str:
    "The text with every {{name}} replaced by its value."
    if unknown := set(TOKEN.findall(text)) - set(values):
        token, known = "{{" + min(unknown) + "}}", ", ".join(sorted(values))
        raise Mistake(f"{where}: unknown token {token}; known here: {known}")
    return TOKEN.sub(lambda match: str(values[match[1]]), text)


def fill_cells(nb: Notebook, values: dict[str, str], where: str) -> None:
    "Replace tokens in prose and in cells tagged `install`; other code keeps its braces."
    published = not values["repo"].startswith(f"{PLACEHOLDER}/")
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            for pattern, text in (PUBLISHED if published else UNPUBLISHED).items():
                cell.source = re.sub(pattern, text, cell.source)
        if cell.cell_type == "markdown" or "install" in tags(cell):
            cell.source = fill(cell.source, values, where)


def notebooks(root: Path) -> dict[str, Notebook]:
    "Every notebook that the texts make, by its path."
    made = {}
    for name, nb in texts(root).items():
        if re.fullmatch(r"nbs/run/\w+\.py", name):  # a runner, made by the variants
            continue
        target = name.replace(".py", ".ipynb")
        if FILLED.fullmatch(target):
            fill_cells(nb, settings(root), name)
        made[target] = finish(nb)
    return made | runners(root)


# One runner, several places


def runners(root: Path) -> dict[str, Notebook]:
    "The runner notebook of each place named in variants.toml."
    if not (root / RUNNER).exists():
        return {}
    if not (root / VARIANTS).exists():
        raise Mistake(f"{VARIANTS}: no such file; it names the notebooks to make of {RUNNER}")
    try:
        table = tomllib.loads((root / VARIANTS).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise Mistake(f"{VARIANTS}: {error}") from error
    strangers = set().union(*map(places, read(root / RUNNER).cells)) - set(table)
    if strangers:
        raise Mistake(f"{RUNNER}: tag only:{min(strangers)} names no variant of {VARIANTS}")
    return {f"nbs/run/{name}.ipynb": variant(root, name, spec) for name, spec in table.items()}


def variant(root: Path, name: str, spec: dict[str, Any]) -> Notebook:
    "The runner for one place: its title and machine, its defaults, its tagged cells."
    unknown = set(spec) - {"source", "title", "parameters", "metadata"}
    if unknown:
        known = "source, title, parameters and metadata"
        raise Mistake(f"{VARIANTS}: unknown table [{name}.{min(unknown)}]; there are {known}")
    source = spec.get("source", RUNNER)
    nb = read(root / source)
    nb.cells = [c for c in nb.cells if not places(c) or name in places(c)]
    include(nb, (root / source).parent)
    fill_cells(nb, {**settings(root), "name": name, **spec.get("title", {})}, source)
    for key, value in spec.get("parameters", {}).items():
        if not any(set_default(c, key, value) for c in nb.cells if "parameters" in tags(c)):
            line = f"{key} = {literal(value)}"
            raise Mistake(f"{VARIANTS}: [{name}] sets {line}, no line of the parameters cell")
    return finish(nb, spec.get("metadata"))


def include(nb: Notebook, folder: Path) -> None:
    "Give each cell that is one line `# {{FILE.py}}` the code of that file."
    for cell in nb.cells:
        if named := INCLUDED.fullmatch(cell.source):
            code = [c.source for c in read(folder / named[1]).cells if c.cell_type == "code"]
            cell.source = "\n\n".join(code)


def places(cell: Notebook) -> set[str]:
    "The places a cell is tagged for; none means all."
    return {tag.removeprefix("only:") for tag in tags(cell) if tag.startswith("only:")}


def literal(value: Any) -> str:
    "A value as ruff would write it in Python."
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def set_default(cell: Notebook, name: str, value: Any) -> bool:
    "Give a parameter another default, leaving its comment; False where the cell has no such line."
    cell.source, count = re.subn(
        rf"(?m)^({name}(?:: \w+)? = ).+?(  # .*)?$",
        lambda match: match[1] + literal(value) + (match[2] or ""),
        cell.source,
        count=1,
    )
    return count == 1


# From notebooks to library and README


def library(root: Path, made: dict[str, Notebook]) -> dict[str, str]:
    "The library that nbdev exports from the numbered notebooks, made in a temporary folder."
    modules = {name: nb for name, nb in made.items() if MODULE.fullmatch(name)}
    refuse_homeless(modules)
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder).resolve()
        shutil.copy(root / "settings.ini", there)
        write(there, {name: dump(nb) for name, nb in modules.items()})
        (there / LIBRARY).mkdir()
        if (init := root / LIBRARY / "__init__.py").exists():  # nbdev sets the version in it
            shutil.copy(init, there / LIBRARY)
        export(there)
        found = sorted((there / LIBRARY).rglob("*.py"))
        return {relative(p, there): p.read_text(encoding="utf-8") for p in found}


def export(there: Path) -> None:
    "Have nbdev write the library of a folder, in this process."
    from nbdev.config import get_config
    from nbdev.doclinks import nbdev_export

    get_config.cache_clear()  # it may be that of another folder
    os.environ.pop("IN_TEST", None)  # nbdev does nothing under it
    try:
        with contextlib.chdir(there), warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            nbdev_export.__wrapped__()  # without its reading of the command line
    except (Exception, SystemExit) as error:
        raise Mistake(f"nbdev_export: {type(error).__name__}: {error}".splitlines()[0]) from error


def refuse_homeless(modules: dict[str, Notebook]) -> None:
    "Every numbered notebook names the module it exports, and no two the same."
    homes: dict[str, str] = {}
    for name, nb in modules.items():
        code = (cell.source for cell in nb.cells if cell.cell_type == "code")
        named = DEFAULT_EXP.findall("\n".join(code))
        if len(named) != 1:
            raise Mistake(f"{name}: has {len(named)} lines `#| default_exp NAME`, needs one")
        if (first := homes.setdefault(named[0], name)) != name:
            raise Mistake(f"{name}: exports {named[0]}, as {first} does already")


def readme(nb: Notebook, name: str) -> str:
    "A README from its index notebook: its prose, its shown code, links as seen from the top."
    parts = [README_NOTE.format(name.replace(".ipynb", ".py"))]
    for cell in nb.cells:
        text = cell.source.strip()
        if cell.cell_type == "markdown" and text:
            parts.append(relink(text, rebase))
        elif cell.cell_type == "code" and text and not re.match(r"#\|\s*hide\b", text):
            shown = "\n".join(ln for ln in text.splitlines() if not ln.startswith("#|"))
            parts.append(f"```python\n{shown.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def relink(text: str, moved: Callable[[str], str]) -> str:
    "A Markdown text with other links; its code stays."
    return CODE_OR_LINK.sub(lambda m: m[2] + moved(m[3]) if m[3] else m[0], text)


def rebase(target: str) -> str:
    "A link written for nbs/ as it reads from the folder above."
    if re.match(r"[a-z]+:|#|/", target):
        return target
    path = posixpath.normpath(posixpath.join("nbs", target))
    return READMES.get(path, path)


def products(root: Path) -> dict[str, str]:
    "Every generated file and its text; nothing in the checkout is touched."
    made = notebooks(root)
    modules = library(root, made)
    found = {name: dump(with_outputs(root, name, nb)) for name, nb in made.items()} | modules
    return found | {to: readme(made[name], name) for name, to in READMES.items() if name in made}


def write(root: Path, texts: dict[str, str]) -> list[str]:
    "Write the files whose text changed, and name them."
    changed = differing(root, texts)
    for name in changed:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(texts[name].encode())
    return changed


def differing(root: Path, texts: dict[str, str]) -> list[str]:
    "The files that do not hold these texts, byte for byte."
    paths = {name: root / name for name in texts}
    return [n for n, p in paths.items() if not p.exists() or p.read_bytes() != texts[n].encode()]


# Outputs: `execute` makes them; a cell keeps its own for as long as its code stays the same


def digest(nb: Notebook) -> str:
    "A fingerprint of the text and the code of a page."
    cells = json.dumps([[cell.cell_type, cell.source] for cell in nb.cells])
    return hashlib.sha256(cells.encode()).hexdigest()[:16]


def committed(path: Path) -> Notebook | None:
    "The notebook in a file if `execute` made its outputs."
    try:
        nb = nbformat.read(path, as_version=4)
    except Exception:  # missing or damaged: it is made anew
        return None
    return nb if OUTPUTS_OF in nb.metadata else None


def with_outputs(root: Path, name: str, nb: Notebook) -> Notebook:
    "A notebook with the outputs that its file holds for cells of the same code."
    if name.startswith("nbs/run/") or not (old := committed(root / name)):
        return nb
    kept = {(c.id, c.source): c.outputs for c in old.cells if c.cell_type == "code"}
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs = kept.get((cell.id, cell.source), [])
    nb.metadata[OUTPUTS_OF] = old.metadata[OUTPUTS_OF]
    return nb


def older(root: Path) -> list[str]:
    "The lessons and guides whose cells are not those that made their outputs."
    found = []
    for text, nb in texts(root).items():
        name = text.replace(".py", ".ipynb")
        if not name.startswith("nbs/run/") and any(c.cell_type == "code" for c in nb.cells):
            old = committed(root / name)
            if not old or old.metadata[OUTPUTS_OF] != digest(nb):
                found.append(name)
    return found


# Formatting: ruff sees the notebooks cell by cell, then the text follows


def tidied(root: Path) -> tuple[dict[str, str], list[str]]:
    "Each text as ruff would have it, and what ruff finds but cannot mend."
    found = texts(root)
    books = {name: name.replace(".py", ".ipynb") for name in found}
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder).resolve()
        if (root / "pyproject.toml").exists():
            shutil.copy(root / "pyproject.toml", there)
        write(there, {books[name]: dump(finish(nb)) for name, nb in found.items()})
        ruff(there, "check", "--fix", ".")
        ruff(there, "format", ".")
        problems = ruff(there, "check", ".")
        return {name: percent(finish(read(there / book))) for name, book in books.items()}, problems


def ruff(cwd: Path, command: str, *options: str) -> list[str]:
    "What ruff complains about, one line each."
    return complaints("ruff", command, "-q", "-n", "--output-format=concise", *options, cwd=cwd)


def complaints(tool: str, *words: str, cwd: Path) -> list[str]:
    "The lines of one of the environment's tools."
    if not (BIN / tool).exists():
        raise Mistake(f"{tool} is not installed beside {sys.executable}: run `make build`")
    done = subprocess.run([str(BIN / tool), *words], cwd=cwd, capture_output=True, text=True)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode and not lines:  # it was killed
        lines = [f"{tool}: status {done.returncode}"]
    return lines


# Checking


def unformatted(root: Path) -> list[str]:
    "Texts that ruff would write otherwise, and what it cannot mend."
    wanted, problems = tidied(root)
    return [f"{n}: not formatted: run `make build`" for n in differing(root, wanted)] + problems


def stale(root: Path, made: dict[str, str]) -> list[str]:
    "Files that a rebuild would change."
    return [f"{name}: stale: run `make build`" for name in differing(root, made)]


def orphans(root: Path, made: dict[str, str]) -> list[str]:
    "Notebooks and modules that no text makes."
    found = [*(root / "nbs").rglob("*.ipynb"), *(root / LIBRARY).rglob("*.py*")]
    names = {relative(p, root) for p in found if p.is_file()} - set(made)
    lost = [n for n in sorted(names) if not re.search(r"__pycache__|\.ipynb_checkpoints", n)]
    return [f"{name}: orphan, no text makes it: delete it" for name in lost]


def hand_written(root: Path, mend: bool = False) -> list[str]:
    "What ruff finds in tests, tools and setup.py, or cannot mend there."
    paths = [p for p in ("setup.py", "tests", "tools") if (root / p).exists()]
    if not paths:
        return []
    if mend:
        ruff(root, "check", "--fix", *paths)
        ruff(root, "format", *paths)
    return ruff(root, "check", *paths) + ruff(root, "format", "--check", *paths)


def types(root: Path) -> list[str]:
    "What mypy finds in the library."
    return complaints("mypy", "--no-error-summary", LIBRARY, cwd=root)


# Commands


def build(root: Path) -> int:
    "Make notebooks, runners, library and README from the texts."
    for name in write(root, products(root)):
        print(f"made {name}")
    return 0


def tidy(root: Path) -> int:
    "Format the texts, then build."
    texts, problems = tidied(root)
    for name in write(root, texts):
        print(f"formatted {name}")
    print_lines(problems + hand_written(root, mend=True))
    return build(root)


def check(root: Path) -> int:
    "Is everything formatted, typed and as a rebuild would make it? Changes nothing."
    made = products(root)
    with ThreadPoolExecutor() as pool:  # each waits for other programs
        wait = [pool.submit(find, root) for find in (unformatted, hand_written, types)]
        found = [line for each in wait for line in each.result()]
    found += [*stale(root, made), *orphans(root, made)]
    found += [f"{n}: no outputs of its present cells: run `make outputs`" for n in older(root)]
    print_lines(found)
    if not found:
        print(f"nbs check: {len(made)} generated files are as a rebuild makes them")
    return bool(found)


def test(root: Path, names: list[str]) -> int:
    "Run the lesson cells of the numbered notebooks and the guides, all or those named."
    kinds = ("[0-9][0-9]_*.ipynb", "*/[0-9][0-9]_*.ipynb", "guides/*.ipynb")
    chosen = sorted(p.stem for kind in kinds for p in (root / "nbs").glob(kind))
    if names:
        wanted = {re.sub(r"\.(py|ipynb)$", "", Path(name).name) for name in names}
        missing = sorted(wanted - {w for c in chosen for w in (c, c[3:])})
        if missing:
            raise Mistake(f"no notebook {missing[0]}; there are {', '.join(chosen)}")
        chosen = [c for c in chosen if c in wanted or c[3:] in wanted]
    pattern = rf"^({'|'.join(chosen)})\.ipynb$"
    command = [str(BIN / "nbdev_test"), "--n_workers", "2", "--timing", "--file_re", pattern]
    env = {"OMP_NUM_THREADS": "1"} | os.environ | {"MPLBACKEND": "agg"}
    return subprocess.run(command, cwd=root, env=env).returncode


def execute(root: Path, names: list[str]) -> int:
    "Build, then store the outputs of the pages named, or of all whose cells changed since."
    from outputs import store  # needs nbclient and Pillow

    build(root)
    return store(root, [relative(page(root, name), root) for name in names] or older(root))


def page(root: Path, name: str) -> Path:
    "The lesson or guide that a path names, of its text or of its notebook."
    path = Path(name).resolve().with_suffix(".ipynb")
    if not path.is_relative_to(root / "nbs") or not path.with_suffix(".py").exists():
        raise Mistake(f"{name}: no lesson or guide under nbs/")
    return path


def site(root: Path) -> int:
    "Build the site into _docs/ and check its links."
    from docs import docs  # needs nbconvert, which nothing else does

    return docs(root)


def print_lines(lines: list[str]) -> None:
    "Print each line, if there are any."
    for line in lines:
        print(line)


COMMANDS = {"build": build, "format": tidy, "check": check, "docs": site}
COMMANDS_OF_PAGES = {"test": test, "execute": execute}


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    "Run one command; a mistake is one line on stderr and status 2."
    parser = argparse.ArgumentParser(prog="nbs.py", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, do in {**COMMANDS, **COMMANDS_OF_PAGES}.items():
        command = commands.add_parser(name, help=do.__doc__)
        command.set_defaults(do=do)
        if name in COMMANDS_OF_PAGES:
            command.add_argument("names", nargs="*", metavar="NAME")
    given = vars(parser.parse_args(argv))
    try:
        return int(given.pop("do")(root, **given))
    except Mistake as mistake:
        print(f"nbs.py: {mistake}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.modules["nbs"] = sys.modules[__name__]  # that docs.py and outputs.py import
    sys.exit(main())
