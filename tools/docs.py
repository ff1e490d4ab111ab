"""The site: an HTML page of every notebook, with the outputs that the repository keeps.

nbconvert makes the pages, in the order of the sidebar in _quarto.yml. Nothing is executed. Links
are checked in the Markdown of notebooks and documents.
"""

import posixpath
import re
import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import nbformat
import yaml

import nbs

QUARTO = "_quarto.yml"
PICTURE = (".png", ".jpg", ".jpeg", ".gif", ".svg")
TEXTS = ("README*.md", "CHANGELOG.md", "CONTRIBUTING.md", "experiments/**/*.md", "results/**/*.md")
DIRECTIVE = re.compile(r"(?m)^#\|.*\n?")


# Links


def targets(text: str) -> list[str]:
    "Where the links and pictures of a Markdown text lead; code is left out."
    return [match[3] for match in nbs.CODE_OR_LINK.finditer(text) if match[3]]


def path_of(page: str, target: str) -> str:
    "The file of the repository that a relative link of a page names."
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(target)))


def own(root: Path, target: str) -> str | None:
    "The file of this repository that an address names; None: it leads elsewhere."
    place = nbs.settings(root)
    repo, branch = place["repo"], place["branch"]
    home = f"https://github.com/{repo}"
    hosts = [f"{home}/{kind}/{branch}/" for kind in ("blob", "tree", "raw", "edit")]
    hosts += [f"https://raw.githubusercontent.com/{repo}/{branch}/"]
    hosts += [f"https://colab.research.google.com/github/{repo}/blob/{branch}/"]
    hosts += [f"https://kaggle.com/kernels/welcome?src={home}/blob/{branch}/"]
    for host in hosts:
        if target.startswith(host):
            return unquote(re.split("[#?]", target.removeprefix(host))[0])
    return "" if target.removesuffix("/") == home else None


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
        path = path_of(page, parts.path)
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


# Pages


def prepare(root: Path, out: Path, made: dict[str, nbs.Notebook]) -> None:
    "Make notebooks pages: no nbdev directives, no hidden cells, links that fit the site."
    for name, nb in made.items():
        nb.cells = [cell for cell in nb.cells if not re.match(r"#\|\s*hide\b", cell.source)]
        for cell in nb.cells:
            if cell.cell_type == "code":
                cell.source = DIRECTIVE.sub("", cell.source).strip()
            else:
                cell.source = nbs.relink(cell.source, partial(moved, root, out, set(made), name))
        nb.cells = [cell for cell in nb.cells if cell.source]


def moved(root: Path, out: Path, names: set[str], page: str, target: str) -> str:
    "Where a link leads on the site: pictures are copied, other files are those of the repository."
    parts = urlsplit(target)
    if parts.scheme or not parts.path or wrong(root, page, target):
        return target
    path = path_of(page, parts.path)
    if path in names:
        return parts._replace(path=parts.path.removesuffix(".ipynb") + ".html").geturl()
    if path.endswith(PICTURE):
        (out / "pictures" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / path, out / "pictures" / path)
        return posixpath.relpath(f"nbs/pictures/{path}", posixpath.dirname(page))
    kind, place = "tree" if (root / path).is_dir() else "blob", nbs.settings(root)
    return f"https://github.com/{place['repo']}/{kind}/{place['branch']}/{path}"


def menu(made: dict[str, nbs.Notebook], entries: Any, indent: str = "") -> Iterator[str]:
    "The lines of a menu, or of a section of it, as a nested Markdown list."
    if isinstance(entries, str):
        entries = [n.removeprefix("nbs/") for n in sorted(made) if fnmatch(n, f"nbs/{entries}")]
    for entry in entries:
        if isinstance(entry, dict):
            yield f"{indent}- {entry['section']}"
            yield from menu(made, entry["contents"], f"{indent}    ")
        elif f"nbs/{entry}" in made:
            yield f"{indent}- [{title(made[f'nbs/{entry}'])}]({entry.removesuffix('.ipynb')}.html)"
        else:
            raise nbs.Mistake(f"{QUARTO}: lists {entry}, and there is no such page")


def title(nb: nbs.Notebook) -> str:
    "The first heading of a notebook."
    text = "\n".join(c.source for c in nb.cells if c.cell_type == "markdown")
    heading = re.search(r"(?m)^# (.+)$", text)
    return heading[1] if heading else "MSHNet"


def write_pages(
    out: Path, made: dict[str, nbs.Notebook], listed: str, links: dict[str, str]
) -> None:
    "Write the HTML of every notebook, with these links at its end; the first page lists all."
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(exclude_input_prompt=True, exclude_output_prompt=True)
    for name, nb in made.items():
        page = posixpath.relpath(name, "nbs")
        top = posixpath.dirname(page) or "."
        home = " · ".join(f"[{k}]({posixpath.relpath(v, top)})" for k, v in links.items())
        nb.cells.append(nbformat.v4.new_markdown_cell(listed if page == "index.ipynb" else home))
        exporter.language_code = "zh-CN" if "zh-CN" in page else "en"
        html, _ = exporter.from_notebook_node(nb, {"metadata": {"name": title(nb)}})
        target = (out / page).with_suffix(".html")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(html, encoding="utf-8")


# The command


def docs(root: Path) -> int:
    "Build the site into _docs/ and check all links."
    bad = [line for page, text in texts(root).items() for line in broken(root, page, text)]
    made = {name: nbs.with_outputs(root, name, nb) for name, nb in nbs.notebooks(root).items()}
    website = yaml.safe_load((root / QUARTO).read_text(encoding="utf-8"))["website"]
    listed = "\n".join(["## All pages", *menu(made, website["sidebar"]["contents"])])
    out = root / "_docs"
    shutil.rmtree(out, ignore_errors=True)
    prepare(root, out, made)
    bar = website.get("navbar", {}).get("left", [])
    links = {link["text"]: link["href"].replace(".ipynb", ".html") for link in bar}
    write_pages(out, made, listed, {"All pages": "index.html"} | links)
    nbs.print_lines(bad)
    print(f"{out / 'index.html'}: {len(made)} pages, {len(bad) or 'no'} broken links")
    return bool(bad)
