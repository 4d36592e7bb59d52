# SPDX-License-Identifier: Apache-2.0
"""The query on rows that fit the distribution of a scenario; other rows are refused."""

from fractions import Fraction
from typing import Final

import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.text import listed
from pufferslice.data import Frame, check_columns, frame_of, without_missing
from pufferslice.errors import ReleaseError, ScenarioError, TableError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.priors import Prior
from pufferslice.scenario.scenario import Scenario

_ATOM_TOLERANCE: Final = 1e-9


def fitting_value(scenario: Scenario, rows: object) -> Floats | list[Fraction]:
    """The prepared query on rows that fit the distribution of the scenario.

    Anything else is refused.

    Rows, or a value, are refused only where every declared prior gives them probability 0. Sampled
    priors, of which only draws are known, could give more: there a value that cannot be computed or
    is not finite is put at the public centre. For Gaussian priors the value is scaled exactly, as
    their means are.
    """
    query = scenario.query
    frame = frame_of(rows)
    if scenario.prior_kind == "sampled":
        return _value_or_center(scenario, frame)
    frame = _complete(scenario, frame)
    secret = _secret_of(scenario, frame)
    if scenario.prior_kind == "gaussian":
        raw = query.outputs(frame)[0].tolist()
        return [Fraction(x) / Fraction(s) for x, s in zip(raw, query.scales.tolist(), strict=True)]
    value = query.prepared(query.outputs(frame))[0]
    if query.range is None:
        _check_counted(scenario, value)
    if not all(_is_support(scenario, prior) for prior in scenario.priors):
        # Under some prior the value may be any; to refuse it there would tell of the secret.
        return np.asarray(value)
    atoms = [
        distribution.outputs
        for prior in scenario.priors
        for name, distribution in prior.distributions.items()
        if name == secret or secret is None
        if isinstance(distribution, FiniteDistribution)
    ]
    return _snapped(value, np.vstack(atoms), scenario) if atoms else np.asarray(value)


def _value_or_center(scenario: Scenario, frame: Frame) -> Floats:
    check_columns(frame, _read(scenario))
    try:
        complete = _complete(scenario, frame)
        _secret_of(scenario, complete)
        return np.asarray(scenario.query.prepared_anyway(complete)[0])
    except (ScenarioError, TableError):
        return scenario.query.center


def _check_counted(scenario: Scenario, value: Floats) -> None:
    """Rows that were counted in bins all lie in the range of the bins, and so must a release."""
    grids = [
        distribution.grid
        for prior in scenario.priors
        for distribution in prior.distributions.values()
        if distribution.grid is not None
    ]
    if not all(grid.holds(value) for grid in grids):
        msg = (
            "the rows do not fit the scenario: the query lies outside the range in which the data "
            "were counted. Release rows of the data, or clip the query with query.with_range(...)"
        )
        raise ReleaseError(msg)


def _read(scenario: Scenario) -> list[str]:
    """The columns of the secret and of the query."""
    columns = (*(scenario.rule.columns if scenario.rule else ()), *scenario.query.columns)
    return list(dict.fromkeys(columns))


def _complete(scenario: Scenario, frame: Frame) -> Frame:
    kept, _ = without_missing(frame, _read(scenario), scenario.query.missing)
    if scenario.distribution == "records" and len(kept) != 1:
        msg = f"distribution 'records' releases exactly one row, got {len(kept)}; choose one"
        raise ReleaseError(msg)
    return kept


def _secret_of(scenario: Scenario, frame: Frame) -> str | None:
    """The one secret that all rows share; worlds are not told by a column."""
    if scenario.rule is None:
        _check_size(scenario, frame)
        return None
    found = sorted(set(scenario.rule.labels(frame).tolist()))
    if len(found) != 1:
        msg = (
            f"distribution {scenario.distribution!r} releases the rows of one group, got rows of "
            f"{len(found)} groups; keep the rows of one of them"
        )
        raise ReleaseError(msg)
    if found[0] not in scenario.secrets:
        known = listed(scenario.secrets)
        msg = f"the rows have a secret that the scenario does not know; it knows {known}"
        raise ReleaseError(msg)
    if scenario.distribution == "bootstrap":
        sizes = {prior.n_rows.get(found[0]) for prior in scenario.priors}
        if len(frame) not in sizes:
            msg = (
                f"distribution 'bootstrap' resampled this group at its own size, but {len(frame)} "
                "rows were given; release the whole group that the prior was made from, or one "
                "of its size"
            )
            raise ReleaseError(msg)
    return str(found[0])


def _check_size(scenario: Scenario, frame: Frame) -> None:
    """Worlds that are resampled tables say how many rows a table has."""
    sizes = {n for prior in scenario.priors for n in prior.n_rows.values()}
    if sizes and len(frame) not in sizes:
        msg = (
            f"the worlds resampled their tables at their own size, but {len(frame)} rows were "
            "given; release a table with as many rows as one of them has"
        )
        raise ReleaseError(msg)


def _is_support(scenario: Scenario, prior: Prior) -> bool:
    """Whether the released value must be an atom of the prior's distributions.

    Point masses leave no other value; nor do the rows of a group, or the tables of a world, that
    are the released data.
    """
    if scenario.distribution == "records":
        return prior.source == "released_data"
    distributions = prior.distributions.values()
    single = all(
        isinstance(distribution, FiniteDistribution) and distribution.n_samples == 1
        for distribution in distributions
    )
    return single or prior.has_given_tables


def _snapped(value: Floats, atoms: Floats, scenario: Scenario) -> Floats:
    """The atom that the value is, up to the order in which rows were summed."""
    # Relative to each coordinate's own size over all atoms: no coordinate excuses another.
    sizes = np.abs(atoms).max(axis=0)
    apart = np.abs(atoms - value) / np.where(sizes > 0, sizes, 1.0)
    apart[:, sizes == 0] = np.where(value[sizes == 0] == 0, 0.0, np.inf)
    nearest = int(apart.max(axis=1).argmin())
    if apart[nearest].max() > _ATOM_TOLERANCE:
        msg = (
            f"the rows do not fit distribution {scenario.distribution!r}: under the declared "
            "priors the query cannot have the value it has on them. Release rows of the table "
            "that the scenario was made from, or make the scenario from the table you release"
        )
        raise ReleaseError(msg)
    return np.array(atoms[nearest])


def check_atom(scenario: Scenario, value: Floats | list[Fraction]) -> None:
    """Without noise only a value that the distributions themselves have may leave."""
    atoms = [
        distribution.outputs
        for prior in scenario.priors
        for distribution in prior.distributions.values()
        if isinstance(distribution, FiniteDistribution)
    ]
    if not atoms or not (np.vstack(atoms) == np.array(value)).all(axis=1).any():
        msg = (
            "the distributions are equal, so the certificate adds no noise, but the rows have a "
            "value that these distributions do not have: it could tell anything. Declare "
            "distributions that the data can have"
        )
        raise ReleaseError(msg)
