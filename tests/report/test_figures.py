# SPDX-License-Identifier: Apache-2.0
"""Pictures carry the numbers they were given, are PNG files, and leave pyplot alone."""

import io
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest

from pufferslice.report.figures import (
    Level,
    NoiseCurve,
    PlaneCosts,
    noise_figure,
    plane_figure,
    png_of,
    slices_figure,
)

EPSILONS = [0.1, 1.0, 10.0]
STDS = {
    ("average", "tight"): [3.0, 2.0, 1.0],
    ("average", "closed_form"): [4.0, 3.0, 2.0],
    ("joint", "tight"): [5.0, 4.0, 3.0],
    ("joint", "closed_form"): [8.0, 6.0, 4.0],
}
REFERENCE = Level(kind="reference", label="a difference", value=0.5)
LEVELS = (
    Level(kind="average", label="root mean square", value=1.25),
    Level(kind="joint", label="maximum", value=2.0),
)


def curves():
    return [
        NoiseCurve(
            notion=notion,
            rule=rule,
            epsilons=EPSILONS,
            noise_stds=stds,
            squared_errors=np.square(stds),
        )
        for (notion, rule), stds in STDS.items()
    ]


def plane():
    return PlaneCosts(
        coordinates=("mean(age)", "rate(pay)"),
        angles=[0.0, np.pi / 2, np.pi, 3 * np.pi / 2],
        pairs=("a / b", "a / c", "b / c"),
        costs=[[1.0, 0.1, 1.0, 0.1], [2.0, 0.2, 2.0, 0.2], [0.5, 0.3, 0.5, 0.3]],
        highlighted=1,
        rings=LEVELS,
    )


def figures():
    return {
        "noise": noise_figure(curves(), order=4, reference=REFERENCE),
        "slices": slices_figure(np.array([0.5, 1.0, 2.0]), LEVELS),
        "plane": plane_figure(plane(), order=4, noise_std=1.5),
    }


def lines(axes):
    """The data of every line by its label."""
    return {line.get_label(): line for line in axes.get_lines()}


def legend(figure):
    (box,) = figure.legends
    return [text.get_text() for text in box.get_texts()]


def test_noise_and_error_are_drawn_for_every_notion_and_rule():
    noise, error = noise_figure(curves(), order=4, reference=REFERENCE).axes
    for (notion, rule), stds in STDS.items():
        label = f"{notion}, {rule.replace('_', ' ')}"
        assert np.array_equal(lines(noise)[label].get_xdata(), EPSILONS)
        assert np.array_equal(lines(noise)[label].get_ydata(), stds)
        assert np.array_equal(lines(error)[label].get_ydata(), np.square(stds))
    assert [axes.get_xscale() for axes in (noise, error)] == ["log", "log"]
    assert [axes.get_yscale() for axes in (noise, error)] == ["log", "log"]


def test_the_reference_is_a_line_among_the_errors_only():
    noise, error = noise_figure(curves(), order=4, reference=REFERENCE).axes
    assert list(lines(error)["a difference (0.5)"].get_ydata()) == [0.5, 0.5]
    assert "a difference (0.5)" not in lines(noise)


def test_colour_tells_the_notion_and_line_the_rule():
    noise, _ = noise_figure(curves(), order=4, reference=REFERENCE).axes
    drawn = lines(noise)
    assert drawn["average, tight"].get_color() == drawn["average, closed form"].get_color()
    assert drawn["average, tight"].get_color() != drawn["joint, tight"].get_color()
    assert drawn["joint, tight"].get_linestyle() == "-"
    assert drawn["joint, closed form"].get_linestyle() == "--"


def test_axes_say_what_they_show_and_in_which_unit():
    drawn = figures()
    noise, error = drawn["noise"].axes
    (slices,) = drawn["slices"].axes
    assert "order 4" in noise.get_xlabel()
    assert "(scaled units)" in noise.get_ylabel()
    assert "(scaled units²)" in error.get_ylabel()
    assert "(scaled units)" in slices.get_ylabel()
    title = drawn["plane"].get_suptitle()
    assert "order 4 (nats)" in title
    assert "deviation 1.5 (scaled units)" in title


def test_epsilons_are_the_ticks():
    noise, _ = noise_figure(curves(), order=4, reference=REFERENCE).axes
    assert [tick.get_text() for tick in noise.get_xticklabels()] == ["0.1", "1", "10"]


def test_slices_are_drawn_in_the_given_order_with_their_levels():
    figure = slices_figure(np.array([0.5, 1.0, 2.0]), LEVELS)
    (axes,) = figure.axes
    drawn = lines(axes)
    assert list(drawn["one slice each"].get_xdata()) == [1, 2, 3]
    assert list(drawn["one slice each"].get_ydata()) == [0.5, 1.0, 2.0]
    assert set(drawn["root mean square (1.25)"].get_ydata()) == {1.25}
    assert set(drawn["maximum (2)"].get_ydata()) == {2.0}
    assert legend(figure) == ["one slice each", "root mean square (1.25)", "maximum (2)"]


def test_polygons_are_closed_and_rings_are_round():
    figure = plane_figure(plane(), order=4, noise_std=1.5)
    (axes,) = figure.axes
    drawn = lines(axes)
    assert axes.name == "polar"
    assert list(drawn["a / c (costs most)"].get_ydata()) == [2.0, 0.2, 2.0, 0.2, 2.0]
    assert drawn["a / c (costs most)"].get_xdata()[-1] == 0.0
    assert set(drawn["root mean square (1.25)"].get_ydata()) == {1.25}
    assert np.ptp(drawn["maximum (2)"].get_xdata()) == pytest.approx(2 * np.pi)
    quiet = [line.get_ydata()[0] for line in axes.get_lines() if line.get_label() == "_"]
    assert quiet == [1.0, 0.5]
    assert "the other 2 pairs" in legend(figure)


def test_the_plane_is_named_at_its_four_ends():
    (axes,) = plane_figure(plane(), order=4, noise_std=1.5).axes
    names = {text.get_text() for text in axes.texts}
    assert names >= {"+ mean(age)", "− mean(age)", "+ rate(pay)", "− rate(pay)"}


def test_the_scale_stands_where_the_polygons_leave_room():
    (axes,) = plane_figure(plane(), order=4, noise_std=1.5).axes
    scale = {text.get_text(): text for text in axes.texts if text.get_text()[0].isdigit()}
    assert set(scale) >= {"1", "2"}
    for name, text in scale.items():
        assert text.get_position() == pytest.approx((np.pi / 2, float(name)))
        assert text.get_zorder() > max(line.get_zorder() for line in axes.get_lines())


@pytest.mark.parametrize("name", ["noise", "slices", "plane"])
def test_every_picture_is_a_png_with_something_on_white(name):
    figure = figures()[name]
    content = png_of(figure)
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    pixels = matplotlib.image.imread(io.BytesIO(content))
    width, height = figure.get_size_inches() * figure.dpi
    assert pixels.shape[:2] == (round(height), round(width))
    assert np.all(pixels[0, 0, :3] == 1.0)
    assert pixels[..., :3].min() < 0.5


@pytest.mark.parametrize("name", ["noise", "slices", "plane"])
def test_the_legend_covers_no_data(name):
    figure = figures()[name]
    png_of(figure)
    (box,) = figure.legends
    for axes in figure.axes:
        assert not box.get_window_extent().overlaps(axes.get_window_extent())


def test_no_state_of_pyplot_is_touched():
    done = run(
        "import sys, numpy as np\n"
        "from pufferslice.report.figures import Level, png_of, slices_figure\n"
        "level = Level(kind='joint', label='x', value=1.0)\n"
        "png_of(slices_figure(np.array([1.0]), [level]))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["pufferslice.report.figures", "pufferslice.demo"])
def test_without_matplotlib_the_extra_is_named(module):
    done = run(
        "import importlib, sys\n"
        "sys.modules['matplotlib'] = None\n"
        "from pufferslice import MissingExtraError\n"
        "try:\n"
        f"    importlib.import_module({module!r})\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    assert "pip install 'pufferslice[report]'" in done.stdout, done.stderr


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
