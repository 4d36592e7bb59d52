# SPDX-License-Identifier: Apache-2.0
"""Value of the query on rows that fit a scenario; other rows are refused."""

import contextlib
from collections.abc import Iterable
from fractions import Fraction
from typing import Final

import narwhals as nw
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.files import canonical_json, digest
from pufferslice._core.text import listed
from pufferslice.data.frames import Frame, check_columns, without_missing
from pufferslice.data.tables import Rows, frame_of_rows, names_of, rows_of
from pufferslice.data.texts import text_facts
from pufferslice.errors import PuffersliceError, ReleaseError, ScenarioError, TableError
from pufferslice.queries.features import feature_bits
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.priors import Prior
from pufferslice.scenario.rows import exact_sums, most_rows
from pufferslice.scenario.scenario import Scenario

_ATOM_TOLERANCE: Final = 1e-9


def released_rows(scenario: Scenario, rows: object) -> Rows:
    """Find the rows of a release, once: a table, or the file or files that a path names.

    Sums of rows are asked for where the rows are; other queries need them in memory.
    """
    if scenario.prior_kind != "rows":
        return frame_of_rows(rows)
    return rows_of(rows, _columns_of(scenario))


def table_mark(
    scenario: Scenario, rows: Rows, value: Floats | list[Fraction]
) -> dict[str, int | str]:
    """Compute by what a ledger knows the released table again; confidential.

    Its number of rows, and a digest of the exact sums of the query and, for each column of texts
    that it reads, of the number of different ones and their total length: the same in any order of
    the rows and with any engine. Sums that were handed over show no texts.
    """
    n_rows, texts = text_facts(rows, sorted({*_columns_of(scenario)} & {*names_of(rows)}))
    sums = [str(Fraction(number)) for number in value]
    return {"n_rows": n_rows, "digest": digest(canonical_json([sums, texts]))}


def fitting_value(scenario: Scenario, rows: Rows) -> Floats | list[Fraction]:
    """Prepare the query on rows that fit the scenario.

    Rows, or a value, are refused only where every declared prior gives them probability 0. Under
    sampled and Gaussian priors any value is possible: there none is refused.
    """
    query = scenario.query
    if scenario.prior_kind == "rows":
        return _row_value(scenario, rows)
    if not isinstance(rows, nw.DataFrame):
        raise ReleaseError(f"rows must be a table in memory here, got {type(rows).__name__}")
    if scenario.prior_kind in {"gaussian", "sampled"}:
        return _value_anyway(scenario, rows)
    _check_given(scenario, len(rows))
    complete, _ = without_missing(rows, _columns_of(scenario), query.missing)
    secret = _secret_of(scenario, complete, len(rows))
    value = query.prepared(query.outputs(complete))[0]
    if not all(_is_support(scenario, prior) for prior in scenario.priors):
        # Some prior allows any value; a refusal would reveal something about the secret.
        return np.asarray(value)
    return _snapped(value, np.vstack(_atoms(scenario, secret)), scenario)


def _row_value(scenario: Scenario, rows: Rows) -> list[Fraction]:
    """Sum scaled rows exactly; only the number of rows is refused, if it is public.

    A value that cannot be read counts as missing: what is refused must not depend on it.
    """
    query, features = scenario.query, scenario.query.features
    if features is None:
        raise ReleaseError("this scenario has no sums over rows; build it with from_prevalence")
    n_rows, sums = exact_sums(rows, features, n_bits := feature_bits(most_rows(scenario.secret)))
    _check_given(scenario, n_rows)
    outputs = features.of_sums(n_rows, sums, n_bits)
    return [x / Fraction(s) for x, s in zip(outputs, query.scales.tolist(), strict=True)]


def _atoms(scenario: Scenario, secret: str | None) -> list[Floats]:
    """List the query's possible values under a secret, or under any, by finite distributions."""
    return [
        distribution.outputs
        for prior in scenario.priors
        for name, distribution in prior.distributions.items()
        if secret in {name, None} and isinstance(distribution, FiniteDistribution)
    ]


def _value_anyway(scenario: Scenario, rows: Frame) -> Floats | list[Fraction]:
    """Prepare the query, with a public value in place of one that cannot be computed.

    For sampled priors that is the centre; for Gaussian ones, which have no range, the mean of all
    declared means. The value of a Gaussian is scaled exactly, as the means are.
    """
    query = scenario.query
    raw = np.full(query.dim, np.nan)
    check_columns(rows, columns := _columns_of(scenario))
    with contextlib.suppress(ScenarioError, TableError):
        _check_given(scenario, len(rows))
        complete, _ = without_missing(rows, columns, query.missing)
        _secret_of(scenario, complete, len(rows))
        with contextlib.suppress(PuffersliceError):
            raw = query.unchecked_outputs(complete)[0]
    if scenario.prior_kind == "sampled":
        return np.asarray(query.prepared_or_center(raw[None, :])[0])
    means = [d.mean for prior in scenario.priors for d in prior.declared.values()]
    typical = np.sum([mean / len(means) for mean in means], axis=0)
    raw = np.where(np.isfinite(raw), raw, typical)
    return [Fraction(x) / Fraction(s) for x, s in zip(raw, query.scales.tolist(), strict=True)]


def _columns_of(scenario: Scenario) -> list[str]:
    """List the columns of the secret and of the query."""
    columns = (*(scenario.rule.columns if scenario.rule else ()), *scenario.query.columns)
    return list(dict.fromkeys(columns))


def _check_given(scenario: Scenario, n_given: int) -> None:
    """Check the number of given rows: one for a record, and for a world the world's own.

    How many of them are complete may follow the secret, and must not decide.
    """
    if scenario.distribution == "records" and n_given != 1:
        raise ReleaseError(
            f"distribution 'records' releases exactly one row, got {n_given}; choose one"
        )
    if scenario.rule is not None:
        return
    sizes = {n for prior in scenario.priors for n in prior.n_rows.values()}
    if not sizes or _has_size(scenario, n_given, sizes):
        return
    raise ReleaseError(
        "the table has another number of rows than a release of this scenario, which is public: "
        "that of the table, or n_rows, of the scenario, and for counts of states one row for each "
        "time"
    )


def _has_size(scenario: Scenario, n_given: int, sizes: Iterable[int]) -> bool:
    """Return whether the number of rows is one of the sizes, with or without dropped rows."""
    return any(n <= n_given <= n + scenario.n_dropped for n in sizes)


def _secret_of(scenario: Scenario, frame: Frame, n_given: int) -> str | None:
    """Find the secret that all complete rows share; None for worlds, which no column shows."""
    if scenario.rule is None:
        return None
    labels = sorted(set(scenario.rule.labels(frame).tolist()))
    if len(labels) != 1:
        raise ReleaseError(
            f"distribution {scenario.distribution!r} releases the rows of one group, got rows of "
            f"{len(labels)} groups; keep the rows of one of them"
        )
    secret = str(labels[0])
    if secret not in scenario.secrets:
        known = listed(scenario.secrets)
        raise ReleaseError(
            f"the rows have a secret that the scenario does not know; it knows {known}"
        )
    sizes = {prior.n_rows[secret] for prior in scenario.priors if secret in prior.n_rows}
    if scenario.distribution == "bootstrap" and not _has_size(scenario, n_given, sizes):
        raise ReleaseError(
            f"distribution 'bootstrap' resampled this group at its own size, but {n_given} "
            "rows were given; release the whole group that the prior was made from, or one of its "
            "size"
        )
    return secret


def _is_support(scenario: Scenario, prior: Prior) -> bool:
    """Return whether the released value must be an atom of the prior's distributions.

    Point masses allow no other value. Neither do the rows of a group, or the tables of a world,
    that are the released data.
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
    """Find the atom that equals the value, up to the order in which rows were summed."""
    # Relative to the largest atom in each coordinate: no coordinate excuses another.
    sizes = np.abs(atoms).max(axis=0)
    apart = np.abs(atoms - value) / np.where(sizes > 0, sizes, 1.0)
    apart[:, sizes == 0] = np.where(value[sizes == 0] == 0, 0.0, np.inf)
    nearest = int(apart.max(axis=1).argmin())
    if apart[nearest].max() > _ATOM_TOLERANCE:
        raise ReleaseError(
            f"the rows do not fit distribution {scenario.distribution!r}: under the declared "
            "priors the query cannot have the value it has on them. Release rows of the table "
            "that the scenario was made from, or make the scenario from the table you release"
        )
    return np.array(atoms[nearest])


def check_atom(scenario: Scenario, value: Floats | list[Fraction]) -> None:
    """Refuse to publish a value without noise unless the distributions themselves have it."""
    atoms = _atoms(scenario, None)
    if not atoms or not (np.vstack(atoms) == np.array(value)).all(axis=1).any():
        raise ReleaseError(
            "the distributions are equal, so the certificate adds no noise, but the rows have a "
            "value that these distributions do not have: it could reveal anything. Declare "
            "distributions that the data can have"
        )
