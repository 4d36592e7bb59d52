# SPDX-License-Identifier: Apache-2.0
"""Property inference on resampled tables: from exact moments, from released ones, from models."""

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from tests import real_tables

from pufferslice import Guarantee, certify_release, datasets
from pufferslice._core.sampler import SeededTestNoise
from pufferslice.audit import draw_outputs
from pufferslice.data.frames import frame_of
from pufferslice.models import fit
from pufferslice.models.moments import Moments
from pufferslice.queries.moments import Design
from pufferslice.releases.derived import noise_covariance

pytestmark = [pytest.mark.soundness, pytest.mark.statistical]

N_ROWS, N_TABLES, CLAIM, SURE = 3_000, 400, 0.64, 5.0


def guessed(first, second):
    """Share of right guesses on held-out outputs, and its standard error."""
    half = len(first) // 2
    values = np.concatenate([first[: 2 * half], second[: 2 * half]])
    values = (values - values.mean(axis=0)) / np.maximum(values.std(axis=0), 1e-12)
    labels = np.repeat([0, 1], 2 * half)
    is_training = np.tile(np.arange(2 * half) < half, 2)
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.01)
    right = model.fit(values[is_training], labels[is_training]).predict(values[~is_training])
    share = float((right == labels[~is_training]).mean())
    return share, 0.5 / np.sqrt((~is_training).sum())


@pytest.fixture(scope="module")
def certified():
    scenario = real_tables.moments(N_ROWS)
    return scenario, certify_release(scenario, Guarantee.guess(at_most=CLAIM))


def test_exact_moments_reveal_the_share(certified):
    table, rng = datasets.adult_years()[1], np.random.default_rng(12)
    numbers = certified[0].query.features.numbers(frame_of(table))
    is_woman = np.array(table["sex"]) == "Female"
    groups = np.flatnonzero(is_woman), np.flatnonzero(~is_woman)
    outputs = []
    for n_women in (900, 1_050):  # 30 % and 35 %
        sizes = n_women, N_ROWS - n_women
        draws = [
            [rng.choice(group, size) for group, size in zip(groups, sizes, strict=True)]
            for _ in range(N_TABLES)
        ]
        outputs.append(np.array([numbers[np.concatenate(draw)].mean(axis=0) for draw in draws]))
    assert guessed(*outputs)[0] > 0.85


def test_released_moments_and_models_of_them_do_not(certified, seed):
    scenario, certificate = certified
    noise = SeededTestNoise(seed=seed)
    drawn = draw_outputs(scenario, certificate, N_TABLES, seed=seed, noise=noise)
    query, covariance = scenario.query, noise_covariance(certificate)
    design = Design.read(query.parameters)

    def coefficients(values):
        moments = Moments.named(
            design,
            names=query.names,
            values=values * query.scales,
            noise=covariance,
            n_rows=N_ROWS,
        )
        model = fit.discriminant(moments, fit.ridge_coefficients(moments, None))
        return [*model.coef_[0], *model.intercept_]

    for worlds in drawn.values.values():
        first, second = worlds.values()
        best, error = guessed(first, second)
        assert best <= CLAIM + SURE * error
        models = [np.array([coefficients(values) for values in world]) for world in worlds.values()]
        best, error = guessed(*models)
        assert best <= CLAIM + SURE * error
