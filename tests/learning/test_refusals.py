# SPDX-License-Identifier: Apache-2.0
"""Calls of the learning package that are refused."""

import math
from functools import partial
from pathlib import Path

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.refusals import Refusal, check_refused
from tests.wrong_arguments import wrong_calls, wrong_values

from pufferslice.claims import Guarantee, Measure
from pufferslice.errors import ArgumentError, CalibrationError, TableError
from pufferslice.learning import (
    Amplified,
    FlatClipping,
    LayerClipping,
    LogMoment,
    MeanSquare,
    Poisson,
    TrainingPlan,
    WithoutReplacement,
    WithReplacement,
    WorstCase,
    at_most,
    binomial,
    effective_multiplier,
    exactly,
    from_pmf,
    plan_training,
    plan_with_noise,
    signal_to_noise,
    tail_cap_estimate,
)
from pufferslice.learning.accountants import (
    ACCOUNTANTS,
    accountant_named,
    calibrate_multiplier,
    mixed_cost,
    run_cost,
)
from pufferslice.learning.amplification import amplified_by_count, amplified_divergence
from pufferslice.learning.clipping import clipping_of
from pufferslice.learning.differing import (
    DifferingRecords,
    count_differing,
    discrete_mismatch,
    from_coupled_draws,
    gaussian_mismatch,
    maximal_pairs,
    mostly_at_most,
)
from pufferslice.learning.integer_sums import implementation_delta, rounding_share, sum_grid
from pufferslice.learning.keys import RunKey
from pufferslice.learning.plan import MOST_STEPS, recipe_learning_rates
from pufferslice.learning.request import (
    DataSource,
    Learning,
    Output,
    Prevalence,
    TrainingRequest,
    check_named,
)
from pufferslice.learning.sampling import (
    draw_batch,
    poisson_mean_square_ratio,
    sampling_from_description,
)
from pufferslice.learning.worlds import differing_rows, relabelled, two_world_prevalence
from pufferslice.scenario.distributions import GaussianDistribution

POISSON = Poisson(n_records=100, rate=0.1)
WITHOUT = WithoutReplacement(n_records=100, batch_size=10)
WITH = WithReplacement(n_records=100, batch_size=10)
DESIGNS = (POISSON, WITHOUT, WITH)
RARE = Poisson(n_records=100, rate=1e-200)
RANDOM = binomial(n_records=100, mismatch_probability=0.1)
COIN = from_pmf([0.5, 0.5])
CUT = from_pmf([0.5, 0.25, 0.25]).truncated(tail_probability=0.3)
OVER_BATCHES = Measure.over_batches(order=4)
TARGET = Guarantee.unsliced(order=16, epsilon=1.0)
KEY = RunKey.from_bytes(bytes(range(32)))
SUMS = np.array([5, -7], dtype=np.int64)
ONE, NAN, INF = np.ones(1), math.nan, math.inf


def differing(**changes):
    fields = {"counts": [0, 5], "log_probabilities": [math.log(0.5)] * 2, "is_fixed_set": False,
              "origin": "test"}  # fmt: skip
    return DifferingRecords(**fields | changes)


def described(**changes):
    return DifferingRecords.from_description(exactly(3).description() | changes)


def coupled(*pairs, n_draws=2, seed=1):
    pairs = iter(pairs)
    return from_coupled_draws(lambda rng: next(pairs), n_draws=n_draws, seed=seed)


def gaussian(mean, cov):
    return GaussianDistribution(mean=mean, cov=cov)


def calibrated(accountant, records, *, epsilon=1.0, n_steps=5, design=WITHOUT):
    target = accountant.claim(order=16, epsilon=epsilon)
    return calibrate_multiplier(accountant, target, design, records, n_steps)


def cost(accountant, *, order=4, design=POISSON, records=None, multipliers=ONE):
    return run_cost(accountant, order, design, records or exactly(2), np.array(multipliers))


def divergence(order=2.0, noise_multiplier=1.0, rate=0.1, n_differing=1):
    return amplified_divergence(order, noise_multiplier, rate, n_differing)


def noisy(**changes):
    fields = {
        "differing": exactly(3), "sampling": POISSON, "clip_norm": 0.7,
        "noise_multipliers": np.array([20.0, 30.0, 30.0]), "accountant": LogMoment(),
        "measure": Measure.renyi(order=4),
    }  # fmt: skip
    return plan_with_noise(**{**fields, **changes})


def planned(**changes):
    fields = {
        "differing": exactly(3), "sampling": POISSON, "clip_norm": 1.0, "n_steps": 2,
        "accountant": LogMoment(), "target": TARGET,
    }  # fmt: skip
    return plan_training(**{**fields, **changes})


def read(**changes):
    return TrainingPlan.from_json({**noisy().to_json(), **changes})


def without(part):
    whole = noisy().to_json()
    del whole[part]
    return TrainingPlan.from_json(whole)


def grid(step=0, sizes=(10,), *, block=16, **changes):
    return sum_grid(attrs.evolve(noisy(**changes), block=block), step, list(sizes))


def layers(**changes):
    fields = {"names": ("a", "b"), "norms": (1.0, 2.0), "sizes": (3, 4), "allocation": "equal"}
    return LayerClipping(**{**fields, **changes})


def worlds(**changes):
    return Prevalence(**{"label": 1, "shares": (0.5, 0.6), "seed": 7, "world": "first"} | changes)


def request(**changes):
    learning = {"schedule": "cosine", "n_warmup_steps": changes.pop("n_warmup_steps", 0)}
    fields = {
        "plan": planned(differing=exactly(3), n_steps=3),
        "data": DataSource(dataset="digits"),
        "worlds": None,
        "learning": Learning(model="linear", seed=0, learning_rate=0.5, **learning),
        "output": Output(folder=Path("run"), evaluate_every=1),
        "deltas": (1e-5,),
        "source_folder": Path(),
    }
    return TrainingRequest(**(fields | changes))


def tail_cap(*counts, **changes):
    options = {"discrepancy_cap": 5, "tail_probability": 0.1, "failure_probability": 0.1}
    return tail_cap_estimate(*counts, **options | changes)


def relabel(labels, **options):
    return relabelled(labels, **options)


def of_kind(kind):
    return sampling_from_description({"kind": kind})


def draws(design, n_differing):
    return design.discrepancy_log_probabilities(n_differing)


REFUSALS = {
    # Records that differ.
    **wrong_values(exactly, {}, n_differing=[-1, True]),
    **wrong_values(at_most, {}, max_differing=[-1]),
    **wrong_values(
        binomial, {"n_records": 9, "mismatch_probability": 0.5},
        n_records=[0], mismatch_probability=[NAN, True, "0.1"],
    ),
    **wrong_values(
        mostly_at_most,
        {"max_differing": 3, "tail_probability": 0.1, "failure_probability": 0.0},
        max_differing=[0.5], tail_probability=[0.0], failure_probability=[None],
    ),
    **wrong_values(coupled, {}, n_draws=[0], seed=[-1]),
    **wrong_values(
        differing, {},
        counts=[[5, 0], [-1, 5], np.array([0, 2**64 - 1], np.uint64)],
        log_probabilities=[[0.0, -INF], [-1.0, -1.0], [0.0]],
        is_fixed_set=[True], origin=[""],
    ),
    **wrong_calls({
        "binomial of too many": (
            lambda: binomial(n_records=2**25, mismatch_probability=0.5), "at_most"),
        "pmf, sum": (lambda: from_pmf([0.5, 0.4]), "sum to 1"),
        "pmf, negative": (lambda: from_pmf([1.5, -0.5]), "negative"),
        "pmf, matrix": (lambda: from_pmf([[0.5, 0.5]]), "probabilities"),
        "pmf, nan": (lambda: from_pmf([NAN, 1.0]), "probabilities"),
        "pmf, count": (lambda: from_pmf({-1: 1.0}), "-1"),
        "pmf, words": (lambda: from_pmf(["half", "half"]), "numbers"),
        "no counts": (
            lambda: differing(counts=np.array([], np.int64), log_probabilities=[]), "at least one"),
        "counted, lengths": (lambda: count_differing([1, 2], [1, 2, 3]), "number of records"),
        "coupled, no pair": (lambda: coupled([[1], [2]]), "draw_pair"),
        "coupled, lengths": (lambda: coupled(([0] * 2, [0] * 2), ([0] * 3, [0] * 3)), "draw_pair"),
        "maximal": (lambda: maximal_pairs([0.5, 0.6], (0.5, 0.5), n_records=3), "first"),
        "folded": (lambda: exactly(1).folded(above=-1), "above"),
        "described, kind": (lambda: described(kind="poisson"), "kind"),
        "described, list": (lambda: described(kind=["listed"]), "kind"),
        "described, more": (lambda: described(n=3), "described by"),
        "described, less": (
            lambda: DifferingRecords.from_description({"kind": "binomial"}), "binomial"),
        "described, counts": (lambda: described(counts=[2.5]), "counts"),
        "described, failure": (
            lambda: DifferingRecords.from_description(
                {k: v for k, v in CUT.description().items() if k != "failure_probability"}),
            "described by"),
        "cut, again": (lambda: CUT.truncated(tail_probability=0.1), "truncated"),
        "cut, folded": (lambda: CUT.folded(above=1), "Rényi"),
        "cut, whole": (CUT.check_whole, "Rényi"),
        "cut, nothing": (lambda: exactly(3).truncated(tail_probability=0.0), "tail_probability"),
        "cut, all": (lambda: attrs.evolve(CUT, excess_probability=1.0), "below 1"),
        "cut, negative": (
            lambda: attrs.evolve(CUT, excess_probability=-0.1), "excess_probability"),
        "cut, fixed": (lambda: attrs.evolve(exactly(3), excess_probability=0.1), "is_fixed_set"),
        "failure of a whole": (
            lambda: attrs.evolve(at_most(3), failure_probability=0.1), "failure_probability"),
        "discrete, first": (lambda: discrete_mismatch([0.5, 0.6], [0.5, 0.5]), "first"),
        "discrete, second": (lambda: discrete_mismatch([0.5, 0.5], [0.5, NAN]), "second"),
        "discrete, shape": (lambda: discrete_mismatch([1.0], [0.5, 0.5]), "second"),
        "discrete, kinds": (lambda: discrete_mismatch({0: 1.0}, [1.0]), "first and second"),
        "gaussian, std": (lambda: gaussian_mismatch((0.0, 0), (0.0, 1.0)), "std of first"),
        "gaussian, infinite": (lambda: gaussian_mismatch((0.0, 1.0), (0.0, INF)), "std of second"),
        "gaussian, mean": (lambda: gaussian_mismatch((0.0, 1.0), (NAN, 1.0)), "mean of second"),
        "gaussian, three": (lambda: gaussian_mismatch((0.0, 1.0, 2.0), (0.0, 1.0)), "first"),
        "gaussian, kinds": (
            lambda: gaussian_mismatch(gaussian([0.0], [[1.0]]), (0.0, 1.0)), "first and second"),
        "gaussian, covariances": (
            lambda: gaussian_mismatch(*(gaussian([0, 0], k * np.eye(2)) for k in (1, 2))),
            "covariance"),
        "gaussian, singular": (
            lambda: gaussian_mismatch(*[gaussian([0, 0], np.diag([1.0, 0.0]))] * 2), "covariance"),
        "gaussian, point": (lambda: gaussian_mismatch(*[gaussian([0], [[0.0]])] * 2), "std of"),
    }),
    # Sampling.
    **wrong_values(
        Poisson, {"n_records": 10, "rate": 0.5},
        rate=[0, -0.1, 1.0000001, NAN, True, "0.1"], n_records=[0, 2.5, "3"],
    ),
    **wrong_values(WithoutReplacement, {"n_records": 10}, batch_size=[0, 11]),
    **wrong_values(WithReplacement, {"n_records": 10}, batch_size=[0, 11]),
    **wrong_values(of_kind, {}, kind=["shuffled", None, ["poisson"]]),
    **wrong_calls({
        f"description {facts}": (
            partial(sampling_from_description, {"kind": "poisson", **facts}), word)
        for facts, word in (
            ({}, "described by"),
            ({"n_records": 3, "rate": 0.5, "seed": 1}, "described by"),
            ({"n_records": 3, "q": 1}, "described by"),
            ({"n_records": 3, "rate": 0}, "rate"),
        )
    }),
    **{
        f"{design.name}, {name}": refusal
        for design in DESIGNS
        for name, refusal in wrong_values(
            draws, {"design": design}, n_differing=[101, -1, 1.5, True]
        ).items()
    },
    **wrong_calls({
        f"{design.name}, memory": (partial(draws, design, 2**25), "33554433")
        for design in (
            Poisson(n_records=2**25, rate=0.5),
            WithoutReplacement(n_records=2**26, batch_size=2**25),
            WithReplacement(n_records=2**26, batch_size=2**25),
        )
    }),
    **wrong_calls({
        "cap": (lambda: POISSON.discrepancy_cap(101), "max_differing"),
        "ratio": (lambda: poisson_mean_square_ratio(POISSON, 101), "n_differing"),
        "key of a draw": (lambda: draw_batch(POISSON, b"x" * 33), "key"),
    }),
    **wrong_calls({
        "tail, above": (lambda: tail_cap([0, 6, 7]), "2 of 3"),
        "tail, empty": (lambda: tail_cap([]), "discrepancies"),
        "tail, huge": (lambda: tail_cap(np.full(9, 2**64 - 1, dtype=np.uint64)), "discrepancies"),
        "tail, nothing": (tail_cap, "instance"),
        "tail, all": (lambda: tail_cap([1], tail_probability=1.0), "tail_probability"),
        "tail, sure": (lambda: tail_cap([1], failure_probability=0.0), "failure_probability"),
    }),
    # Accountants.
    **wrong_calls({
        f"{what}, {design.name}": (call, "Poisson")
        for design in (WITHOUT, WITH)
        for what, call in (
            ("steps", partial(Amplified().step_costs, 4, design, 2, ONE)),
            ("run", partial(cost, Amplified(), design=design)),
            ("target", partial(calibrated, Amplified(), exactly(2), design=design)),
        )
    }),
    **wrong_calls({
        f"mean square, {what}, {records.origin[:9]}": (call, "fixed set")
        for records in (at_most(3), RANDOM, COIN)
        for what, call in (
            ("run", partial(cost, MeanSquare(), design=WITHOUT, records=records)),
            ("target", partial(calibrated, MeanSquare(), records)),
        )
    }),
    **{
        f"{accountant.name}, {name}": refusal
        for accountant in ACCOUNTANTS
        for name, refusal in {
            **wrong_values(cost, {"accountant": accountant}, order=[1.0, NAN]),
            **wrong_calls({
                f"multipliers {multipliers}": (
                    partial(cost, accountant, multipliers=multipliers), "noise_multiplier")
                for multipliers in (
                    [1.0, 0.0, 2.0], [1.0, NAN, 2.0], [INF], [1e-101], [1e101], [1.0, 1e101],
                    [1e-101, 1.0], [], 2.0,
                )
            }),
        }.items()
    },
    **wrong_calls({
        f"costs {costs}": (partial(mixed_cost, 4, costs, COIN), "costs")
        for costs in (np.zeros(1), np.zeros((2, 1)), [-1.0, 0.0], [0, NAN])
    }),
    **wrong_values(
        calibrated, {"accountant": LogMoment(), "records": exactly(2)}, n_steps=[0, 2.5, True]
    ),
    **wrong_values(
        divergence, {},
        order=[1.0, NAN, INF], noise_multiplier=[0.0, NAN], rate=[1.5], n_differing=[1.5],
    ),
    **wrong_calls({
        "mixed, order": (lambda: mixed_cost(1.0, np.zeros(2), COIN), "order"),
        "accountant": (lambda: accountant_named("moments"), "worst_case"),
    }),
    **{
        name: Refusal(call, CalibrationError, word)
        for name, call, word in (
            ("tiny epsilon", lambda: calibrated(LogMoment(), exactly(2), epsilon=1e-300),
             "epsilon"),
            ("huge epsilon", lambda: calibrated(LogMoment(), exactly(2), epsilon=1e300),
             "epsilon"),
            ("cost above floats",
             lambda: cost(LogMoment(), order=1e200, design=RARE, multipliers=[1e-90]),
             "multipliers"),
            ("cost below floats",
             lambda: cost(LogMoment(), order=2.0, design=RARE, multipliers=[1e100]),
             "multipliers"),
            ("order near 1", lambda: divergence(1.0005, 2.0, n_differing=2), "order"),
            ("mean shift", lambda: divergence(2.0, 1e90, 1e-60), "mean shift"),
            ("order near 1, counts",
             lambda: amplified_by_count(1.0001, 4.0, POISSON, np.array([3])), "order"),
        )
    },
    # Plans.
    **wrong_values(
        noisy, {},
        measure=[4, Guarantee.guess(at_most=0.64)], noise_multipliers=[[]], clip_norm=[0.0, "1"],
        differing=[4], sampling=[0.1], accountant=["amplified", Amplified],
    ),
    **wrong_values(
        planned, {},
        n_steps=[0, 1.5, MOST_STEPS + 1], differing=[4], sampling=[0.1],
        accountant=["amplified", Amplified], target=[8.0],
    ),
    **wrong_values(
        recipe_learning_rates, {"peak": 1.0, "n_steps": 10, "n_warmup_steps": 2},
        peak=[0.0], n_steps=[0], n_warmup_steps=[-1, 10],
    ),
    **wrong_values(
        read, {},
        noise_multipliers=[[1.0, 2.0]], accountant=["kind"], block=[0], non_finite=["skip"],
        version=[2],
    ),
    **wrong_calls({
        "plan, set": (
            lambda: noisy(accountant=MeanSquare(), differing=at_most(3), measure=OVER_BATCHES),
            "fixed set"),
        "plan, order of a mean": (lambda: noisy(accountant=MeanSquare()), "mean_square"),
        "plan, mean of an order": (lambda: noisy(measure=OVER_BATCHES), "log_moment"),
        "plan, delta of a mean": (
            lambda: noisy(accountant=MeanSquare(), measure=Measure.epsilon_delta(delta=1e-5)),
            "Guarantee.guess"),
        "plan, tail of an order": (lambda: noisy(differing=CUT), "no Rényi claim"),
        "plan, tail of bits": (
            lambda: noisy(differing=CUT, measure=Measure.information()), "Guarantee.guess"),
        "planned, tail of a guess": (
            lambda: planned(
                differing=attrs.evolve(CUT, excess_probability=0.5),
                target=Guarantee.guess(at_most=0.64)),
            "delta"),
        "planned, slices": (
            lambda: planned(target=Guarantee.joint(order=4, epsilon=1.0)), "both sliced notions"),
        "document, claim": (lambda: read(claim={"notion": "guess", "order": 4}), "order"),
        "plan, nan": (lambda: noisy(noise_multipliers=[1.0, NAN]), "noise_multiplier"),
        "plan, infinite": (lambda: noisy(noise_multipliers=[1.0, INF]), "noise_multiplier"),
        "plan, words": (lambda: noisy(noise_multipliers=["x"]), "numbers"),
        "plan, differing": (lambda: noisy(differing=exactly(101)), "101"),
        "plan, sampling": (lambda: planned(accountant=Amplified(), sampling=WITHOUT), "Poisson"),
        "document, format": (lambda: read(format="other"), "training plan"),
        "document, none": (lambda: TrainingPlan.from_json(None), "training plan"),
        "document, list": (lambda: TrainingPlan.from_json([]), "training plan"),
        "document, empty": (lambda: TrainingPlan.from_json({}), "training plan"),
        "document, steps": (
            lambda: read(n_steps=10**15, noise_multipliers=[1.0]), "n_steps"),
        "document, no noise": (lambda: read(noise_multipliers=None), "noise_multiplier"),
        "document, design": (
            lambda: read(accountant="amplified", sampling=WITHOUT.description()), "Poisson"),
        "document, clipping": (lambda: read(clipping={"kind": "flat"}), "incomplete"),
        "document, sampling": (lambda: read(sampling="poisson"), "incomplete"),
        "document, records": (
            lambda: read(differing={
                "kind": "binomial", "n_records": 500, "mismatch_probability": 0.5}),
            "100"),
        **{f"document without {part}": (partial(without, part), f"'{part}'")
           for part in sorted(set(noisy().to_json()) - {"format", "version"})},
        **{f"signal, {sizes}": (partial(signal_to_noise, noisy(), sizes), "size")
           for sizes in ([], [1, 2], [0], [1.5])},
    }),
    # Clipping and sums.
    **wrong_values(FlatClipping, {}, norm=[0.0, NAN, INF, True]),
    **wrong_values(layers, {}, allocation=["most"], names=[("a", "a")]),
    **wrong_values(rounding_share, {}, block=[0]),
    **wrong_values(grid, {}, step=[3, -1], sizes=[[1, 2]]),
    **wrong_calls({
        "clipping, kind": (lambda: clipping_of({"kind": "round"}), "kind"),
        "layers, one name": (lambda: layers(names=("a",)), "per layer"),
        "layers, none": (lambda: layers(names=(), norms=(), sizes=()), "at least one"),
        "layers, norm": (lambda: layers(norms=(1.0, 0.0)), "clip norm of layer 'b'"),
        "layers, size": (lambda: layers(sizes=(1, 0)), "size of layer 'b'"),
        "grid, size": (lambda: grid(sizes=[0]), "size"),
        "grid, no block": (lambda: grid(block=None), "block"),
        "grid, block": (lambda: grid(block=4_093, clip_norm=1.0, sizes=[1]), "clip norm 1"),
        "grid, many sizes": (
            lambda: grid(clip_norm=1.0, noise_multipliers=[2.0**44 / 2_000 + 1e7],
                         sizes=[4_000_000]),
            "clip norm 1"),
        "grid, tiny norm": (lambda: grid(clip_norm=1e-300), "range"),
        "grid, huge norm": (lambda: grid(clip_norm=1e308), "range"),
        "no parameters": (lambda: implementation_delta(noisy(), 0), "n_parameters"),
        **{f"multipliers {bad}": (partial(effective_multiplier, np.array(bad)), "multiplier")
           for bad in ([0.0, 1.0], [-1.0, 1.0], [NAN, 1.0], [INF, 1.0], [], 2.0)},
    }),
    # Keys.
    **wrong_calls({
        "key, step": (lambda: KEY.batch_key(1.5), "step"),
        "key, block": (lambda: KEY.block_seed(0, True), "block"),
        "key, negative": (lambda: KEY.noise_key(-1, SUMS), "step"),
        "key, floats": (lambda: KEY.noise_key(0, SUMS.astype(np.float64)), "sums"),
        "key, order of bytes": (lambda: KEY.noise_key(0, SUMS.astype(">i8")), "sums"),
        "key, matrix": (lambda: KEY.noise_key(0, SUMS.reshape(1, -1)), "sums"),
        "key, list": (lambda: KEY.noise_key(0, [1, 2]), "sums"),
        "key, short tag": (lambda: KEY.tag(b"short"), "32 bytes"),
        "key, short": (lambda: RunKey.from_bytes(b"x" * 31), "32 bytes"),
    }),
    # Requests.
    **wrong_values(
        worlds, {},
        shares=[(0.5,), [0.5, 0.6]], label=[-1], seed=["x"], world=["third"],
    ),
    **wrong_values(DataSource, {"dataset": "digits"}, dataset=["mnist", 3], name=[""],
                   n_classes=[10]),
    **wrong_values(
        Output, {"folder": Path(), "evaluate_every": 1},
        public_evaluation=["yes"], evaluate_every=[0], checkpoint_every=[1.5],
    ),
    **wrong_values(
        Learning, {"model": "linear", "seed": 0, "learning_rate": 0.5},
        model=["resnet"], loss=["mse"], seed=[-1], learning_rate=[0], momentum=[-0.1],
        weight_decay=[NAN], optimizer=["lbfgs"], schedule=["linear"], n_warmup_steps=[2],
    ),
    **wrong_calls({
        "classes": (lambda: DataSource(dataset="a:b", n_classes=1), "n_classes"),
        "momentum of adam": (
            lambda: Learning(
                model="linear", seed=0, learning_rate=0.5, optimizer="adam", momentum=0.9),
            "momentum"),
        "other worlds": (lambda: request(worlds=worlds()), "differing records"),
        "warm-up": (lambda: request(n_warmup_steps=3), "n_warmup_steps"),
        "shares, same": (lambda: worlds(shares=(0.5, 0.51)).differing(10), "5 records"),
        "shares, none": (lambda: worlds(shares=(0.0, 0.5)).differing(10), "first of the shares"),
        "shares, all": (lambda: worlds(shares=(1.0, 0.5)).differing(10), "first of the shares"),
        "shares, above": (lambda: worlds(shares=(0.5, 1.5)).differing(10), "share"),
        **{f"name {name}": (partial(check_named, ("digits",), dataset=name), "module:function")
           for name in ("a:b:c", "a.:b", "a:1", " a:b", "a:b()", None)},
    }),
    # Worlds.
    **wrong_values(
        relabel, {"labels": ["cat", "dog"], "label": "cat", "share": 0.5, "seed": 1},
        share=[-0.1, 1.1, NAN, True, "0.1", None],
        label=["cta", 3, None, ["cat", "dog"], ["cat"]],
        seed=[-1, 1.5],
        labels=[[], [["cat"]], [0.5, 1.5], [None, "a"], 3],
    ),
    **wrong_calls({
        f"compared, {index}": (partial(differing_rows, first, second), word)
        for index, (first, second, word) in enumerate((
            (np.array([2**53 + 1]), np.array([2.0**53]), "type"),  # as floats they are the same
            (np.array(["1"]), np.array([1]), "type"),
            (np.array(1), np.array(1), "shape"),
            (np.zeros((2, 3)), np.zeros((2, 4)), "shape"),
            (np.zeros(2), np.zeros((2, 1)), "shape"),
            ([], [], "number of records"),
            (np.zeros(2), np.zeros(3), "number of records"),
            (pa.table({"age": [1]}), pa.table({"age": [1, 2]}), "number of records"),
            (pa.table({"race": ["A"]}), pa.table({"pay": [1]}), "pay, race"),
            (pa.table({"age": [1]}), pa.table({"age": [1.0]}), "'age'"),
            (pa.table({"age": [1]}), [1], "Table and list"),
            ([1], np.array([1]), "list and ndarray"),
            ("abc", "abd", "str and str"),
        ))
    }),
    "one world": Refusal(
        lambda: two_world_prevalence(np.arange(100) % 10, label=3, share=0.1001, seed=7),
        ArgumentError, "share",
    ),
    "empty tables": Refusal(
        lambda: differing_rows(pd.DataFrame(), pd.DataFrame()), TableError, "empty"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refused(name):
    check_refused(REFUSALS[name])


@pytest.mark.soundness
@pytest.mark.parametrize("notion", ["average", "joint", "unsliced", "average_over_batches"])
def test_an_accountant_claims_only_what_it_bounds(notion):
    target = getattr(Guarantee, notion)(order=16, epsilon=1.0)
    for accountant in (MeanSquare(), LogMoment(), WorstCase()):
        if notion != accountant.claim.notion:
            call = partial(planned, accountant=accountant, target=target)
            check_refused(Refusal(call, ArgumentError, "Guarantee.guess"))
