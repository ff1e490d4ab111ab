"""The site: pages with the outputs that the repository keeps.

Everything happens in a temporary copy. Pages that changed since their outputs were made, and one
runner, are executed there (CPU, synthetic scenes). Quarto renders the site where it is installed;
elsewhere nbconvert makes an HTML page of every notebook, and an index of them. Links are checked in
the Markdown that both are made from.
"""

import os
import posixpath
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import nbformat
import yaml

import nbs

QUARTO = "_quarto.yml"
PICTURE = (".png", ".jpg", ".jpeg", ".gif", ".svg")
TEXTS = ("README*.md", "CHANGELOG.md", "CONTRIBUTING.md", "experiments/**/*.md", "results/**/*.md")
RUNNERS_HERE = {"local": {"device": "cpu"}}  # the others want their machine
TARGET = re.compile(r"(\]\(|\bsrc=\"|\bhref=\")<?([^)\s\">]+)")
CODE = re.compile(r"(?ms)^ *(```|~~~).*?^ *\1|``.+?``|`[^`\n]+`")
DIRECTIVE = re.compile(r"(?m)^#\|.*\n?")
UNTRIED = (
    "*No results on this page: this notebook wants its machine. `local` is the same with results.*"
)
UNRUN = re.compile(r"(?m)^#\|\s*(eval:\s*false|slow|tpu|cuda|mps)\b")


# Links


def targets(text: str) -> list[str]:
    "Where the links and pictures of a Markdown text lead; code is left out."
    return [match[2] for match in TARGET.finditer(CODE.sub("", text))]


def own(root: Path, target: str) -> str | None:
    "The file of this repository that an address names; None: it leads elsewhere."
    place = nbs.settings(root)
    repo, branch = re.escape(place["repo"]), re.escape(place["branch"])
    hosts = [
        rf"https://github\.com/{repo}/(?:blob|tree|raw|edit)/{branch}/",
        rf"https://raw\.githubusercontent\.com/{repo}/{branch}/",
        rf"https://colab\.research\.google\.com/github/{repo}/blob/{branch}/",
        rf"https://kaggle\.com/kernels/welcome\?src=https://github\.com/{repo}/blob/{branch}/",
    ]
    match = re.match(rf"(?:{'|'.join(hosts)})([^#?]*)", target)
    if match:
        return unquote(match[1])
    return "" if re.fullmatch(rf"https://github\.com/{repo}/?", target) else None


def wrong(root: Path, page: str, target: str) -> str:
    "What is wrong with a link of a page of the repository; empty: nothing."
    parts = urlsplit(target)
    if parts.scheme in ("http", "https"):
        if not re.fullmatch(r"[\w.-]+\.[a-z]+(:\d+)?", parts.netloc):
            return "is no address"
        path = own(root, target)
        if path is None:  # elsewhere, but no badge of another repository or branch
            badge = re.search(r"colab\.research\.google\.com/github|kernels/welcome\?src=", target)
            return "opens a notebook of another repository or branch" if badge else ""
    elif parts.scheme == "mailto" or target.startswith("#"):
        return ""
    elif parts.scheme or target.startswith("/"):
        return "is neither a web address nor a path from here"
    else:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path)))
    there = root / path
    return "" if not path.startswith("..") and there.exists() else f"there is no {path}"


def broken(root: Path, page: str, text: str) -> list[str]:
    "The links of a text that lead nowhere, one line each."
    found = [(target, wrong(root, page, target)) for target in targets(text)]
    return [f"{page}: {target}: {why}" for target, why in found if why]


def texts(root: Path) -> dict[str, str]:
    "What people read in the repository: the Markdown of each notebook and each document."
    found = {}
    for path in sorted((root / "nbs").rglob("*.ipynb")):
        if ".ipynb_checkpoints" not in path.parts:
            prose = [c.source for c in nbs.read(path).cells if c.cell_type == "markdown"]
            found[nbs.relative(path, root)] = "\n\n".join(prose)
    for pattern in TEXTS:
        for path in sorted(root.glob(pattern)):
            found[nbs.relative(path, root)] = path.read_text(encoding="utf-8")
    return found


# A copy with outputs


def stage(root: Path, there: Path) -> list[str]:
    "Put notebooks, library and settings into a folder, and name the notebooks."
    made = nbs.products(root)
    if (root / nbs.LIBRARY).is_dir():  # with weights and lists
        shutil.copytree(root / nbs.LIBRARY, there / nbs.LIBRARY)
    nbs.write(there, made)
    for name in ("settings.ini", QUARTO):
        if not (root / name).exists():
            raise nbs.Mistake(f"{root / name}: no such file; the site needs it")
        shutil.copy(root / name, there)
    if (root / "results").is_dir():
        shutil.copytree(root / "results", there / "results")
    return [name for name in made if name.endswith(".ipynb")]


def execute(there: Path, name: str) -> str:
    "Run a notebook of the copy in place; what went wrong, in one line, or nothing."
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    path = there / name
    nb = nbformat.read(path, as_version=4)
    if "/run/" in name:
        given = "\n".join(f"{k} = {v!r}" for k, v in RUNNERS_HERE[path.stem].items())
        at = next(i for i, cell in enumerate(nb.cells) if "parameters" in nbs.tags(cell))
        nb.cells.insert(at + 1, nbformat.v4.new_code_cell(f"{given}  # for this page"))
    for cell in nb.cells:
        if cell.cell_type == "code" and UNRUN.search(cell.source):
            cell.metadata.tags = [*nbs.tags(cell), "skip-execution"]
    env = {k: v for k, v in os.environ.items() if k != "MPLBACKEND"}  # pictures go into the page
    env = {"OMP_NUM_THREADS": "1"} | env | {"PYTHONPATH": str(there)}
    where = {"metadata": {"path": str(path.parent)}}
    try:
        client = NotebookClient(nb, timeout=1800, kernel_name="python3", resources=where)
        client.coalesce_streams, client.record_timing = True, False
        client.extra_arguments = ["--log-level=ERROR"]
        client.execute(env=env)
    except CellExecutionError as error:
        return f"{name}: {error.ename}: {error.evalue}".splitlines()[0]
    nbformat.write(nb, path)
    return ""


def execute_all(there: Path, names: list[str], older: list[str]) -> None:
    "Run, two at a time, the pages without current outputs and the runners that run anywhere."
    runners = [n for n in names if "/run/" in n]
    wanted = older + [n for n in runners if Path(n).stem in RUNNERS_HERE]
    with ThreadPoolExecutor(2) as pool:
        problems = pool.map(lambda name: execute(there, name), wanted)
        for name, problem in zip(wanted, problems, strict=True):
            if problem:
                raise nbs.Mistake(f"{problem}; `tools/nbs.py test {Path(name).stem}` shows more")
            print(f"executed {name}", flush=True)
    for name in sorted(set(runners) - set(wanted)):
        nb = nbformat.read(there / name, as_version=4)
        nb.cells.insert(1, nbformat.v4.new_markdown_cell(UNTRIED))
        nbformat.write(nb, there / name)


# Pages


def prepare(root: Path, there: Path, names: list[str]) -> None:
    "Make the copies pages: no nbdev directives, no hidden cells, links that fit the site."
    for name in names:
        nb = nbformat.read(there / name, as_version=4)
        nb.cells = [cell for cell in nb.cells if not re.match(r"#\|\s*hide\b", cell.source)]
        for cell in nb.cells:
            if cell.cell_type == "code":
                if re.match(r"#\|\s*output:\s*false", cell.source):
                    cell.outputs = []
                cell.source = DIRECTIVE.sub("", cell.source).strip()
            else:
                cell.source = relink(
                    cell.source, lambda target, page=name: moved(root, there, names, page, target)
                )
        nb.cells = [cell for cell in nb.cells if cell.source]
        nbformat.write(nb, there / name)
    for path in (there / "nbs").rglob("*.py"):
        path.unlink()


def moved(root: Path, there: Path, names: list[str], page: str, target: str) -> str:
    "Where a link leads on the site: pictures come along, other files are those of the repository."
    parts = urlsplit(target)
    if parts.scheme or not parts.path or wrong(root, page, target):
        return target
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path)))
    if path in names:
        return target
    if path.endswith(PICTURE):
        (there / "nbs/pictures" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / path, there / "nbs/pictures" / path)
        return posixpath.relpath(f"nbs/pictures/{path}", posixpath.dirname(page))
    kind, place = "tree" if (root / path).is_dir() else "blob", nbs.settings(root)
    return f"https://github.com/{place['repo']}/{kind}/{place['branch']}/{path}"


def relink(text: str, moved: Callable[[str], str]) -> str:
    "A Markdown text with other links; its code stays."
    parts, last = [], 0
    for code in [*CODE.finditer(text), None]:
        end = code.start() if code else len(text)
        parts.append(TARGET.sub(lambda m: m[1] + moved(m[2]), text[last:end]))
        if code:
            parts.append(code[0])
            last = code.end()
    return "".join(parts)


# The preview, where there is no Quarto


def contents(pages: Path) -> str:
    "The menu of the site as a nested Markdown list."
    website = yaml.safe_load((pages / QUARTO).read_text(encoding="utf-8"))["website"]
    return "\n".join(["## All pages", *menu(pages, website["sidebar"]["contents"])])


def menu(pages: Path, entries: Any, indent: str = "") -> Iterator[str]:
    "The lines of a menu, or of a section of it."
    if isinstance(entries, str):
        entries = sorted(path.relative_to(pages).as_posix() for path in pages.glob(entries))
    for entry in entries:
        if isinstance(entry, dict):
            yield f"{indent}- {entry['section']}"
            yield from menu(pages, entry["contents"], f"{indent}    ")
        elif (pages / entry).exists():
            yield f"{indent}- [{title(pages / entry)}]({entry})"
        else:
            raise nbs.Mistake(f"{QUARTO}: lists {entry}, and there is no such page")


def title(path: Path) -> str:
    "The first heading of a notebook."
    text = "\n".join(c.source for c in nbs.read(path).cells if c.cell_type == "markdown")
    heading = re.search(r"(?m)^# (.+)$", text)
    return heading[1] if heading else path.stem


def preview(pages: Path, out: Path) -> None:
    "Write a page of HTML for every notebook, and its pictures; the first one lists all."
    from nbconvert import HTMLExporter

    listed = contents(pages)
    exporter = HTMLExporter(exclude_input_prompt=True, exclude_output_prompt=True)
    for path in sorted(pages.rglob("*.ipynb")):
        name = path.relative_to(pages).as_posix()
        nb = nbformat.read(path, as_version=4)
        home = f"[All pages]({posixpath.relpath('index.ipynb', posixpath.dirname(name) or '.')})"
        nb.cells.append(nbformat.v4.new_markdown_cell(listed if name == "index.ipynb" else home))
        for cell in nb.cells:
            if cell.cell_type == "markdown":
                cell.source = relink(cell.source, page_name)
        exporter.language_code = "zh-CN" if "zh-CN" in name else "en"
        html, _ = exporter.from_notebook_node(nb, {"metadata": {"name": title(path)}})
        target = (out / name).with_suffix(".html")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(html, encoding="utf-8")
    if (pages / "pictures").is_dir():
        shutil.copytree(pages / "pictures", out / "pictures")


def page_name(target: str) -> str:
    "The HTML page of a link to a notebook beside it."
    path, mark, anchor = target.partition("#")
    if urlsplit(target).scheme or not path.endswith(".ipynb"):
        return target
    return path.removesuffix(".ipynb") + ".html" + mark + anchor


# The command


def docs(root: Path, run: bool = True, output: str = "_docs") -> int:
    "Build the site into _docs/: pages with outputs, by Quarto or as a preview; check all links."
    bad = [line for page, text in texts(root).items() for line in broken(root, page, text)]
    out = (root / output).resolve()
    if out != (root / "_docs").resolve() and out.exists():
        raise nbs.Mistake(
            f"--output {output}: it exists, and nothing is replaced; name a new folder"
        )
    with tempfile.TemporaryDirectory(prefix="mshnet-docs-") as folder:
        there = Path(folder).resolve()
        names = stage(root, there)
        if run:
            execute_all(there, names, nbs.older(root))
        prepare(root, there, names)
        pages = there / "nbs"
        shutil.copy(there / QUARTO, pages)
        shutil.rmtree(out, ignore_errors=True)
        quarto = shutil.which("quarto")
        if quarto:
            print("quarto render (this path was never tried with a real Quarto)", flush=True)
            done = subprocess.run([quarto, "render"], cwd=pages)
            if done.returncode:
                raise nbs.Mistake(f"quarto render: status {done.returncode}; see its lines above")
            shutil.copytree(pages / "_docs", out)
        else:
            preview(pages, out)
    nbs.print_lines(bad)
    kind = "pages by Quarto" if quarto else "pages of a preview by nbconvert (no Quarto here)"
    count = len(list(out.rglob("*.html")))
    print(f"{out / 'index.html'}: {count} {kind}, {len(bad) or 'no'} broken links")
    return bool(bad)
