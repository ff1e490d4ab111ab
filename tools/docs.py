"""The site: pages with their outputs, from copies; the notebooks of the repository keep none.

Everything happens in a temporary copy: notebooks are executed there (CPU, synthetic scenes), nbdev
adds the API reference, and Quarto renders the site where it is installed. Elsewhere nbconvert makes
an HTML preview of every page. The links of both, and of the texts, are checked here too.
"""

import ast
import html
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import yaml

import nbs

QUARTO = "_quarto.yml"
PICTURE = (".png", ".jpg", ".jpeg", ".gif", ".svg")
TEXTS = ("README*.md", "CHANGELOG.md", "CONTRIBUTING.md", "LOG.md", "results/*.md")
RUNNERS_HERE = {"local": {"device": "cpu"}}  # the others want their machine
TARGET = re.compile(r"(\]\(|\bsrc=\"|\bhref=\")<?([^)\s\">]+)")
CODE = re.compile(r"(?ms)^ *(```|~~~).*?^ *\1|``.+?``|`[^`\n]+`")
TITLE = re.compile(r"(?s)((?:# [^\n]*\n*)?(?:> [^\n]*)?)\s*(.*)")
UNTRIED = (
    "*No results on this page: this notebook wants its machine. `local` is the same with results.*"
)
UNRUN = re.compile(r"(?m)^#\|\s*(eval:\s*false|slow|tpu|cuda|mps)\b")
UNEVALUATED = "#| eval: false\n"
LEFT = "left-by-nbdev"  # the tag of a cell that is not to be evaluated again
STAGE = "from nbdev.serve import proc_nbs; proc_nbs(n_workers=0)"


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
    "Put notebooks, library, settings and results into a folder, and name the notebooks."
    made = nbs.products(root)
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
    env |= {"PYTHONPATH": str(there), "OMP_NUM_THREADS": "1"}
    where = {"metadata": {"path": str(path.parent)}}
    try:
        client = NotebookClient(nb, timeout=1800, kernel_name="python3", resources=where)
        client.extra_arguments = ["--log-level=ERROR"]
        client.execute(env=env)
    except CellExecutionError as error:
        return f"{name}: {error.ename}: {error.evalue}".splitlines()[0]
    nbformat.write(nb, path)
    return ""


def execute_all(there: Path, names: list[str]) -> None:
    "Run what can be run on this machine, two at a time."
    wanted = [n for n in names if "/run/" not in n or Path(n).stem in RUNNERS_HERE]
    with ThreadPoolExecutor(2) as pool:
        problems = pool.map(lambda name: execute(there, name), wanted)
        for name, problem in zip(wanted, problems, strict=True):
            if problem:
                raise nbs.Mistake(f"{problem}; `tools/nbs.py test {Path(name).stem}` shows more")
            print(f"executed {name}", flush=True)
    for name in sorted(set(names) - set(wanted)):
        nb = nbformat.read(there / name, as_version=4)
        nb.cells.insert(1, nbformat.v4.new_markdown_cell(UNTRIED))
        nbformat.write(nb, there / name)


def prepare(there: Path, names: list[str]) -> None:
    """Keep nbdev from two things: evaluating lessons that import something without what comes
    before them (it wants the imports for its reference), and dropping what stands in a cell below
    the title."""
    for name in names:
        nb = nbformat.read(there / name, as_version=4)
        if nb.cells and nb.cells[0].cell_type == "markdown":
            title, rest = TITLE.match(nb.cells[0].source).groups()  # type: ignore[union-attr]
            below = [nbformat.v4.new_markdown_cell(rest)] if rest else []
            nb.cells[:1] = [nbformat.v4.new_markdown_cell(title)] * bool(title) + below
        for cell in nb.cells:
            if cell.cell_type == "code" and not UNRUN.search(cell.source) and mixed(cell.source):
                cell.source = f"{UNEVALUATED}{cell.source}"
                cell.metadata.tags = [*nbs.tags(cell), LEFT]
        nbformat.write(nb, there / name)


def mixed(source: str) -> bool:
    "Whether a lesson's cell imports something and does more."
    if re.search(r"(?m)^#\|\s*(exports?|exporti)\b", source):
        return False
    try:
        body = ast.parse(source).body
    except SyntaxError:  # magics
        return True
    kinds = (ast.Import, ast.ImportFrom)
    found = any(isinstance(node, kinds) for top in body for node in ast.walk(top))
    return found and not all(isinstance(node, kinds) for node in body)


def rebase(root: Path, there: Path, names: list[str]) -> None:
    "Make links fit the site: pictures come along, other files are those of the repository."
    place = nbs.settings(root)
    base = f"https://github.com/{place['repo']}"

    def moved(page: str, target: str) -> str:
        "Where a link of a page leads on the site."
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
        kind = "tree" if (root / path).is_dir() else "blob"
        return f"{base}/{kind}/{place['branch']}/{path}"

    for name in names:
        nb = nbformat.read(there / name, as_version=4)
        for cell in nb.cells:
            if cell.cell_type == "markdown":
                cell.source = relink(cell.source, lambda target, page=name: moved(page, target))
        nbformat.write(nb, there / name)


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


def process(there: Path, names: list[str]) -> Path:
    "What nbdev makes of the pages: without exported code, with the reference in its place."
    for path in (there / "nbs").rglob("*.py"):  # proc_nbs would copy texts too
        path.unlink()
    env = {**os.environ, "PYTHONPATH": str(there), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    line = [sys.executable, "-c", STAGE]
    done = subprocess.run(line, cwd=there, env=env, capture_output=True, text=True)
    staged = there / "_proc"
    if done.returncode or not staged.is_dir():
        said = (done.stderr or done.stdout).strip().splitlines()
        raise nbs.Mistake(f"nbdev.serve.proc_nbs: {said[-1] if said else 'failed without a word'}")
    for name in names:
        path = staged / Path(name).relative_to("nbs")
        written = json.loads(path.read_text(encoding="utf-8"))
        for cell in written["cells"]:
            cell.pop("has_sd", None)  # a mark of nbdev's that is no part of the format
        nb = nbformat.reads(json.dumps(written), as_version=4)
        for cell in nb.cells:
            if LEFT in nbs.tags(cell):
                cell.source = cell.source.replace(UNEVALUATED, "")
                cell.metadata.tags = [tag for tag in nbs.tags(cell) if tag != LEFT]
        nbformat.write(nb, path)
    shutil.copy(there / QUARTO, staged)
    return staged


# The preview, where there is no Quarto


def page_name(name: str) -> str:
    "The page of a notebook, named as nbdev and Quarto do: without its number."
    folder, stem = posixpath.split(name)
    return posixpath.join(folder, re.sub(r"^\d+[a-z]?_", "", stem).removesuffix(".ipynb") + ".html")


def menu(staged: Path) -> list[tuple[str, list[str]]]:
    "The sections of the site's menu and the notebooks in them."
    website = yaml.safe_load((staged / QUARTO).read_text(encoding="utf-8"))["website"]
    found: list[tuple[str, list[str]]] = []
    for entry in website["sidebar"]["contents"]:
        if isinstance(entry, str):
            found.append(("", [entry]))
            continue
        listed = entry["contents"]
        for pattern in [listed] if isinstance(listed, str) else listed:
            if not list(staged.glob(pattern)):
                raise nbs.Mistake(f"{QUARTO}: lists {pattern}, and there is no such page")
        many = sorted(p.relative_to(staged).as_posix() for p in staged.glob(str(listed)))
        found.append((entry["section"], many if isinstance(listed, str) else listed))
    return found


def title_of(nb: nbs.Notebook, name: str) -> tuple[str, str]:
    "Title and description, as nbdev put them at the top, or the first heading."
    top = nb.cells[0].source if nb.cells and nb.cells[0].cell_type == "raw" else ""
    told = yaml.safe_load(top.replace("---", "").strip() or "{}") or {}
    for cell in nb.cells:
        heading = re.search(r"(?m)^# (.+)$", cell.source) if cell.cell_type == "markdown" else None
        if heading and "title" not in told:
            told["title"] = heading[1]
    return str(told.get("title", Path(name).stem)), str(told.get("description", ""))


def shown(nb: nbs.Notebook) -> nbs.Notebook:
    "The cells of a page as the preview shows them."
    cells = []
    for cell in nb.cells:
        if cell.cell_type == "raw" or cell.source.startswith("<!-- WARNING"):
            continue
        if re.search(r"(?m)^#\|\s*echo:\s*false", cell.source):
            cell.metadata.tags = [*nbs.tags(cell), "hide-input"]
        if cell.cell_type == "code":
            cell.source = re.sub(r"(?m)^#\|.*\n?", "", cell.source).strip()
            for output in cell.outputs:
                told = output.get("data", {}).get("text/markdown")
                if told:  # what only Quarto understands
                    told = re.sub(r"(?<=\))\{[^}\n]*\}", "", "".join(told))
                    output.data = {"text/markdown": told}
        cells.append(cell)
    nb.cells = cells
    return nb


def slug(text: str) -> str:
    "The anchor of a heading, as Quarto makes it."
    plain = html.unescape(re.sub(r"<[^>]+>", "", text)).lower()
    return re.sub(r"[^\w\-. ]", "", plain).strip().replace(" ", "-")


def preview(root: Path, staged: Path, out: Path) -> list[str]:
    "Write a page of HTML for every notebook; their names."
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    listed = menu(staged)
    names = [name for _, section in listed for name in section]
    titles, bodies = {}, {}
    hide = {"enabled": True, "remove_input_tags": {"hide-input"}}
    options = Config(
        {
            "HTMLExporter": {"exclude_input_prompt": True, "exclude_output_prompt": True},
            "TagRemovePreprocessor": hide,
        }
    )
    exporter = HTMLExporter(config=options, template_name="basic", exclude_anchor_links=True)
    for name in names:
        nb = nbformat.read(staged / name, as_version=4)
        titles[name] = title_of(nb, name)
        bodies[name] = local(root, name, exporter.from_notebook_node(shown(nb))[0])
    for at, name in enumerate(names):
        path = out / page_name(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        before, after = (names[i] if 0 <= i < len(names) else "" for i in (at - 1, at + 1))
        path.write_text(frame(name, titles, bodies[name], listed, before, after), encoding="utf-8")
    if (staged / "pictures").is_dir():
        shutil.copytree(staged / "pictures", out / "pictures", dirs_exist_ok=True)
    mend_reference(out)
    return [page_name(name) for name in names]


def local(root: Path, name: str, body: str) -> str:
    "The HTML of a page with links to pages beside it, and anchors as Quarto makes them."
    ini = (root / "settings.ini").read_text(encoding="utf-8")
    user, repo = nbs.settings(root)["repo"].split("/")
    site = f"https://{user}.github.io/{repo}/" if "doc_host" in ini else ""
    up = "../" * name.count("/")

    def link(match: re.Match[str]) -> str:
        "One link."
        target, _, anchor = html.unescape(match[2]).partition("#")
        if site and target.startswith(site):  # made by nbdev
            target = up + target.removeprefix(site)
        elif not urlsplit(target).scheme and target.endswith(".ipynb"):
            target = page_name(target)
        return f'{match[1]}="{html.escape(target)}{"#" if anchor else ""}{anchor.lower()}"'

    def heading(match: re.Match[str]) -> str:
        "One heading."
        return f'<h{match[1]} id="{slug(match[3])}">{match[3]}</h{match[1]}>'

    body = re.sub(r'(?s)<h([1-6])( id="[^"]*")?>(.*?)</h\1>', heading, body)
    return re.sub(r'\b(href|src)="((?!data:)[^"]*)"', link, body)


def mend_reference(out: Path) -> None:
    "nbdev links every name in backticks; where the page has no such heading, link to the page."
    pages = {p: Page(p.read_text(encoding="utf-8")) for p in sorted(out.rglob("*.html"))}
    for path, page in pages.items():
        text = path.read_text(encoding="utf-8")
        for target in {t for t in page.targets if "#" in t and not urlsplit(t).scheme}:
            file, anchor = target.split("#")
            there = pages.get((path.parent / file).resolve())
            if there and anchor not in there.anchors:
                text = text.replace(f'<a href="{target}"><code>', f'<a href="{file}"><code>')
        path.write_text(text, encoding="utf-8")


def frame(
    name: str,
    titles: dict[str, tuple[str, str]],
    body: str,
    listed: list[tuple[str, list[str]]],
    before: str,
    after: str,
) -> str:
    "A whole page: menu, title, body, and the pages before and after it."
    from pygments.formatters import HtmlFormatter

    def to(other: str, text: str = "") -> str:
        "A link to another page."
        target = posixpath.relpath(page_name(other), posixpath.dirname(name) or ".")
        here = ' class="here"' if other == name else ""
        return f'<a href="{html.escape(target)}"{here}>{text}{html.escape(titles[other][0])}</a>'

    side = ""
    for section, pages in listed:
        side += f"<h2>{html.escape(section)}</h2>" if section else ""
        side += "<ul>" + "".join(f"<li>{to(page)}</li>" for page in pages) + "</ul>"
    title, told = (html.escape(text) for text in titles[name])
    told = re.sub(r"`([^`]+)`", r"<code>\1</code>", told)
    head = "" if re.search(r"<h1\b", body) else f"<h1>{title}</h1>"
    head += f'<p class="about">{told}</p>' if told else ""
    steps = (to(before, "&larr; ") if before else "") + (to(after, "&rarr; ") if after else "")
    lang = "zh-CN" if "zh-CN" in name else "en"
    style = STYLE + HtmlFormatter(style="friendly").get_style_defs(".highlight")
    return (
        f'<!DOCTYPE html>\n<html lang="{lang}"><head><meta charset="utf-8"><title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{style}</style></head>\n<body><nav>{side}</nav>\n"
        f"<main>{head}\n{body}\n<footer>{steps}</footer></main></body></html>\n"
    )


STYLE = """
body{margin:0;display:flex;font:16px/1.55 system-ui,sans-serif;color:#1c2733;background:#fff}
nav{flex:0 0 15rem;padding:1rem;background:#f3f5f7;height:100vh;overflow:auto;position:sticky;top:0}
nav{box-sizing:border-box;font-size:.9rem}nav h2{font-size:.8rem;margin:1rem 0 .2rem;color:#52606d}
nav ul{list-style:none;margin:0;padding:0}nav a.here{font-weight:bold}a{color:#0b5cad}
main{flex:1;min-width:0;max-width:56rem;padding:1rem 2rem 4rem}
.about{color:#52606d;font-size:1.1rem}
table{border-collapse:collapse;display:block;overflow-x:auto;font-size:.92rem;margin:1rem 0}
th,td{border:1px solid #d5dbe1;padding:.3rem .6rem;text-align:left;vertical-align:top}
pre{background:#f3f5f7;padding:.7rem;overflow-x:auto;font-size:.85rem}code{font-size:.9em}
.jp-OutputArea-output pre,.output pre{background:none;border-left:3px solid #d5dbe1}
img{max-width:100%}footer{display:flex;justify-content:space-between;margin-top:3rem}
@media(max-width:50rem){body{display:block}nav{height:auto;position:static}main{padding:1rem}}
"""


# Checking what was written


class Page(HTMLParser):
    "The links and the anchors of a page."

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        "Note what a tag refers to and is called."
        for key, value in attrs:
            if key in ("href", "src") and value:
                self.targets.append(value)
            if key in ("id", "name") and value:
                self.anchors.add(value)


def lost(root: Path, out: Path) -> list[str]:
    "Links of a written site that lead nowhere, one line each."
    pages = {p.resolve(): Page(p.read_text(encoding="utf-8")) for p in sorted(out.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                why = wrong(root, "", target)
            else:
                there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                anchor = unquote(parts.fragment)
                why = "" if there.is_file() else "there is no such file"
                if not why and anchor and there in pages and anchor not in pages[there].anchors:
                    why = "the page has no such heading"
            if why:
                found.append(f"{nbs.relative(path, out.resolve())}: {target}: {why}")
    return list(dict.fromkeys(found))


# The command


def docs(root: Path, run: bool = True, output: str = "_docs") -> int:
    "Build the site into _docs/: executed copies, by Quarto or as a preview, links checked."
    out = (root / output).resolve()
    with tempfile.TemporaryDirectory(prefix="mshnet-docs-") as folder:
        there = Path(folder).resolve()
        names = stage(root, there)
        if run:
            execute_all(there, names)
        rebase(root, there, names)
        prepare(there, names)
        staged = process(there, names)
        shutil.rmtree(out, ignore_errors=True)
        quarto = shutil.which("quarto")
        if quarto:
            print("quarto render (this path was never tried with a real Quarto)", flush=True)
            done = subprocess.run([quarto, "render"], cwd=staged)
            if done.returncode:
                raise nbs.Mistake(f"quarto render: status {done.returncode}; see its lines above")
            shutil.copytree(staged / "_docs", out)
        else:
            preview(root, staged, out)
    bad = [line for page, text in texts(root).items() for line in broken(root, page, text)]
    bad += lost(root, out)
    nbs.tell(bad)
    pages = len(list(out.rglob("*.html")))
    kind = "pages by Quarto" if quarto else "pages of a preview by nbconvert (no Quarto here)"
    print(f"{out / 'index.html'}: {pages} {kind}, {len(bad) or 'no'} broken links")
    return bool(bad)
