# SPDX-License-Identifier: Apache-2.0
"""What every test may ask for: seeds, real data, a browser, and skips that count in CI."""

import os
import shutil
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from tests.met_messages import Recorder

FIXED_SEED = 20_260_101
DRIVER, CHROMIUM = shutil.which("chromedriver"), shutil.which("chromium")
QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.register_profile(
    "soak", derandomize=False, deadline=None, max_examples=2_000, print_blob=True
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_configure(config):
    recorder = Recorder()
    recorder.start()
    config.pluginmanager.register(recorder, "pufferslice-messages")
    config.add_cleanup(recorder.stop)


def pytest_report_header() -> str:
    return f"PUFFERSLICE_SEED={_seed()}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    return _skip_is_failure(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return _skip_is_failure(report)


@pytest.fixture(scope="session")
def repository():
    """The folder of the checkout."""
    return Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Debian's Chromium, headless, alone in its own profile; nothing is fetched for it."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if DRIVER is None or CHROMIUM is None:
        pytest.skip("there is no Chromium: install Debian's chromium and chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*QUIET, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = selenium.ChromeService(executable_path=DRIVER)
    driver = selenium.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="session")
def seed():
    """Fixed in `make test`; rotated and printed by `make soak`."""
    return _seed()


@pytest.fixture
def rng(seed):
    """A generator of its own for each test."""
    return np.random.default_rng(seed)


@pytest.fixture(scope="session")
def data_folder():
    """The folder with cleveland, student and cifar10."""
    folder = os.environ.get("PUFFERSLICE_DATA")
    if not folder:
        pytest.skip("PUFFERSLICE_DATA does not name the folder with the real data")
    return Path(folder)


def _seed():
    return int(os.environ.get("PUFFERSLICE_SEED", FIXED_SEED))


def _skip_is_failure(report):
    """With PUFFERSLICE_REQUIRE=all nothing may be left out."""
    required = os.environ.get("PUFFERSLICE_REQUIRE") == "all"
    if required and report.skipped and not hasattr(report, "wasxfail"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"PUFFERSLICE_REQUIRE=all, but this was skipped: {why}"
    return report
