# SPDX-License-Identifier: Apache-2.0
"""Files and command lines of the golden commands, as a user would write them."""

from typing import Any

import numpy as np
from tests.scenario_files import PEOPLE, SCENARIO, SCENARIOS, TRAINING, csv_text, toml_text


def _with(document: dict[str, Any], **sections: dict[str, Any]) -> str:
    """The document as TOML, with some values of its sections changed."""
    changed = {name: document[name] | values for name, values in sections.items()}
    return toml_text({**document, **changed})


_OF_SITE = {"data": {"path": "people.csv"}, "secret": {"column": "site"}}


def _of_site(query: dict[str, Any], **sections: dict[str, Any]) -> str:
    """A sliced claim about which site the rows come from, as TOML."""
    return toml_text(
        {
            **_OF_SITE,
            "query": query,
            "profile": {"n_directions": 5, "seed": 2},
            "guarantee": {"notion": "joint", "order": 3, "epsilon": 0.8},
            **sections,
        }
    )


FILES = {
    "people.csv": csv_text(),
    "rows.csv": csv_text(PEOPLE[:2]),
    **{
        f"{name}.toml": toml_text(SCENARIOS[name])
        for name in ("groups", "records", "sampled", "gaussian", "bootstrap")
    },
    "training.toml": toml_text(TRAINING),
    "amplified.toml": _with(
        TRAINING, guarantee={"accountant": "amplified"}, output={"folder": "amplified"}
    ),
    "means.toml": _of_site({"distribution": "groups", "mean": ["pay"]}),
    "spread.toml": _of_site({"distribution": "groups", "mean": ["pay", "age"], "std": ["pay"]}),
    "rows.toml": _of_site({"distribution": "records", "columns": ["pay", "age"]}),
    "resampled.toml": _of_site(
        {
            "distribution": "bootstrap",
            "mean": ["pay"],
            "rate": [{"column": "age", "above": 40}],
            "scales": [10, 0.1],
        },
        bootstrap={"n_replicates": 9, "seed": 2},
    ),
    "whole.toml": toml_text(
        {
            **_OF_SITE,
            "query": {"distribution": "groups", "mean": ["pay", "age"], "scales": [10, 20]},
            "guarantee": {"notion": "unsliced", "order": 3, "epsilon": 0.8},
        }
    ),
    "average.toml": _with(SCENARIO, guarantee={"notion": "average"}),
    "no_order.toml": toml_text(SCENARIO | {"guarantee": {"notion": "joint", "epsilon": 1.0}}),
    "wrong_key.toml": _with(SCENARIO, guarantee={"epsilom": 1.0}),
    "broken.toml": "[data\n",
    "broken.json": '{"statement": 1}',
    "bad_training.toml": _with(TRAINING, sampling={"rate": 1.5}),
}


def many() -> dict[str, Any]:
    """The columns of `many.parquet`."""
    rng = np.random.default_rng(3)
    pay, age = 35 + 3 * rng.standard_normal(600), 45 + 5 * rng.standard_normal(600)
    return {"site": ["a", "b"] * 300, "pay": pay, "age": age}


_ACCOUNT = "account --n-records 2000 --n-steps 30"

VARIES = frozenset(
    {
        "accuracy",
        "advantage",
        "bytes",
        "lower_bound",
        "metrics",
        "peak_bytes",
        "prior_accuracy",
        "refutable_below",
        "released",
        "seconds",
        "value",
    }
)
"""Keys of numbers that depend on noise, time, memory or the length of sentences."""

VARIES_AS_LIST = frozenset({"interval"})
"""Keys whose lists vary; as a number the same key is a level."""


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


CHAINS = {
    "claims": _lines("""
--version
keygen keys --json
keygen keys --json
calibrate groups.toml --out groups.json --json
calibrate average.toml --out average.json --json
calibrate records.toml --out records.json --json
calibrate sampled.toml --out sampled.json --json
calibrate gaussian.toml --out gaussian.json --json
calibrate bootstrap.toml --out bootstrap.json --json
calibrate no_order.toml --json
calibrate wrong_key.toml --json
calibrate broken.toml --json
calibrate absent.toml --json
calibrate --json
calibrate spread.toml --json
calibrate rows.toml --set calibration.rule=closed-form --set calibration.envelope=worst-gap --json
calibrate resampled.toml --json
calibrate rows.toml --set query.range={low=[0,0],high=[99,99]} --set profile.kind=sphere \
--set guarantee.failure_probability=0.1 --json
calibrate means.toml --set calibration.noise_std=40 --json
calibrate means.toml --set calibration.noise_std=0.01 --json
calibrate means.toml --set query.mean=["nowhere"] --json
calibrate means.toml --set guarantee={notion="average",epsilon=1,delta=0.001} \
--set profile={n_directions=3,seed=4} --json
spent groups.json --json
spent groups.json --noise-std 9 --order 2 --json
spent records.json --notion unsliced --json
spent sampled.json --noise-std 3 --json
spent gaussian.json --order 5 --json
spent groups.json --noise-std -1 --json
spent broken.json --json
verify groups.json --json
verify groups.json --scenario groups.toml --json
verify records.json --scenario groups.toml --json
verify groups.json --key keys/public.pem --json
sign groups.json --key keys/private.pem --json
verify groups.json --key keys/public.pem --json
sign groups.json --key keys/absent.pem --json
release groups.toml --certificate groups.json --ledger ledger --out one.json --group a --json
release groups.toml --certificate groups.json --ledger ledger --out two.json --group b --json
release groups.toml --certificate groups.json --ledger ledger --out again.json --again --json
release records.toml --certificate records.json --ledger other --out row.json --row 99 --json
audit records.json --scenario records.toml --n-outputs 1000 --confidence 0.9999 --json
report groups.json one.json --out page.html --public --json
report broken.json --out other.html --json
calibrate whole.toml --out whole.json --json
calibrate whole.toml --set calibration.shape=diagonal --json
calibrate whole.toml --set calibration.shape=isotropic --json
calibrate whole.toml --set calibration.guard=0.3 --json
calibrate whole.toml --set guarantee.epsilon=9 --set calibration.accuracy."mean(pay)"=20 \
--set calibration.accuracy."mean(age)"=50 --json
calibrate whole.toml --set guarantee={notion="guess",at_most=0.6} --out guess.json --json
calibrate whole.toml --set guarantee={notion="unsliced",epsilon=1,delta=1e-5} \
--out pair.json --json
calibrate rows.toml --set guarantee.notion=unsliced --set calibration.effort=quick --json
calibrate whole.toml --set guarantee.at_most=0.6 --json
spent whole.json --order 5 --delta 1e-4 --json
spent guess.json --order 5 --delta 1e-4 --json
spent pair.json --noise-std 3 --json
verify guess.json --json
verify pair.json --json
"""),
    "runs": _lines(f"""
init made --json
init made --json
calibrate made/scenario.toml --json
demo --out demo --json
{_ACCOUNT} --sampling poisson --batch-size 100 --order 4 --exactly 5 --epsilon 2 --json
{_ACCOUNT} --sampling poisson --batch-size 9 --exactly 1 --noise-multiplier 3 \
--delta 1e-5 --n-parameters 500 --json
{_ACCOUNT} --sampling without-replacement --batch-size 64 --order 8 --at-most 3 \
--noise-multiplier 6 --json
{_ACCOUNT} --sampling with-replacement --batch-size 64 --order 8 --mismatch-probability 0.001 \
--noise-multiplier 9 --json
{_ACCOUNT} --sampling poisson --batch-size 100 --order 4 --exactly 5 --json
{_ACCOUNT} --sampling sometimes --batch-size 100 --order 4 --exactly 5 --epsilon 2 --json
compare groups.toml --json
compare sampled.toml --json
train training.toml --json
train bad_training.toml --json
verify records.json --json
spent records.json --notion average --json
"""),
}
"""Command lines, by the folder in which they are run one after the other."""
