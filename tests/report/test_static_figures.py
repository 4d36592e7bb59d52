# SPDX-License-Identifier: Apache-2.0
"""Pictures of the static experiments: what is on them, and where."""

import sys
from importlib import import_module
from itertools import product

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from pufferslice.errors import MissingExtraError
from pufferslice.paper.experiment import Outcome
from pufferslice.paper.static_experiments import EXPERIMENTS
from pufferslice.report.figures import png_of
from pufferslice.report.static_figures import FIGURES

QUERIES = ("logistic_regression", "summary")


def outcome_of(name, priors):
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
        for prior, query, notion, rule, epsilon, trial in product(
            priors, QUERIES, ("average", "joint"), ("tight", "closed_form"), (0.05, 1, 60), (1, 2)
        )
    ]
    return Outcome(experiment=name, scale="two queries, 100 records", rows=rows, claims=())


@pytest.fixture(scope="module")
def figure():
    return FIGURES["static-cleveland"](outcome_of("static-cleveland", ["balanced"]))["balanced"]


def test_every_experiment_has_its_pictures():
    assert set(FIGURES) == {experiment.name for experiment in EXPERIMENTS}
    for name, draw in FIGURES.items():
        priors = ["balanced"] if "stratified" in name else ["natural", "balanced"]
        assert list(draw(outcome_of(name, priors))) == priors


def test_errors_above_accuracies_with_the_prior(figure):
    errors, accuracies = figure.axes[:2], figure.axes[2:]
    assert [axes.get_title(loc="left") for axes in errors] == [
        "Logistic regression",
        "Summary statistics",
    ]
    assert all(axes.get_yscale() == "log" and axes.get_xscale() == "log" for axes in errors)
    assert "MSE" in errors[0].get_ylabel()
    assert "scaled units²" in errors[0].get_ylabel()
    assert "accuracy" in accuracies[0].get_ylabel()
    for axes in errors:
        assert len(axes.lines) == 4
        assert {line.get_linestyle() for line in axes.lines} == {"-", "--"}
        assert len({line.get_color() for line in axes.lines}) == 2
    for axes in accuracies:
        *_, prior = axes.lines
        assert len(axes.lines) == 5
        assert prior.get_linestyle() == ":"
        assert set(prior.get_ydata()) == {0.5}
        assert "nats" in axes.get_xlabel()


def test_points_are_the_means_of_the_rows(figure):
    joint = next(
        line
        for line in figure.axes[0].lines
        if line.get_color() == "#D55E00" and line.get_linestyle() == "-"
    )
    np.testing.assert_allclose(joint.get_xdata(), [0.05, 1, 60])
    np.testing.assert_allclose(joint.get_ydata(), [18 / 0.0025, 18, 18 / 3600])


def test_scale_legend_and_title_cover_nothing(figure):
    FigureCanvasAgg(figure).draw()
    renderer = figure.canvas.get_renderer()
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[:4] == ["Ave, tight", "Ave, closed form", "Joint, tight", "Joint, closed form"]
    assert texts[4] == "accuracy of the prior alone (0.500)"
    said = " ".join(text.get_text() for text in (*figure.texts, figure._suptitle))
    assert "two queries, 100 records" in said
    assert "Cleveland, secret sex, balanced" in said
    boxes = [axes.get_window_extent(renderer) for axes in figure.axes]
    assert not any(legend.get_window_extent(renderer).overlaps(box) for box in boxes)
    assert png_of(figure).startswith(b"\x89PNG")


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "pufferslice.report.static_figures")
    monkeypatch.setitem(sys.modules, "matplotlib.lines", None)
    with pytest.raises(MissingExtraError, match=r"pufferslice\[report\]"):
        import_module("pufferslice.report.static_figures")
