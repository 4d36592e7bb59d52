# SPDX-License-Identifier: Apache-2.0
"""Pictures of the experiments carry their numbers and the scale, and leave pyplot alone."""

import io
import subprocess
import sys
from itertools import product
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from pufferslice.errors import ArgumentError
from reproduction.experiment import EXPERIMENTS, Claim, Outcome, Setting, experiment_named
from reproduction.figures import FIGURES, column, figures_of, png_of, svg_of
from reproduction.noise import SERIES
from reproduction.panels import SHAPED
from reproduction.static import STUDIES

ROOT = Path(__file__).resolve().parent.parent.parent
SCALE = "a scale that was made for this test"
CLAIM = Claim(statement="s", source="fig:SRD", held=True, found="f")


def outcome(name, rows):
    return Outcome(experiment=name, scale=SCALE, rows=tuple(rows), claims=(CLAIM,))


def noise_rows():
    return [
        {
            "n_differing": 2,
            "batch_size": size,
            "series": series,
            "epsilon": epsilon,
            "reference_epsilon": 0.37 * epsilon if series.startswith("recipe_") else None,
            "noise_multiplier": (k + 1) * size / epsilon,
            "epsilon_by_own_account": None if series == "group_dp_sgd" else 67 * epsilon,
            "epsilon_by_amplified": 10 * epsilon,
        }
        for size in (512, 1024)
        for k, series in enumerate(SERIES)
        for epsilon in (80.0, 8.0, 0.5)
    ]


def accuracy_rows():
    rows = [
        {"batch_size": 512, "series": series, "epsilon": epsilon, "test_accuracy": 0.1 * k}
        for k, series in enumerate(SERIES)
        for epsilon in (80.0, 0.5)
    ]
    base = {"batch_size": 512, "series": "almost_no_noise", "epsilon": None}
    return [*rows, base | {"test_accuracy": 0.97}]


def curve_rows():
    return [
        {
            "batch_size": 512,
            "series": series,
            "noise_multiplier": 3.25,
            "epoch": epoch,
            "test_accuracy": 0.125 * epoch,
            "batch_loss": 2.0 / epoch,
        }
        for series in ("srpp", "almost_no_noise")
        for epoch in (1, 2, 3)
    ]


def attack_rows():
    numbers = {
        "train_accuracy": 0.9,
        "test_accuracy": 0.7,
        "member_loss": 0.3,
        "non_member_loss": 1.5,
        "attack_auc": 0.65,
        "attack_auc_low": 0.55,
        "attack_auc_high": 0.75,
    }
    series = ("sa_srpp", "recipe_sa_srpp")
    budgets = [(name, epsilon) for name in series for epsilon in (500.0, 2.0)]
    budgets.append(("almost_no_noise", None))
    return [{"series": name, "epsilon": epsilon} | numbers for name, epsilon in budgets]


def layer_rows():
    kinds = ("ave", "joint", "sa_ave", "sa_joint", "srpp", "sa_srpp", "amplified")
    noise = [("noise", kind, 0.25, None) for kind in kinds]
    runs = [("accuracy", s, None, 0.5) for s in ("recipe_srpp", "recipe_sa_srpp", "amplified")]
    return [
        {
            "panel": panel,
            "series": series,
            "epsilon": epsilon,
            "reference_noise_std": std,
            "test_accuracy": accuracy,
        }
        for panel, series, std, accuracy in noise + runs
        for epsilon in (80.0, 0.5)
    ]


def values_of(figure):
    """All numbers on the second axis of all lines."""
    lines = [line for axes in figure.axes for line in axes.get_lines()]
    return np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in lines])


def words_of(figure):
    titles = [axes.get_title() for axes in figure.axes]
    texts = [text.get_text() for text in figure.texts]
    return " ".join([*titles, *texts, figure.get_suptitle()]).replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "make_rows", "column"),
    [
        ("sgd-noise", noise_rows, "noise_multiplier"),
        ("sgd-noise", noise_rows, "epsilon_by_amplified"),
        ("sgd-noise", noise_rows, "reference_epsilon"),
        ("accuracy-epsilon", accuracy_rows, "test_accuracy"),
        ("training-curves", curve_rows, "batch_loss"),
        ("overfitted-attack", attack_rows, "attack_auc"),
        ("layer-clipping", layer_rows, "reference_noise_std"),
    ],
)
def test_pictures_of_learning_carry_numbers_scale_and_names_of_axes(name, make_rows, column):
    """An axis may share its name with another."""
    rows = make_rows()
    (figure,) = figures_of(outcome(name, rows)).values()
    assert SCALE in words_of(figure)
    drawn = values_of(figure)
    for value in {row[column] for row in rows} - {None}:
        assert np.isclose(drawn, value).any()
    for axes in figure.axes:
        assert any(one.get_ylabel() for one in axes.get_shared_y_axes().get_siblings(axes))
        assert any(one.get_xlabel() for one in axes.get_shared_x_axes().get_siblings(axes))


@pytest.mark.parametrize("name", ["sliced-divergences", "cap-rings"])
def test_pictures_of_profiles_carry_every_slice_and_ring(name):
    found = experiment_named(name).run(Setting(full=False, folder=Path("unused")))
    (figure,) = figures_of(found).values()
    drawn = values_of(figure)
    value = "cost_nats" if name == "cap-rings" else "divergence_nats"
    shown = [row for row in found.rows if row["quantity"] != "largest"]
    for number in column(shown, value):
        assert np.isclose(drawn, number, rtol=1e-12).any()
    assert found.scale[:40] in words_of(figure)


def test_a_picture_that_is_drawn_afresh_has_the_same_bytes():
    def draw():
        (figure,) = figures_of(outcome("accuracy-epsilon", accuracy_rows())).values()
        return svg_of(figure)

    first = draw()
    assert first == draw()
    assert b"<dc:date>" not in first


def test_every_experiment_can_be_drawn_and_no_other():
    assert {*FIGURES, *STUDIES} == {experiment.name for experiment in EXPERIMENTS}
    with pytest.raises(ArgumentError, match="no pictures for an experiment 'other'"):
        figures_of(outcome("other", [{"x": 1}]))


QUERIES = ("logistic_regression", "summary")
MECHANISMS = [*product(("average", "joint"), ("tight", "closed_form")), SHAPED]


def static_outcome(name, priors):
    rows = [
        {
            "prior": prior,
            "query": query,
            "notion": notion,
            "rule": rule,
            "epsilon": epsilon,
            "trial": trial,
            "n_records": 100,
            "dim": 9,
            "noise_std": 1 / epsilon,
            "mse": 9 / epsilon**2 * (1 + (notion == "joint")),
            "accuracy": 0.5 + 0.4 * epsilon / (1 + epsilon),
            "prior_accuracy": 0.5,
        }
        for prior, query, (notion, rule), epsilon, trial in product(
            priors, QUERIES, MECHANISMS, (0.05, 1, 60), (1, 2)
        )
    ]
    return Outcome(experiment=name, scale="two queries, 100 records", rows=rows, claims=())


@pytest.fixture(scope="module")
def figure():
    (drawn,) = figures_of(static_outcome("static-cleveland", ["balanced"])).values()
    return drawn


@pytest.mark.parametrize("name", STUDIES)
def test_static_experiments_have_a_picture_for_each_prior(name):
    priors = ["balanced"] if "stratified" in name else ["natural", "balanced"]
    drawn = figures_of(static_outcome(name, priors))
    assert list(drawn) == [f"{name}-{prior}" for prior in priors]


def test_noise_errors_and_accuracies_with_the_prior(figure):
    noise, errors, accuracies = figure.axes[:2], figure.axes[2:4], figure.axes[4:]
    assert [axes.get_title(loc="left") for axes in noise] == [
        "Logistic regression",
        "Summary statistics",
    ]
    assert "noise std" in noise[0].get_ylabel()
    assert "MSE" in errors[0].get_ylabel()
    assert "scaled units²" in errors[0].get_ylabel()
    assert "accuracy" in accuracies[0].get_ylabel()
    for axes in [*noise, *errors]:
        assert axes.get_yscale() == "log"
        assert axes.get_xscale() == "log"
        assert len(axes.lines) == 5
        assert {line.get_linestyle() for line in axes.lines} == {"-", "--"}
        assert len({line.get_color() for line in axes.lines}) == 3
    for axes in accuracies:
        *_, prior = axes.lines
        assert len(axes.lines) == 6
        assert prior.get_linestyle() == ":"
        assert set(prior.get_ydata()) == {0.5}
        assert "nats" in axes.get_xlabel()


def test_the_axis_on_the_right_is_the_advantage_over_the_prior(figure):
    figure.draw_without_rendering()
    accuracies = figure.axes[5]
    (advantages,) = accuracies.child_axes
    assert advantages.get_ylabel() == "advantage over the prior"
    np.testing.assert_allclose(np.array(accuracies.get_ylim()) - 0.5, advantages.get_ylim())


def test_points_are_the_means_of_the_rows(figure):
    joint = next(
        line
        for line in figure.axes[2].lines
        if line.get_color() == "#D55E00" and line.get_linestyle() == "-"
    )
    np.testing.assert_allclose(joint.get_xdata(), [0.05, 1, 60])
    np.testing.assert_allclose(joint.get_ydata(), [18 / 0.0025, 18, 18 / 3600])


def test_pictures_are_png_files_on_white():
    """As large as they say, white at the corner, and dark somewhere."""
    (figure,) = figures_of(outcome("accuracy-epsilon", accuracy_rows())).values()
    content = png_of(figure)
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    pixels = matplotlib.image.imread(io.BytesIO(content))
    width, height = figure.get_size_inches() * figure.dpi
    assert pixels.shape[:2] == (round(height), round(width))
    assert np.all(pixels[0, 0, :3] == 1.0)
    assert pixels[..., :3].min() < 0.5


def test_no_state_of_pyplot_is_touched():
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from reproduction.experiment import Setting, experiment_named\n"
        "from reproduction.figures import figures_of, png_of\n"
        "found = experiment_named('cap-rings').run(Setting(full=False, folder=Path('unused')))\n"
        "png_of(figures_of(found)['cap-rings'])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
