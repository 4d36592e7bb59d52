# SPDX-License-Identifier: Apache-2.0
"""The archives that are shipped, their versions, and the error for each missing extra.

Tests of a missing extra hide its packages from a new interpreter. Installing the built wheel into
empty environments, with the core alone and with each extra alone, is a soak test.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tests.met_messages import messages

import pufferslice

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
RECIPE = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))
SHIPPED = (
    "LICENSE",
    "NOTICE",
    "pufferslice/data/ADULT.md",
    "pufferslice/data/adult.csv.gz",
    "pufferslice/py.typed",
)
UNPACKED = {
    ".github",
    ".gitignore",
    ".pre-commit-config.yaml",
    "CHANGELOG.md",
    "CITATION.cff",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "GOVERNANCE.md",
    "LICENSE",
    "Makefile",
    "NOTICE",
    "PKG-INFO",
    "README.md",
    "SECURITY.md",
    "benchmarks",
    "changelog.d",
    "conftest.py",
    "constraints.txt",
    "docs",
    "examples",
    "hatch_build.py",
    "mkdocs.yml",
    "noxfile.py",
    "pyproject.toml",
    "recipe",
    "reproduction",
    "soak",
    "src",
    "tests",
}
MADE = re.compile(r"__pycache__|\.(py[co]|nb[ci]|ledger|npz|egg-info|whl|log)\b|/\.\w+_cache/")
"""Names of what a build, a test or a run leaves behind."""
PACKAGES = {
    "baselines": ("dp_accounting", "ot"),
    "fast": ("numba",),
    "report": ("jinja2",),
    "rigorous": ("flint",),
    "sklearn": ("sklearn",),
    "team": ("psycopg",),
    "torch": ("torch",),
}
QUICKENING = {"engines"}
"""Extras without which everything runs, only slower."""
BROUGHT = {("baselines", "fast"), ("torch", "fast"), ("torch", "report")}
"""Extras whose packages are dependencies of those of another; report needs jinja2 only."""
HIDING = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from pufferslice.errors import MissingExtraError
"""
NEEDS = {
    "baselines": [
        "pufferslice.baselines.dp_sgd:dp_accounting",
        "pufferslice.baselines.transport:pot",
    ],
    "fast": ["pufferslice.sensitivity.kernels:merge"],
    "report": ["pufferslice.report.demo:run_demo"],
    "rigorous": ["pufferslice.certificate.rigorous:prove"],
    "sklearn": ["pufferslice.data:digits", "pufferslice.models.linear:scikit_learn"],
    "team": ["pufferslice.releases.postgres:Database"],
    "torch": ["pufferslice.torch:Trainer"],
}
"""Names behind which an extra is needed; modules that look for one themselves are added."""
LATE = {
    "pufferslice._core.kernels",
    "pufferslice.baselines.dp_sgd",
    "pufferslice.baselines.transport",
    "pufferslice.data.images",
    "pufferslice.models.linear",
    "pufferslice.queries.models",
}
"""Modules that look for an extra when they are called."""
NAMES = """
import pkgutil
for name in {names!r}:
    try:
        value = pkgutil.resolve_name(name)
        # These look when called.
        if name.endswith((":digits", ":dp_accounting", ":merge", ":pot", ":scikit_learn")):
            value()
        print("there", name)
    except ImportError as error:
        print(error if type(error).__name__ == "MissingExtraError" else repr(error))
"""
RUN = "--n-records 500 --exactly 2 --sampling poisson --batch-size 50 --n-steps 20 --epsilon 1"
ACCOUNT = ["account", *RUN.split(), "--order", "8"]
RELEASE = "--certificate c.json --ledger one.ledger --out r.json"
COMMANDS = [
    ("baselines", ["account", *RUN.split(), "--delta", "1e-5"]),
    ("report", ["demo", "--out", "demo-output"]),
    ("report", ["report", "start/scenario.toml", "--out", "page.html"]),
    ("torch", ["train", "start/training.toml", "--out", "run"]),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist and the wheel built from it, without isolation, so that no index is needed."""
    folder = tmp_path_factory.mktemp("built")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("pufferslice-*.whl")
    return path


def test_the_wheel_carries_code_data_schemas_and_licences(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        stated = message_from_bytes(
            archive.read(next(name for name in names if name.endswith(".dist-info/METADATA")))
        )
    package = ROOT / "src" / "pufferslice"
    source = {
        f"pufferslice/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    inside = {re.sub(r".*\.dist-info/(licenses/)?", "", name) for name in names} | names
    assert not [name for name in SHIPPED if name not in inside]
    assert {name for name in names if ".dist-info/" not in name} == source
    assert stated["Version"] == pufferslice.__version__
    assert stated["License-Expression"] == "Apache-2.0"
    assert set(stated.get_all("Provides-Extra")) == set(EXTRAS)


def test_the_wheel_carries_its_bill_of_materials(wheel):
    """Itself, the data inside it, and every requirement of the core with its range."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
        bill = json.loads(archive.read(name))
    about = bill["metadata"]["component"]
    assert (bill["bomFormat"], about["version"]) == ("CycloneDX", pufferslice.__version__)
    data, *required = bill["components"]
    assert (data["type"], data["licenses"]) == ("data", [{"license": {"id": "CC-BY-4.0"}}])
    ranges = [part["properties"][0]["value"] for part in required]
    assert sorted(ranges) == sorted(PROJECT["dependencies"])
    assert {part["name"] for part in required} == {Requirement(line).name for line in ranges}
    (edges,) = bill["dependencies"]
    assert edges["ref"] == about["bom-ref"]
    assert edges["dependsOn"] == [part["bom-ref"] for part in bill["components"]]


def test_the_source_archive_carries_the_project_and_nothing_that_was_made(built):
    (path,) = built.glob("pufferslice-*.tar.gz")
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {name.partition("/")[0] for name in names} == UNPACKED
    assert [name for name in names if MADE.search(name)] == []


def test_versions_agree():
    """A development version is one of the release that it leads to."""
    version = pufferslice.__version__.removesuffix(".dev0")
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r'^version: "?([\d.]+)"?$', citation, re.MULTILINE)[1] == version
    released = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == version
    assert RECIPE["context"]["version"] == version


def test_the_oldest_python_is_the_first_that_is_classified():
    tested = [
        tuple(map(int, line.rpartition(" ")[2].split(".")))
        for line in PROJECT["classifiers"]
        if re.search(r"Python :: \d\.\d+$", line)
    ]
    assert tested == sorted(tested)
    assert PROJECT["requires-python"] == ">=" + ".".join(map(str, tested[0]))


def test_lower_bounds_are_those_that_were_tested():
    """CONTRIBUTING.md says how to run the tests with tests/lower-bounds.txt."""
    pinned = dict(
        line.split("==") for line in (ROOT / "tests" / "lower-bounds.txt").read_text().split()
    )
    extras = [line for lines in EXTRAS.values() for line in lines]
    others = [line for line in extras if not line.startswith("pufferslice[")]
    for line in [*PROJECT["dependencies"], *others]:
        name, bound = re.match(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)$", line).groups()
        assert re.match(rf"{re.escape(bound)}(\.0)*$", pinned[name]), line


def test_what_is_installed_is_what_is_locked():
    """Every requirement, and every requirement of one, has its version in constraints.txt."""
    locked = {
        canonicalize_name(name): Version(version)
        for name, version in (
            line.split("==") for line in (ROOT / "constraints.txt").read_text().split()
        )
    }
    groups = PYPROJECT["dependency-groups"]
    lines = [line for group in groups.values() for line in group if isinstance(line, str)]
    wanted = [*PROJECT["dependencies"], *lines]
    wanted += [line for extra in EXTRAS.values() for line in extra]
    # torch tells its builds apart behind a plus sign.
    other = {
        name: version
        for name, version in installed(wanted).items()
        if locked.get(name) != Version(Version(version).public)
    }
    assert other == {}, "constraints.txt has other versions, or none"


def test_development_includes_every_group():
    groups = dict(PYPROJECT["dependency-groups"])
    assert {line["include-group"] for line in groups.pop("dev")} == set(groups)


def test_the_recipe_asks_for_what_the_project_asks_for():
    requirements = RECIPE["requirements"]
    _, *run = (line.replace(" ", "") for line in requirements["run"])
    assert run == PROJECT["dependencies"]
    assert f">={RECIPE['context']['python_min']}" == PROJECT["requires-python"]
    (backend,) = PYPROJECT["build-system"]["requires"]
    assert backend in {line.replace(" ", "") for line in requirements["host"]}
    (command,) = RECIPE["build"]["python"]["entry_points"]
    assert dict([command.split(" = ")]) == PROJECT["scripts"]


def test_workflows_run_every_classified_python():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    tested = re.findall(r'python: "([\d.]+)", session: tests-\1 ', workflow)
    classified = [line.rpartition(" ")[2] for line in PROJECT["classifiers"]]
    assert tested == [version for version in classified if re.fullmatch(r"\d\.\d+", version)]


def test_all_is_every_extra():
    (everything,) = EXTRAS["all"]
    named = re.fullmatch(r"pufferslice\[([\w,]+)\]", everything)[1].split(",")
    assert set(named) == set(EXTRAS) - {"all"} == set(PACKAGES) | QUICKENING


@pytest.mark.parametrize("extra", PACKAGES)
def test_a_missing_extra_is_named_in_one_sentence(extra):
    code = f"HIDDEN = {PACKAGES[extra]!r}\n{HIDING}{NAMES.format(names=needing(extra))}"
    sentences = python("-c", code).stdout.splitlines()
    assert len(sentences) == len(needing(extra)) >= 1
    for sentence in sentences:
        check_sentence(sentence, extra)


def test_every_extra_is_looked_for():
    assert set(looking()) == set(PACKAGES)


@pytest.mark.parametrize(
    ("extra", "words"), COMMANDS, ids=lambda value: value if isinstance(value, str) else value[0]
)
def test_a_command_without_its_extra_says_so_and_leaves_nothing(extra, words, tmp_path):
    hidden = f"HIDDEN = {PACKAGES[extra]!r}\n{HIDING}\nfrom pufferslice.cli import app\n"
    code = f"{hidden}app.run(['init', 'start'])\nsys.exit(app.run({words!r}))"
    before_and_after = python("-c", code, folder=tmp_path, expected=1)
    assert before_and_after.stderr.startswith("error: ")
    check_sentence(before_and_after.stderr.removeprefix("error: "), extra)
    assert {path.name for path in tmp_path.iterdir()} == {"start"}


def test_the_core_alone_calibrates_releases_verifies_and_accounts(tmp_path):
    """No package of any extra is needed, nor looked for."""
    hidden = tuple(name for names in PACKAGES.values() for name in names)
    core = [
        ["init", "--template", "prevalence", "start"],
        ["calibrate", "start/scenario.toml", "--out", "c.json"],
        ["verify", "c.json", "--scenario", "start/scenario.toml"],
        ["release", "start/scenario.toml", *RELEASE.split()],
        ["spent", "c.json", "--order", "8"],
        ACCOUNT,
    ]
    code = (
        f"HIDDEN = {hidden!r}\n{HIDING}\nfrom pufferslice.cli import app\n"
        f"for words in {core!r}:\n    assert app.run(words) == 0, words"
    )
    python("-c", code, folder=tmp_path)
    assert json.loads((tmp_path / "r.json").read_text())["secure"] is True


@pytest.mark.parametrize("template", ["prevalence", "occupancy"])
def test_certificates_say_the_same_without_a_compiler(template, tmp_path):
    found = []
    for name, hidden in (("with", ()), ("without", PACKAGES["fast"])):
        words = ["calibrate", "start/scenario.toml", "--out", f"{name}.json"]
        code = (
            f"HIDDEN = {hidden!r}\n{HIDING}\nfrom pufferslice.cli import app\n"
            f"app.run(['init', '--template', {template!r}, 'start'])\n"
            f"assert app.run({words!r}) == 0"
        )
        python("-c", code, folder=tmp_path)
        certificate = json.loads((tmp_path / f"{name}.json").read_text())
        certificate["statement"].pop("evidence_digest")
        found.append(certificate["statement"])
        shutil.rmtree(tmp_path / "start")
    assert found[0] == found[1]


@pytest.mark.soak
@pytest.mark.parametrize("extra", [None, *PACKAGES, "all"])
def test_the_wheel_installs_into_an_empty_environment(wheel, extra, tmp_path):
    """With the versions of constraints.txt; a name that needs another extra says which."""
    place = tmp_path / "venv"
    venv.create(place, with_pip=True)
    requirement = str(wheel) if extra is None else f"{wheel}[{extra}]"
    pip = [place / "bin" / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, requirement], check=True)
    script = place / "bin" / "pufferslice"
    for words in (["--help"], ["init", "start"], ACCOUNT):
        subprocess.run([script, *words], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    has = {name for name in PACKAGES if extra in (name, "all") or (extra, name) in BROUGHT}
    for needed in PACKAGES:
        code = NAMES.format(names=needing(needed))
        output = subprocess.check_output(
            [place / "bin" / "python", "-c", code], cwd=tmp_path, text=True
        )
        for sentence in output.splitlines():
            if needed in has:
                assert sentence.startswith("there "), sentence
            else:
                # What needs several extras names one that is missing.
                named = re.search(r"pufferslice\[(\w+)\]", sentence)
                assert named is not None, sentence
                assert named[1] in set(PACKAGES) - has, sentence
                check_sentence(sentence, named[1])


def installed(lines):
    """Versions of the packages that these lines bring along, as far as they are here."""
    versions, waiting, seen = {}, [*map(Requirement, lines)], set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name == "pufferslice" or str(requirement) in seen:
            continue
        seen.add(str(requirement))
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of another system or Python; pip itself would have complained
        versions[name] = found.version
        for line in found.requires or ():
            needed = Requirement(line)
            extras = ["", *requirement.extras]
            if not needed.marker or any(needed.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(needed)
    return versions


def looking():
    """The modules that raise `MissingExtraError`, by extra."""
    modules = {}
    for site in messages.all_sites():
        extra = re.search(r"pufferslice\[(\w+)\]", site.text)  # none: pandas, which is no extra
        if site.kind == "MissingExtraError" and extra:
            modules.setdefault(extra[1], set()).add(site.module)
    return modules


def needing(extra):
    early = looking()[extra] - LATE
    return [*NEEDS[extra], *(f"{module}:" for module in sorted(early))]


def check_sentence(text, extra):
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert lines[0].endswith(f"pip install 'pufferslice[{extra}]'"), text


def python(*words, folder=None, expected=0):
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done
