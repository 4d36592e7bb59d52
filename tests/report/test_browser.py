# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: no error, no request, the slider, both themes, phone and paper."""

import base64
import json
import re

import numpy as np
import pyarrow as pa
import pytest
from tests.report.conftest import LEARNING, STATIC, files

from pufferslice._core.display import rounded
from pufferslice._core.numbers import at_most, percent_at_most
from pufferslice.certificate import certify_release
from pufferslice.certificate.sweep import stated_variation
from pufferslice.claims import Guarantee
from pufferslice.claims.guess import guessing_advantage
from pufferslice.queries import summary
from pufferslice.report.page import internal_page, label_page, public_page
from pufferslice.report.text import N_BOUNDS
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile

END, HOME, RIGHT, LEFT, SPACE = "\ue010", "\ue011", "\ue014", "\ue012", " "
HOSTILE = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(2)>'
SECONDS_TO_INTERACTIVE = 2.0


@pytest.fixture(scope="module")
def whole(scenario):
    """A claim about the whole output, with noise of a fitted shape."""
    return certify_release(scenario, Guarantee.guess(at_most=0.6))


@pytest.fixture(scope="module")
def pages(made, whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    whole.save(folder / "whole.json")
    (folder / "whole.html").write_bytes(internal_page([folder / "whole.json"]))
    inside = internal_page(files(made, (*STATIC, *LEARNING)))
    (folder / "internal.html").write_bytes(inside)
    outside = public_page([made / name for name in ("certificate.json", "release.json")])
    (folder / "public.html").write_bytes(outside)
    (folder / "label.html").write_bytes(label_page([made / "certificate.json"]))
    return folder


@pytest.fixture
def visit(browser, pages):
    """Open a page at a size, in a colour scheme and medium; the log is that of this page alone."""

    def open_page(name, *, width=1280, scheme="light", media="screen"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": media, "features": features}
        )
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get("about:blank")
        for kind in ("browser", "performance"):
            browser.get_log(kind)
        browser.get((pages / name if isinstance(name, str) else name).as_uri())
        return browser

    return open_page


def requests(browser):
    """Addresses that the page asked for since it was opened."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event for event in events if event["method"] == "Network.requestWillBeSent"]
    return [event["params"]["request"]["url"] for event in sent]


def style(browser, selector, name):
    script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    return browser.execute_script(script, selector, name)


def shown(browser, part, name):
    script = "return document.querySelector(arguments[0]).textContent"
    return browser.execute_script(script, f"#{part}-what-if [data-show={name}]")


def picture(browser):
    return base64.b64decode(
        browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})["data"]
    )


@pytest.mark.parametrize("name", ["internal.html", "public.html", "whole.html", "label.html"])
def test_opens_without_an_error_or_a_request_and_quickly(visit, pages, name):
    browser = visit(name)
    assert browser.get_log("browser") == []
    assert requests(browser) == [(pages / name).as_uri()]
    navigation = "return performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
    assert 0 < browser.execute_script(navigation) < 1000 * SECONDS_TO_INTERACTIVE
    if name == "label.html":
        assert style(browser, "main", "maxWidth") == "440px", "its style was allowed"
    else:
        assert browser.execute_script("return document.documentElement.className") == "scripted"


def test_the_requests_of_a_page_that_loads_something_would_be_seen(visit, tmp_path):
    page = tmp_path / "other.html"
    page.write_text("<img src='http://127.0.0.1:9/x.png'>", encoding="utf-8")
    assert "http://127.0.0.1:9/x.png" in requests(visit(page))


def test_the_policy_refuses_what_is_added_later(visit):
    browser = visit("internal.html")
    script = """
        const done = arguments[arguments.length - 1];
        const refused = [];
        document.addEventListener("securitypolicyviolation", (event) => {
          refused.push(event.effectiveDirective);
          if (refused.length === 2) done(refused.sort());
        });
        const image = document.createElement("img");
        image.src = "http://127.0.0.1:9/x.png";
        const code = document.createElement("script");
        code.textContent = "window.broken = true";
        document.body.append(image, code);
    """
    assert browser.execute_async_script(script) == ["img-src", "script-src-elem"]
    assert browser.execute_script("return window.broken === undefined")


def test_the_slider_shows_what_certifying_again_says(visit, scenario, profile, certificate):
    """By keyboard, and every number against a certificate made here for that epsilon."""
    browser = visit("internal.html")
    slider = browser.find_element("css selector", "#part-0-what-if input")
    epsilons = certificate.guarantee.bounds_around(N_BOUNDS)
    moves = [("", 12), (RIGHT, 13), (RIGHT, 14), (HOME, 0), (RIGHT, 1), (END, 24), (LEFT, 23)]
    for key, place in moves:
        slider.send_keys(key)
        target = certificate.guarantee.with_bound(epsilons[place])
        again = certify_release(scenario, target.along(profile), deltas=())
        std = again.noise_std
        right = 0.5 + guessing_advantage(stated_variation(again), largest_share=0.5)
        guess = percent_at_most(right)
        assert shown(browser, "part-0", "bound") == f"{epsilons[place]:g}"
        assert shown(browser, "part-0", "noise") == rounded(std)
        assert shown(browser, "part-0", "error") == rounded(std * (2 / np.pi) ** 0.5)
        assert shown(browser, "part-0", "guess") == guess
        assert shown(browser, "part-0", "unsliced") == at_most(again.unsliced_epsilon, digits=3)
        sentence = shown(browser, "part-0", "sentence")
        assert f"At ε = {epsilons[place]:g} the released mean(pay) is off by" in re.sub(
            "[\u2068\u2069]", "", sentence
        )
        assert f"{rounded(2 * std * (2 / np.pi) ** 0.5)} on average" in sentence
        bounded = f"at most {guess} of the time" if right < 0.999 else "No useful bound on guessing"
        assert bounded in sentence
        script = "return [...document.querySelectorAll('#part-0-what-if [data-std]')]"
        stds = browser.execute_script(f"{script}.map((node) => node.textContent)")
        assert stds == [rounded(std * scale) for scale in (2.0, 5.0, 3.0)]
        assert slider.get_attribute("aria-valuetext") == f"{epsilons[place]:g}"


def test_markers_follow_the_slider(visit):
    browser = visit("internal.html")
    slider = browser.find_element("css selector", "#part-0-what-if input")
    places = "return [...document.querySelectorAll('#part-0-what-if .marker circle')]"
    places += ".map((node) => node.getAttribute('transform'))"
    at_claim = browser.execute_script(places)
    slider.send_keys(END)
    at_end = browser.execute_script(places)
    assert len(set(at_claim)) == len(at_claim) == 3
    assert all(a != b for a, b in zip(at_claim, at_end, strict=True))
    slider.send_keys(LEFT * 12)
    assert browser.execute_script(places) == at_claim
    before = shown(browser, "part-0", "sentence")
    browser.find_element("css selector", "#part-1-what-if input").send_keys(HOME)
    assert shown(browser, "part-0", "sentence") == before, "sliders do not disturb each other"
    assert shown(browser, "part-1", "bound") == "0.126"


def test_html_in_names_and_secrets_is_text(visit, tmp_path):
    """A script as a secret, an image as a column: shown as they are, never run."""
    rng = np.random.default_rng(3)
    groups = [HOSTILE, "south", "</script><b>"]
    table = pa.concat_tables(
        pa.table({IMAGE: [group] * 20, HOSTILE: rng.normal(i, 1, 20), "age": rng.normal(i, 2, 20)})
        for i, group in enumerate(groups)
    )
    query = summary(mean=[HOSTILE, "age"])
    scenario = Scenario.from_groups({"<i>now": table}, secret=IMAGE, query=query)
    target = Guarantee.joint(order=4, epsilon=1.0)
    profile = FiniteProfile.uniform(dim=2, n_directions=8, seed=1)
    certify_release(scenario, target.along(profile)).save(tmp_path / "c.json")
    for make in (internal_page, public_page):
        page = tmp_path / f"{make.__name__}.html"
        page.write_bytes(make([tmp_path / "c.json"]))
        browser = visit(page)
        assert browser.get_log("browser") == []
        assert requests(browser) == [page.as_uri()]
        assert browser.execute_script("return document.querySelectorAll('img, b, i').length") == 0
        text = browser.execute_script("return document.querySelector('main').innerText")
        for name in (HOSTILE, IMAGE, "</script><b>", "<i>now"):
            assert name in text
        assert IMAGE in browser.title
        slider = browser.find_elements("css selector", "input")
        if slider:
            slider[0].send_keys(RIGHT)
            assert f"mean({HOSTILE})" in shown(browser, "part-0", "sentence")


@pytest.mark.parametrize(("scheme", "other"), [("light", "dark"), ("dark", "light")])
def test_both_themes(visit, scheme, other):
    browser = visit("internal.html", scheme=scheme)
    grounds = {"light": "rgb(255, 255, 255)", "dark": "rgb(17, 22, 27)"}
    assert style(browser, "body", "backgroundColor") == grounds[scheme]
    first = picture(browser)
    button = browser.find_element("id", "theme")
    assert button.text.lower() == other
    button.send_keys(SPACE)
    assert style(browser, "body", "backgroundColor") == grounds[other]
    assert button.text.lower() == scheme
    second = picture(browser)
    assert first != second
    assert min(len(first), len(second)) > 20_000


def beyond(browser, edge, *, scrolling="", within="main *, header *"):
    """Elements that end to the right of the edge, but for those that scroll on their own."""
    script = """
        return [...document.querySelectorAll(arguments[2])]
          .filter((node) => node.closest(arguments[1] + '.watermark, .skip') === null)
          .filter((node) => node.getBoundingClientRect().right > arguments[0] + 1)
          .map((node) => node.outerHTML.slice(0, 80));
    """
    return browser.execute_script(script, edge, scrolling, within)


@pytest.mark.parametrize("width", [320, 400, 768])
@pytest.mark.parametrize("name", ["internal.html", "public.html", "whole.html", "label.html"])
def test_nothing_runs_over_the_edge_of_a_phone(visit, name, width):
    browser = visit(name, width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert beyond(browser, width, scrolling=".scroll, .formula, ") == []


@pytest.mark.parametrize("name", ["internal.html", "public.html", "whole.html"])
def test_no_table_is_cut_off_on_a_phone(visit, name):
    """Every cell ends inside, intervals included, and stands beside the name of its column."""
    browser = visit(name, width=360)
    script = """
        for (const node of document.querySelectorAll('details')) node.open = true;
        const cut = [...document.querySelectorAll('.scroll')]
          .filter((node) => node.scrollWidth > node.clientWidth + 1);
        const cells = [...document.querySelectorAll('.stacked tbody td:not(.bar)')];
        const named = (node) => getComputedStyle(node, '::before').content !== 'none';
        const unnamed = cells.filter((node) => !named(node));
        return [cut.map((node) => node.textContent.slice(0, 80)), cells.length, unnamed.length];
    """
    cut, n_cells, unnamed = browser.execute_script(script)
    assert cut == []
    assert n_cells > 10
    assert unnamed == 0


def test_the_watermark_crosses_no_text(visit):
    for width in (360, 1280):
        browser = visit("internal.html", width=width)
        script = "return document.querySelector('.watermark').getBoundingClientRect().left"
        edge, texts = browser.execute_script(script), "main *, header p, header button"
        assert beyond(browser, edge, within=texts) == []


def test_the_phone_shows_guesses_and_noise_before_it_is_scrolled(visit):
    browser = visit("public.html", width=360)
    script = """
        const bottom = (node) => node.getBoundingClientRect().bottom;
        const numbers = [...document.querySelectorAll('.opening text.end')];
        return [bottom(document.querySelector('.card .strong')),
                ...numbers.filter((node) => node.textContent.includes('±')).map(bottom)];
    """
    guesses, *numbers = browser.execute_script(script)
    assert len(numbers) == 3
    assert guesses < min(numbers) < max(numbers) < 800


def test_the_ellipse_is_that_of_the_chosen_statistics(visit, pages, whole):
    """By keyboard; radii are those of the correlation, names and ends those of the statistics."""
    browser = visit("whole.html")
    assert browser.get_log("browser") == []
    shape, stds = whole.shape.covariance, whole.statement.noise.std_by_coordinate
    names = whole.statement.scenario.query.names
    across, up = browser.find_elements("css selector", ".two select")
    script = """
        const two = document.querySelector('.two');
        const text = (selector) => two.querySelector(selector).textContent;
        const ellipse = two.querySelector('ellipse');
        return [text('[data-name=x]'), text('[data-name=y]'), text('[data-end="x+"]'),
                text('[data-end="y\u2212"]'), Number(ellipse.getAttribute('rx'))];
    """
    for key, (x, y) in (("", (0, 1)), (END, (2, 1)), (HOME, (0, 1))):
        across.send_keys(key)
        x_name, y_name, right, down, radius = browser.execute_script(script)
        assert [re.sub("[\u2068\u2069]", "", name) for name in (x_name, y_name)] == [
            names[x],
            names[y],
        ]
        assert right == f"+{1.959964 * stds[x]:.3g}"
        assert down == f"\u2212{1.959964 * stds[y]:.3g}"
        correlation = shape[x, y] / np.sqrt(shape[x, x] * shape[y, y])
        reach = 38 * np.sqrt(-2 * np.log(0.05))
        assert radius == pytest.approx(reach * np.sqrt(1 + correlation), abs=0.01)
    up.send_keys(END)
    assert browser.execute_script(script)[1] != y_name


def test_nothing_runs_over_the_edge_of_paper(visit):
    """A4 at 96 dots per inch, less margins of 1 cm, with every table open."""
    browser = visit("internal.html", width=718, media="print")
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert beyond(browser, 718, within="main *") == []


def test_letters_of_charts_can_be_read_on_a_phone(visit):
    browser = visit("internal.html", width=360)
    script = """
        return [...document.querySelectorAll('svg.chart text')]
          .map((node) => node.getBoundingClientRect().height)
          .filter((height) => height > 0);
    """
    heights = browser.execute_script(script)
    assert len(heights) > 30
    assert min(heights) >= 9


def test_on_paper(visit):
    browser = visit("internal.html", scheme="dark", media="print")
    assert style(browser, "body", "backgroundColor") == "rgb(255, 255, 255)"
    assert style(browser, "body", "color") == "rgb(0, 0, 0)"
    assert style(browser, "#part-0-what-if input", "display") == "none"
    assert style(browser, ".watermark", "position") == "fixed"
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    closed = "return document.querySelectorAll('details:not([open]):not(.long)').length"
    assert browser.execute_script(closed) == 0
    browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script(closed) > 5
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    paper = base64.b64decode(printed["data"])
    assert paper.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", paper)) > 3


def test_everything_has_a_name_and_can_be_reached_by_keyboard(visit):
    browser = visit("internal.html")
    script = """
        const named = (node) => node.labels?.length || node.getAttribute('aria-label')
          || node.getAttribute('aria-labelledby') || node.textContent.trim();
        return {
          unnamed: [...document.querySelectorAll(
            'input, button, svg[role=img], section, article, nav, a'
          )].filter((node) => !named(node)).length,
          pictures: [...document.querySelectorAll('svg:not([role=img])')]
            .filter((node) => !node.closest('[aria-hidden=true]')).length,
          captions: [...document.querySelectorAll('table')].filter((node) => !node.caption).length,
          scopes: document.querySelectorAll('th:not([scope])').length,
          regions: document.querySelectorAll('.scroll:not([tabindex="0"])').length,
          twice: [...document.querySelectorAll('[id]')].map((node) => node.id)
            .filter((id, index, all) => all.indexOf(id) !== index),
          language: document.documentElement.lang,
        };
    """
    assert browser.execute_script(script) == {
        "unnamed": 0, "pictures": 0, "captions": 0, "scopes": 0, "regions": 0, "twice": [],
        "language": "en",
    }  # fmt: skip
    summary_ = browser.find_element("css selector", "#part-0-slices summary")
    summary_.send_keys(SPACE)
    assert browser.execute_script("return document.querySelector('#part-0-slices details').open")


@pytest.fixture
def visit_without_scripts(visit, browser):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    yield visit
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_without_scripts_the_claim_and_two_statistics_are_shown(visit_without_scripts, certificate):
    browser = visit_without_scripts("internal.html")
    text = browser.find_element("css selector", "#part-0-what-if").text
    assert "The slider needs scripts" in text
    assert rounded(certificate.noise_std) in text
    browser = visit_without_scripts("whole.html")
    assert browser.find_element("css selector", ".two ellipse").is_displayed()
    assert not browser.find_element("css selector", ".two select").is_displayed()
    assert "mean(pay)" in browser.find_element("css selector", ".two figure").text
