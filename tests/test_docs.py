# SPDX-License-Identifier: Apache-2.0
"""The documentation builds without a warning, and its code and outputs are correct.

On every page, from top to bottom and in one empty folder: `python` blocks run; a `text` block with
the title Output is what the Python before it printed; the `$ pufferslice …` lines of a `console`
block run and print the lines after them; a `toml` block with a title is written to a file of that
name. In outputs `...` matches anything, and white space does not count. Python that cannot run here
is marked `{ .python .no-run }` and listed below with the reason; it must compile, and its imports
must exist. No other block may show code, neither fenced nor indented, on these pages or in the
files that they include.
"""

import ast
import contextlib
import doctest
import html
import importlib.util
import inspect
import io
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import attrs
import griffe
import markdown
import pytest
import typer
from mkdocs.config import load_config
from tests.met_messages import messages

import pufferslice
from pufferslice.cli import app

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=\"?(?:https?:)?//[^>]*>")
LIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
INCLUDED = [ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")]
FENCE = re.compile(r"^ *(```+|~~~+)([^\n]*)\n(.*?)^ *\1 *$", re.MULTILINE | re.DOTALL)
RUN = re.compile(r'python(?: title="[^"]+")?|console|text title="Output"|toml title="[^"]+"')
NOT_RUN = {
    (
        "audits.md",
        "{ .python .no-run }",
    ): "the reader's own training, with their own records",
    ("audits.md", "text"): "takes ten minutes; tests/audit/test_teeth.py runs the same rows",
    ("CONTRIBUTING.md", "sh"): "installs old versions of everything; a test keeps them in step",
    ("files.md", "text"): "the list of commands, compared with them below",
    (
        "one-release.md",
        "{ .sh .no-run }",
    ): "needs a database server; tests/releases/test_postgres.py runs one",
    ("report.md", "{ .python .no-run }"): "a verdict of hours of training",
    ("series.md", "{ .python .no-run }"): "tests/torch/test_budget.py trains a part of a budget",
    ("templates.md", "text"): "tests/test_examples.py runs the script",
    (
        "training-loops.md",
        "{ .python .no-run }",
    ): "tests/torch/test_lightning.py runs the loop; no TensorBoard is installed",
}
INDENTED = {
    "testing.md": "runs for hours; the modules exist, and the tests run small samples of each",
}
IMPORT = r"^ *from (pufferslice[\w.]*) import (\([^)]*\)|[\w, ]+)"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built pages."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_runs_and_prints_what_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    follow(page.read_text(encoding="utf-8"))


def follow(text):
    """Run the blocks of a page in their order, and compare what they print."""
    reader = Reader()
    for language, options, body in BLOCK.findall(text):
        title = TITLE.search(options)
        if language == "python":
            reader.run_python(body)
        elif language == "text" and title and title[1] == "Output":
            reader.check(body)
        elif language == "console":
            reader.run_console(body)
        elif language == "toml" and title:
            Path(title[1]).write_text(body, encoding="utf-8")


def test_every_block_is_run_or_listed_with_a_reason():
    blocks = {
        (page_name(page), info.strip()): body
        for page in [*PAGES, *INCLUDED]
        for _, info, body in FENCE.findall(page.read_text(encoding="utf-8"))
        if not RUN.fullmatch(info.strip())
    }
    assert set(blocks) == set(NOT_RUN)
    for (page, info), body in blocks.items():
        if "python" in info:
            nodes = ast.parse(body).body
            imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(imports, []), page, "exec"), {})  # noqa: S102 - our own text


def page_name(page):
    return str(page.relative_to(DOCS)) if DOCS in page.parents else page.name


def indented_blocks(text):
    """Code that is marked by four spaces and not by a fence."""
    extensions = ["admonition", "attr_list", "def_list", "tables"]
    shown = markdown.markdown(re.sub(FENCE, "", text), extensions=extensions)
    blocks = re.findall(r"<pre><code>(.*?)</code></pre>", shown, re.DOTALL)
    return [html.unescape(block) for block in blocks]


def test_no_block_hides_in_its_indentation():
    pages = [*PAGES, *INCLUDED, ROOT / "README.md"]
    indented = {page_name(page): indented_blocks(page.read_text("utf-8")) for page in pages}
    indented = {page: blocks for page, blocks in indented.items() if blocks}
    assert set(indented) == set(INDENTED)
    for line in "".join(block for blocks in indented.values() for block in blocks).splitlines():
        named = re.match(r"python (?:-m ([\w.]+)|([\w./]+\.py))", line)
        assert named, line
        path = named[2] or named[1].replace(".", "/") + ".py"
        assert (ROOT / path).exists(), line


@pytest.mark.parametrize("page", [*PAGES, *INCLUDED, ROOT / "README.md"], ids=page_name)
def test_scripts_and_targets_in_the_text_exist(page):
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = set(re.findall(r"`make (\w+)[^`]*`", text))
    scripts = re.findall(r"\b((?:benchmarks|tests|soak|examples|docs)/[\w/]+\.\w+)", text)
    assert named <= set(targets)
    assert not [script for script in scripts if not (ROOT / script).exists()]


def test_the_list_of_commands_is_complete():
    page = (DOCS / "files.md").read_text(encoding="utf-8")
    (listed,) = (body for _, info, body in FENCE.findall(page) if info.strip() == "text")
    shown = {tuple(line.split("  ")[0].split()[1:]) for line in listed.splitlines()}
    assert {words[0] for words in shown - {("--version",)}} == set(all_commands())


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_commands_in_the_text_exist_with_their_flags(page):
    known = all_commands()
    text = re.sub(FENCE, "", page.read_text(encoding="utf-8"))
    for command in re.findall(r"`pufferslice ([a-z][^`]*)`", text):
        name, *words = command.split()
        assert name in known, command
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert flags <= known[name] | {"--help"}, command


def all_commands():
    """Words after `pufferslice`, and the flags that they take; of a group all of them."""
    flags = {}
    for name, callback in all_callbacks():
        parameters = inspect.signature(callback).parameters
        flags.setdefault(name, set()).update(f"--{key.replace('_', '-')}" for key in parameters)
    return flags


def all_callbacks():
    """The function of every command, with the first word that leads to it."""
    for command in app.app.registered_commands:
        yield command.name or command.callback.__name__, command.callback
    for group in app.app.registered_groups:
        for command in group.typer_instance.registered_commands:
            yield group.typer_instance.info.name, command.callback


class Reader:
    """Follows a page: one set of names, and what was printed last."""

    def __init__(self):
        self.names = {"__name__": "docs"}
        self.printed = ""
        self.code = 0

    def run_python(self, code):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, "a python block", "exec"), self.names)  # noqa: S102 - our own text
        self.printed = out.getvalue()

    def run_console(self, body):
        commands = re.split(r"^\$ ", body, flags=re.MULTILINE)
        assert not commands[0].strip(), "a console block begins with a command"
        for entry in commands[1:]:
            line, _, expected = entry.replace("\\\n", " ").partition("\n")
            self.run_command(line, expected)

    def run_command(self, line, expected):
        words = shlex.split(line)
        if words == ["echo", "$?"]:
            self.printed = f"{self.code}\n"
        else:
            assert words[0] == "pufferslice", f"not ours: {line}"
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
                self.code = app.run(words[1:])
            self.printed = out.getvalue()
            failed = self.printed.startswith(("error:", "REFUTED"))
            assert (self.code != 0) == failed, f"{line}\n{self.printed}"
        if expected.strip():
            self.check(expected)

    def check(self, expected):
        like = doctest.OutputChecker().check_output(expected, self.printed, LIKE)
        assert like, f"the page says\n{expected}\nbut it was\n{self.printed}"


def test_outputs_are_compared():
    reader = Reader()
    reader.run_python("print('noise 1.5 of a0b1')")
    reader.check("noise 1.5 of ...\n")
    with pytest.raises(AssertionError, match="the page says"):
        reader.check("noise 1.6 of ...\n")
    with pytest.raises(AssertionError, match="there is no column"):
        reader.run_console("$ pufferslice spent --order 2 absent.json\nthere is no column\n")


def listed_in_the_reference():
    """The paths behind `:::` on the reference pages."""
    pages = (page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    return {
        path
        for page in pages
        for path in re.findall(r"^::: (pufferslice[\w.]*)", page, re.MULTILINE)
    }


def packages():
    """The public packages and modules of the library by their names."""
    names = (f"pufferslice.{module.name}" for module in pkgutil.iter_modules(pufferslice.__path__))
    return {name: import_module(name) for name in names if "._" not in name}


def test_every_public_name_is_in_the_reference(site):
    pages = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    for package, module in packages().items():
        assert f'id="{package}"' in pages
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            described = inspect.isclass(value) or inspect.isfunction(value)
            # A function may be listed under the module that defines it.
            paths = (f"{package}.{name}", f"{getattr(value, '__module__', package)}.{name}")
            shown = any(f'id="{path}"' in pages for path in paths)
            assert shown or not described, f"{package}.{name}"


def test_pages_send_nobody_to_a_private_or_unlisted_name():
    listed = listed_in_the_reference()
    assert not [path for path in listed if "._" in path]
    for page in [*PAGES, ROOT / "README.md", *(ROOT / "examples").glob("*.py")]:
        text = page.read_text(encoding="utf-8")
        assert "pufferslice._" not in text, page
        for name, imported in re.findall(IMPORT, text, re.MULTILINE):
            public = getattr(import_module(name), "__all__", None)
            for value in re.findall(r"\w+", imported):
                if f"{name}.{value}" not in listed:
                    assert name in listed, f"{page}: {name}"
                    assert public is None or value in public, f"{page}: {name}.{value}"


def test_every_message_is_listed(site):
    page = html.unescape(re.sub(r"<[^>]+>", "", (site / "reference/errors.html").read_text()))
    words = " ".join(page.split())
    sites = messages.all_sites()
    assert len(sites) > 500
    assert not [str(message) for message in sites if message.text not in words]


def test_pages_load_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES) // 2
    loaded = {page.name: LOADED.findall(page.read_text()) for page in pages}
    assert not {page: tags for page, tags in loaded.items() if tags}
    assert LOADED.search('<script src="https://example.org/x.js"></script>')


@pytest.mark.parametrize("page", ["index.html", "reference/scenario.html"])
def test_search_works_from_a_folder(site, browser, page):
    browser.set_window_size(1280, 800)  # a phone hides the field behind a sign
    browser.get((site / page).as_uri())
    field = browser.find_element("css selector", "[data-md-component='search-query']")
    wait_until(field.is_displayed)
    field.send_keys("prevalence")

    def links():
        found = browser.find_elements("css selector", ".md-search-result__link")
        return [link.get_attribute("href").partition("?")[0] for link in found]

    wait_until(lambda: (site / "templates.html").as_uri() in links())
    assert all(link.startswith(site.as_uri()) for link in links())
    assert browser.find_elements("css selector", "iframe[srcdoc]")  # and not in a worker


def wait_until(is_done, seconds=20):
    end = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.1)


def test_the_navigation_has_at_most_twenty_pages():
    config = load_config(str(ROOT / "mkdocs.yml"))
    entries = [content for entry in config["nav"] for content in entry.values()]
    pages = [len(content) if isinstance(content, list) else 1 for content in entries]
    assert sum(pages) <= 20


def test_every_page_can_be_reached_from_the_navigation():
    """By links, from page to page."""
    config = load_config(str(ROOT / "mkdocs.yml"))
    waiting = re.findall(r"[\w/-]+\.md", str(config["nav"]))
    reached = set()
    while waiting:
        name = waiting.pop()
        if name not in reached and (DOCS / name).exists():
            reached.add(name)
            links = re.findall(r"\]\(([^)#]+\.md)", (DOCS / name).read_text(encoding="utf-8"))
            waiting += [os.path.normpath(Path(name).parent / link) for link in links]
    assert reached == {page_name(page) for page in PAGES}


def test_formulas_reach_the_page_with_their_renderer(site):
    page = (site / "guarantee.html").read_text()
    assert page.count('class="arithmatex"') > 10
    for name in ("katex.min.js", "formulas.js", "katex.min.css"):
        assert name in page
    assert (site / "assets" / "katex" / "katex.min.js").exists()
    fonts = {path.name for path in (site / "assets" / "katex" / "fonts").iterdir()}
    assert "KaTeX_Main-Regular.woff2" in fonts


@pytest.mark.parametrize("name", ["CHANGELOG", "CONTRIBUTING", "SECURITY"])
def test_files_outside_the_folder_are_included(site, name):
    title = (ROOT / f"{name}.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    page = (site / f"{name.lower()}.html").read_text(encoding="utf-8")
    assert re.search(rf"<h1[^>]*>{title}<", page)


def test_reference_shows_examples_and_sources_as_such(site):
    page = (site / "reference" / "calibration.html").read_text()
    assert "<strong>Source:</strong>" in page
    assert "&gt;&gt;&gt;" in page
    assert "<blockquote>" not in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_names_on_the_pages_resolve(page):
    for name in re.findall(r"`(pufferslice(?:\.\w+)+)`", page.read_text(encoding="utf-8")):
        pkgutil.resolve_name(name)


def test_every_command_and_flag_is_described():
    page = (DOCS / "files.md").read_text(encoding="utf-8")
    for name, callback in all_callbacks():
        assert f"`pufferslice {name}" in page
        for key, parameter in inspect.signature(callback).parameters.items():
            marks = getattr(parameter.annotation, "__metadata__", [None])
            if isinstance(marks[0], typer.models.OptionInfo):
                assert f"`--{key.replace('_', '-')}" in page, f"{name}: {key}"


def test_every_field_of_a_certificate_is_described():
    page = (DOCS / "files.md").read_text(encoding="utf-8")
    table = pufferslice.data.adult_complete()
    query = pufferslice.queries.adult_summary()
    scenario = pufferslice.Scenario.from_groups(table, secret="race", query=query)  # noqa: S106
    profile = pufferslice.FiniteProfile.axes(dim=query.dim)
    target = pufferslice.Guarantee.joint(order=4, epsilon=1.0)
    document = pufferslice.certify_release(scenario, target.along(profile)).to_json()
    fields = {*document, *document["statement"], *document["statement"]["scenario"]}
    for part in ("noise", "profile", "unsliced", "guarantee", "method"):
        fields |= set(document["statement"][part])
    assert not [field for field in fields if f"`{field}`" not in page]


@pytest.fixture(scope="module")
def extension():
    """docs/docstrings.py, which mkdocs loads by its path."""
    spec = importlib.util.spec_from_file_location("docstrings", DOCS / "docstrings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_docstrings_become_markdown(extension):
    text = "What.\n\n>>> f(1)\n2\n\nGuarantee: yes.\nNeeds: x.\nSource: thm:one."
    assert extension.markdown_of(text) == (
        "What.\n\n```pycon\n>>> f(1)\n2\n```\n\n"
        "\n**Guarantee:** yes.\n\n**Needs:** x.\n\n**Source:** thm:one."
    )


def test_reference_shows_how_values_are_made(extension):
    loader = griffe.GriffeLoader(
        extensions=griffe.load_extensions(extension.ReadableValues), search_paths=[ROOT / "src"]
    )
    package = loader.load("pufferslice")
    values = [getattr(pufferslice, name) for name in pufferslice.__all__]
    values = [value for value in values if inspect.isclass(value) and attrs.has(value)]
    assert len(values) > 10
    for value in values:
        shown = package[f"{value.__module__.partition('.')[2]}.{value.__name__}"].parameters
        shown = {p.name: (p.kind.name, p.default is None) for p in shown if p.name != "self"}
        true = inspect.signature(value).parameters.values()
        assert shown == {p.name: (p.kind.name.lower(), p.default is p.empty) for p in true}, value
