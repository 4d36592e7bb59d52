# SPDX-License-Identifier: Apache-2.0
"""Files and command lines of the golden commands, as a user would write them."""

from typing import Any

import numpy as np

PEOPLE = [("a", 31.5, 40.0), ("a", 29.0, 35.5), ("b", 36.0, 41.0), ("b", 35.0, 52.0),
          ("c", 40.0, 47.5), ("c", 42.25, 30.0), ("c", 39.0, 61.0)]  # fmt: skip

GROUPS = """
[data]
path = "people.csv"
[secret]
column = "site"
pairs = "all"
[query]
distribution = "groups"
mean = ["pay", "age"]
rate = [{ column = "age", above = 40 }]
range = { low = [0, 0, 0], high = [100, 100, 1] }
scales = [10, 10, 0.1]
[prior]
source = "released-data"
kind = "empirical"
[profile]
n_directions = 4
seed = 7
[guarantee]
notion = "joint"
order = 4
epsilon = 1.0
deltas = [1e-5]
[calibration]
rule = "tight"
envelope = "transport"
"""

RECORDS = """
[data]
path = "people.csv"
[secret]
column = "site"
[query]
distribution = "records"
columns = ["pay", "age"]
range = { center = [35, 45], radius = 40 }
[profile]
n_directions = 4
seed = 7
[guarantee]
notion = "average"
order = 2
epsilon = 0.5
"""

STREAMED = RECORDS.replace('path = "people.csv"', 'path = "many.parquet"\nbins = 16').replace(
    "[profile]", '[prior]\nsource = "released-data"\nkind = "empirical"\n[profile]'
)

SAMPLED = """
[data]
path = "many.parquet"
[secret]
column = "site"
[query]
distribution = "records"
columns = ["pay", "age"]
range = { center = [35, 45], radius = 40 }
[prior]
source = "held-out"
kind = "sampled"
band = "dkw"
[profile]
n_directions = 2
seed = 7
[guarantee]
claim = "epsilon-delta"
notion = "joint"
epsilon = 1.0
delta = 0.3
failure_probability = 0.05
"""

GAUSSIAN = """
[query]
distribution = "worlds"
mean = ["pay", "age"]
[gaussian.low]
mean = [0.0, 1.0]
cov = [[1.0, 0.0], [0.0, 2.0]]
[gaussian.high]
mean = [2.0, 1.0]
cov = [[1.5, 0.2], [0.2, 2.0]]
[profile]
kind = "axes"
[guarantee]
notion = "unsliced"
order = 3
epsilon = 1.0
"""

BOOTSTRAP = """
[data]
path = "people.csv"
[secret]
bins = { column = "age", quantiles = 2 }
[query]
distribution = "bootstrap"
mean = ["pay"]
quantile = [{ column = "pay", level = 0.5 }]
[bootstrap]
n_replicates = 5
seed = 3
[profile]
kind = "orthogonal"
n_sets = 1
seed = 7
[guarantee]
notion = "joint"
order = 4
epsilon = 1.0
"""

TRAINING = """
[data]
dataset = "digits"
n_records = 60
[secret]
exactly = 2
[sampling]
kind = "poisson"
rate = 0.5
[training]
model = "linear"
seed = 0
optimizer = "sgd"
learning_rate = 0.5
momentum = 0.5
n_steps = 2
clip_norm = 1.0
[guarantee]
accountant = "log-moment"
order = 8
epsilon = 8.0
[output]
folder = "run"
public_evaluation = true
"""

FILES = {
    "people.csv": "site,pay,age\n" + "".join(f"{a},{b},{c}\n" for a, b, c in PEOPLE),
    "rows.csv": "site,pay,age\n" + "".join(f"{a},{b},{c}\n" for a, b, c in PEOPLE[:2]),
    "groups.toml": GROUPS,
    "records.toml": RECORDS,
    "streamed.toml": STREAMED,
    "sampled.toml": SAMPLED,
    "gaussian.toml": GAUSSIAN,
    "bootstrap.toml": BOOTSTRAP,
    "training.toml": TRAINING,
    "amplified.toml": TRAINING.replace("log-moment", "amplified").replace('"run"', '"amplified"'),
    "average.toml": GROUPS.replace('"joint"', '"average"'),
    "no_order.toml": GROUPS.replace("order = 4", ""),
    "wrong_key.toml": GROUPS.replace("epsilon = 1.0", "epsilom = 1.0"),
    "broken.toml": "[data\n",
    "broken.json": '{"statement": 1}',
    "bad_training.toml": TRAINING.replace("rate = 0.5", "rate = 1.5"),
}


def many() -> dict[str, Any]:
    """The columns of `many.parquet`."""
    rng = np.random.default_rng(3)
    pay, age = 35 + 3 * rng.standard_normal(600), 45 + 5 * rng.standard_normal(600)
    return {"site": ["a", "b"] * 300, "pay": pay, "age": age}


_FLAGS = "--secret site --notion joint --order 3 --epsilon 0.8 --directions 5 --seed 2"
_CALIBRATE = "calibrate --data people.csv"
_WHOLE = f"{_CALIBRATE} --law groups --mean pay,age --scales 10,20 --secret site"
_RENYI = "--notion unsliced --order 3 --epsilon 0.8"
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
    "claims": _lines(f"""
--version
keygen keys --json
keygen keys --json
calibrate groups.toml --out groups.json --json
calibrate average.toml --out average.json --json
calibrate records.toml --out records.json --json
calibrate streamed.toml --out streamed.json --json
calibrate sampled.toml --out sampled.json --json
calibrate gaussian.toml --out gaussian.json --json
calibrate bootstrap.toml --out bootstrap.json --json
calibrate no_order.toml --json
calibrate wrong_key.toml --json
calibrate broken.toml --json
calibrate absent.toml --json
calibrate --json
{_CALIBRATE} --law groups --mean pay,age --std pay {_FLAGS} --json
{_CALIBRATE} --law records --columns pay,age --rule closed-form --envelope worst-gap {_FLAGS} --json
{_CALIBRATE} --law bootstrap --mean pay --rate age>40 --replicates 9 --scales 10,0.1 {_FLAGS} --json
{_CALIBRATE} --law records --columns pay,age --range 0:99,0:99 --profile sphere \
--failure-probability 0.1 {_FLAGS} --json
{_CALIBRATE} --law groups --mean pay {_FLAGS} --noise-std 40 --json
{_CALIBRATE} --law groups --mean pay {_FLAGS} --noise-std 0.01 --json
{_CALIBRATE} --law groups --mean nowhere {_FLAGS} --json
{_CALIBRATE} --law groups --mean pay --secret site --claim epsilon-delta --notion average \
--epsilon 1 --delta 0.001 --directions 3 --seed 4 --json
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
{_WHOLE} {_RENYI} --out whole.json --json
{_WHOLE} {_RENYI} --shape diagonal --json
{_WHOLE} {_RENYI} --shape isotropic --json
{_WHOLE} {_RENYI} --guard 0.3 --total 2 --json
{_WHOLE} --notion unsliced --order 3 --epsilon 9 --accuracy mean(pay)=20 --accuracy mean(age)=50 \
--json
{_WHOLE} --guess 0.6 --out guess.json --json
{_WHOLE} --notion unsliced --epsilon 1 --delta 1e-5 --out pair.json --json
{_CALIBRATE} --law records --columns pay,age --secret site {_RENYI} --effort quick --json
{_WHOLE} {_RENYI} --guess 0.6 --json
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
{_ACCOUNT} --sampling poisson --batch-size 9 --order 4 --exactly 1 --noise-multiplier 3 \
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
