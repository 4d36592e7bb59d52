# SPDX-License-Identifier: Apache-2.0
"""The one place where golden tests touch the library: from a spec to numbers.

If a name of the library changes, it is mended here; specs and golden files stay as they are.
"""

import contextlib
import hashlib
import io
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import numpy as np
import pyarrow as pa

from pufferslice import (
    Bootstrap,
    Certificate,
    FiniteDistribution,
    FiniteProfile,
    GaussianDistribution,
    Method,
    PuffersliceError,
    Resampled,
    SampledDistribution,
    SampledSphere,
    Scenario,
    certify_release,
    learning,
    spent,
    verify,
)
from pufferslice.certificate import record_epsilon, secret_epsilon
from pufferslice.certificate.training import record_cost
from pufferslice.claims import Measure, claim_of
from pufferslice.cli.app import run
from pufferslice.learning.integer_sums import implementation_delta, sum_grid
from pufferslice.learning.sampling import draw_batch
from pufferslice.queries import Ball, Box, above, columns, summary
from pufferslice.report import demo

Spec = dict[str, Any]

ACCOUNTANTS = {
    "worst_case": learning.WorstCase,
    "log_moment": learning.LogMoment,
    "amplified": learning.Amplified,
    "mean_square": learning.MeanSquare,
}


def refused(make: Callable[[], Any]) -> Any:
    """What a function gives, or that the library refused."""
    try:
        return make()
    except PuffersliceError:
        return {"refused": True}


# Scenarios


def make_scenario(spec: Spec) -> Scenario:
    """The scenario of a spec."""
    query, kind = _query(spec), spec["kind"]
    if kind == "sampled_rows":
        empirical = make_scenario(spec | {"kind": spec["way"]})
        return empirical.with_sampled_priors()
    pairs = spec.get("pairs", "all")
    said = {"query": query, "pairs": pairs if pairs == "all" else [tuple(p) for p in pairs]}
    if "tables" in spec:
        tables = {name: pa.table(table) for name, table in spec["tables"].items()}
        return _from_tables(kind, spec, tables, said)
    if "probabilities" in spec:
        said["probabilities"] = spec["probabilities"]
    return Scenario.from_worlds(_worlds(spec), **said)


def _from_tables(kind: str, spec: Spec, tables: dict[str, Any], said: Spec) -> Scenario:
    secret = spec["secret"]
    if kind in ("groups", "sphere"):
        return Scenario.from_groups(tables, secret=secret, **said)
    if kind == "records":
        return Scenario.from_records(tables, secret=secret, **said)
    how = Bootstrap(n_replicates=spec["n_replicates"], seed=spec["seed"])
    return Scenario.from_bootstrap(tables, secret=secret, bootstrap=how, **said)


def _worlds(spec: Spec) -> dict[str, Any]:
    if "laws" in spec:
        return {secret: _law(law) for secret, law in spec["laws"].items()}
    if spec["kind"] == "tables":
        return {one: [pa.table(t) for t in tables] for one, tables in spec["worlds"].items()}
    how = Bootstrap(n_replicates=spec["n_replicates"], seed=spec["seed"])
    return {
        one: Resampled(table=pa.table(table), bootstrap=how)
        for one, table in spec["worlds"].items()
    }


def _law(law: Spec) -> Any:
    if "mean" in law:
        return GaussianDistribution(mean=law["mean"], cov=law["cov"])
    if "draws" in law:
        said = law["draws"]
        rng = np.random.default_rng(said["seed"])
        shift = np.array(said["shift"])
        return SampledDistribution(outputs=rng.standard_normal((said["n"], len(shift))) + shift)
    if "weights" in law:
        return FiniteDistribution.weighted(law["atoms"], law["weights"])
    if "counts" in law:
        return FiniteDistribution(outputs=law["atoms"], counts=law["counts"])
    return FiniteDistribution.uniform(law["atoms"])


def _query(spec: Spec) -> Any:
    said = spec["query"]
    asked = dict(said["asked"])
    if "rate" in asked:
        asked["rate"] = {name: above(limit) for name, limit in asked["rate"].items()}
    query = columns(asked["columns"]) if "columns" in asked else summary(**asked)
    limits = said["range"]
    if limits is not None:
        box = "low" in limits
        query = query.with_range(
            Box(limits["low"], limits["high"]) if box else Ball(limits["center"], limits["radius"])
        )
    return query if said["scales"] is None else query.with_scales(said["scales"])


def _profile(spec: Spec) -> Any:
    said, dim = spec["profile"], spec["dim"]
    way, n, seed = said["way"], said["n_directions"], said["seed"]
    if way == "sphere":
        return SampledSphere.draw(dim=dim, n_directions=n, seed=seed)
    if way == "axes":
        base = FiniteProfile.axes(dim=dim)
    elif way == "orthogonal":
        base = FiniteProfile.orthogonal(dim=dim, n_sets=1 + n // 4, seed=seed)
    else:
        base = FiniteProfile.uniform(dim=dim, n_directions=n, seed=seed)
    if "parts" not in said:
        return base
    parts = np.array(said["parts"][: base.n_directions], dtype=np.float64)
    return FiniteProfile(directions=base.directions, weights=parts / parts.sum())


def certify(spec: Spec) -> Any:
    """The numbers of the statement, sums of the evidence, and what other noise would cost."""
    return refused(lambda: _certified(spec))


def _certified(spec: Spec) -> Spec:
    options: Spec = {"deltas": spec.get("deltas", [1e-5])}
    if spec.get("method"):
        rule, envelope = spec["method"]
        options["method"] = Method(rule=rule, envelope=envelope)
    claim = claim_of(spec["claim"])
    if claim.is_sliced:
        claim = claim.along(_profile(spec))
    else:
        options["shape"] = spec.get("shape", "isotropic")
    # Of more than one coordinate, an unsliced claim takes the public range and cannot fail.
    if "failure_probability" in spec and (claim.is_sliced or spec["dim"] == 1):
        options["failure_probability"] = spec["failure_probability"]
        options["band"] = spec["band"]
    found = certify_release(make_scenario(spec), claim, **options)
    return {
        "statement": _statement_numbers(found),
        "evidence": _evidence_sums(found),
        "spent": _spent(found),
        "holds": verify(found).holds,
    }


def _statement_numbers(certificate: Certificate) -> Spec:
    said = certificate.statement.to_json()
    noise, unsliced, sampling = said["noise"], said["unsliced"], said["sampling"]
    profile, shape = said["profile"], noise["shape"]
    return {
        "spent": said["spent"],
        "distributions_are_equal": said["distributions_are_equal"],
        "std": noise["std"],
        "std_by_coordinate": noise["std_by_coordinate"],
        "grid": noise["grid"],
        "implementation_delta": noise["implementation_delta"],
        "shape": [shape["whitening"], shape["guard"], shape["gap"]],
        "profile": profile and [profile["effective_slices"], profile["largest_weight"]],
        "failure_probability": said["failure_probability"],
        "unsliced": [unsliced["order"], unsliced["epsilon"], unsliced["guess"]],
        "views": _views(said["views"]),
        "sampling": None
        if sampling is None
        else {key: sampling[key] for key in ("delta_of_tails", "noise_shares")},
    }


def _views(views: list[Spec]) -> Spec:
    """Epsilons by scope, rule and delta."""
    found: Spec = {}
    for view in views:
        rules = found.setdefault(view["scope"], {}).setdefault(view["rule"], {})
        rules[f"{view['delta']:g}"] = view["epsilon"]
    return found


def _evidence_sums(certificate: Certificate) -> Spec:
    """Sums of every table of the evidence."""
    evidence = certificate.evidence
    arrays = {name: _arrays(table) for name, table in evidence.tables.items()}
    if evidence.slices is not None:
        profile = evidence.slices.profile
        arrays["profile"] = [profile.directions, profile.weights]
    return {name: {"sums": sums_of(parts)} for name, parts in arrays.items()}


def _arrays(table: Any) -> list[Any]:
    if hasattr(table, "covs"):
        return [table.means, table.covs]
    return [table.gaps, table.counts, table.totals, table.starts, table.equal]


def _spent(certificate: Certificate) -> Any:
    """What twice the noise costs: the way back from noise to epsilon."""
    if not certificate.noise_std > 0:
        return None
    return refused(lambda: spent(certificate, noise_std=2 * certificate.noise_std).bound)


def sums_of(arrays: Iterable[Any]) -> list[float]:
    """The sum of the absolute values of each array."""
    return [math.fsum(np.abs(np.asarray(one, dtype=np.float64)).reshape(-1)) for one in arrays]


def _digest(integers: Any) -> str:
    """The same on every machine; of an array of indices."""
    plain = np.ascontiguousarray(integers)
    return hashlib.sha256(f"{plain.dtype.str}{plain.shape}".encode() + plain.tobytes()).hexdigest()


# Training plans


def plan(spec: Spec) -> Any:
    """Noise, costs and views of a plan, a batch of it, and its grid."""
    return refused(lambda: _planned(spec))


def _planned(spec: Spec) -> Spec:
    differing, sampling = _differing(spec), _sampling(spec["sampling"])
    clipping = _clipping(spec["clipping"])
    accountant = ACCOUNTANTS[spec["accountant"]]()
    said = {
        "differing": differing,
        "sampling": sampling,
        "clip_norm": clipping,
        "accountant": accountant,
        "block": 8,
    }
    if spec["noise_multipliers"] is None:
        target = accountant.claim(order=spec["order"], epsilon=spec["epsilon"])
        made = learning.plan_training(n_steps=spec["n_steps"], target=target, **said)
    else:
        made = learning.plan_with_noise(
            noise_multipliers=np.array(spec["noise_multipliers"]),
            measure=Measure.of(accountant.claim(order=spec["order"], epsilon=1.0)),
            **said,
        )
    sizes = spec["clipping"].get("sizes", [spec["n_parameters"]])
    delta = spec["delta"]
    costs = learning.cost_by_count(
        accountant, spec["order"], sampling, differing, made.noise_multipliers
    )
    grid = sum_grid(made, 0, sizes)
    batch = draw_batch(sampling, bytes(range(32)))
    return {
        "noise_multipliers": [float(made.noise_multipliers[i]) for i in (0, -1)],
        "noise_stds": made.noise_stds(0).tolist(),
        "ratios": clipping.ratios.tolist(),
        "divisor": made.divisor,
        "costs": [len(costs), float(costs[0]), float(costs[-1])],
        "sum_of_costs": math.fsum(costs),
        "epsilon": made.guarantee().epsilon,
        "secret_epsilon": refused(
            lambda: secret_epsilon([made], delta=delta, implementation_delta=0.0)
        ),
        "record_cost": record_cost([made], spec["order"]),
        "record_epsilon": record_epsilon([made], delta=delta, implementation_delta=0.0),
        "implementation_delta": implementation_delta(made, spec["n_parameters"]),
        "signal_to_noise": list(attrs.astuple(learning.signal_to_noise(made, sizes))),
        "grid": [grid.steps.tolist(), grid.radii.tolist()],
        "batch": {"digest": _digest(batch)[:16], "sums": sums_of([batch])},
        "differing": sums_of([differing.counts, differing.log_probabilities]),
    }


def _differing(spec: Spec) -> Any:
    said, n_records = spec["differing"], spec["sampling"]["n_records"]
    law = said["law"]
    if law == "exactly":
        return learning.exactly(said["n"])
    if law == "at_most":
        return learning.at_most(said["n"])
    if law == "pmf":
        return learning.from_pmf({int(count): chance for count, chance in said["pmf"].items()})
    found = learning.binomial(n_records=n_records, mismatch_probability=said["chance"])
    return found.folded(above=said["n"] + 20) if law == "folded" else found


def _sampling(said: Spec) -> Any:
    kind, n_records, size = said["kind"], said["n_records"], said["batch_size"]
    if kind == "poisson":
        return learning.Poisson(n_records=n_records, rate=size / n_records)
    design = (
        learning.WithoutReplacement if kind == "without_replacement" else learning.WithReplacement
    )
    return design(n_records=n_records, batch_size=size)


def _clipping(said: Spec) -> Any:
    if said["kind"] == "flat":
        return learning.FlatClipping(norm=said["norm"])
    return learning.LayerClipping(
        names=tuple(said.get("names", [f"layer {i}" for i in range(len(said["norms"]))])),
        norms=tuple(said["norms"]),
        sizes=tuple(said["sizes"]),
        allocation=said["kind"],
    )


# Steps of training


def step(spec: Spec, model: Any, loss: Any, records: tuple[Any, ...]) -> Spec:
    """The integer sums of one step of a model on records that the caller made."""
    from pufferslice.torch.batches import Batch, Source, blocks_of
    from pufferslice.torch.clipping import ClippedSums, one_thread
    from pufferslice.torch.distributed import Processes
    from pufferslice.torch.layout import layout_of

    sampling = _sampling(_step_sampling(spec))
    clipping = _clipping(_step_clipping(spec, model))
    made = learning.plan_with_noise(
        differing=learning.exactly(1),
        sampling=sampling,
        clip_norm=clipping,
        noise_multipliers=np.array([2.0]),
        accountant=learning.WorstCase(),
        measure=Measure.guess(),
        block=spec["block"],
    )
    layout = layout_of(model, clipping)
    grid = sum_grid(made, 0, layout.sizes)
    indices = draw_batch(sampling, hashlib.sha256(str(spec["seed"]).encode()).digest())
    with one_thread():
        sums = ClippedSums(
            model, loss, layout, non_finite="zero", processes=Processes(0, 1), in_flight=1
        )
        sums.prepare(tuple(one[:1] for one in records))
        blocks = blocks_of(indices, spec["block"], lambda number: number)
        fetched = {
            block.number: tuple(one[list(block.indices)] for one in records) for block in blocks
        }
        batch = Batch(step=0, indices=indices, source=Source(None), blocks=blocks, fetched=fetched)
        found = sums.of(batch, grid, spec["block"], lambda number: 7 + number)
    values = (
        found.integers * np.repeat(grid.steps, layout.sizes)
        if len(grid.steps) > 1
        else (found.integers * grid.steps[0])
    )
    return {
        "n_parameters": layout.n_parameters,
        "at_once": sums.method.at_once,
        "batch": indices.tolist(),
        "coarse": {
            "sum": float(np.abs(values).sum()),
            "largest": float(np.abs(values).max()),
            "norm": float(np.linalg.norm(values)),
            "mean_loss": found.mean_loss,
        },
        "n_non_finite": found.n_non_finite,
        "grid": [grid.steps.tolist(), grid.radii.tolist()],
    }


def _step_sampling(spec: Spec) -> Spec:
    kinds = {"flat": "poisson", "layers": "without_replacement", "repeated": "with_replacement"}
    kind = kinds[spec["way"]]
    return {"kind": kind, "n_records": spec["n_records"], "batch_size": spec["batch_size"]}


def _step_clipping(spec: Spec, model: Any) -> Spec:
    if spec["way"] != "layers":
        return {"kind": "flat", "norm": 1.0 if spec["way"] == "flat" else 0.05}
    sizes = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    norms = [0.1 + 0.05 * i for i in range(len(sizes))]
    return {
        "kind": "least_noise",
        "names": list(sizes),
        "norms": norms,
        "sizes": list(sizes.values()),
    }


# Commands


def run_command(folder: Path, arguments: list[str]) -> tuple[int, str]:
    """Exit code and standard output of a command line, run in this process in a folder.

    The page of `demo` is not drawn: it takes half of the time, and has no part in the answer.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(demo, "internal_page", return_value=b"page"),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run(arguments)
    return code, out.getvalue()
