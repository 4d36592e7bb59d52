# SPDX-License-Identifier: Apache-2.0
"""Public recipes for columns of texts and images: fixed functions of one row, without data."""

import hashlib
import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_count
from pufferslice.data.frames import check_columns, complete_part, frame_of, labels_of
from pufferslice.errors import ArgumentError

_WORDS = re.compile(r"\w+")
_MOST_BUCKETS = 1_000


def hashed_words(table: object, column: str, *, n_buckets: int) -> pa.Table:
    """Columns `COLUMN word K` of 0 and 1: whether a text has a word that is hashed to bucket K.

    Words are runs of letters and digits, in lower case; the hash is SHA-256 modulo the public
    number of buckets. Row by row, without a vocabulary, so that no row changes the columns of
    another. As levels of `queries.second_moments`: `{name: [1] for name in columns}`.

    >>> hashed_words(pa.table({"note": ["one two", None]}), "note", n_buckets=4).to_pydict()
    {'note word 0': [1, 0], 'note word 1': [0, 0], 'note word 2': [1, 0], 'note word 3': [0, 0]}
    """
    check_count(1, n_buckets=n_buckets)
    if n_buckets > _MOST_BUCKETS:
        raise ArgumentError(f"n_buckets must be at most {_MOST_BUCKETS:,}, got {n_buckets:,}")
    frame = frame_of(table)
    check_columns(frame, [column])
    part, present = complete_part(frame, column)
    met: npt.NDArray[np.int8] = np.zeros((len(frame), n_buckets), dtype=np.int8)
    known: dict[str, int] = {}
    texts = labels_of(part, column).tolist() if present.any() else []
    for row, text in zip(np.flatnonzero(present).tolist(), texts, strict=True):
        for word in set(_WORDS.findall(text.lower())):
            if word not in known:
                digest = hashlib.sha256(word.encode()).digest()
                known[word] = int.from_bytes(digest[:8], "big") % n_buckets
            met[row, known[word]] = 1
    return pa.table({f"{column} word {k}": pa.array(met[:, k]) for k in range(n_buckets)})


def random_features(rows: npt.ArrayLike, *, n_features: int, seed: int) -> pa.Table:
    r"""Columns `feature K` of random cosines of each row, between -1 and 1.

    $$\cos(w_k^\top x + v_k), \qquad w_k \sim N(0, I / n), \quad v_k \sim U(0, 2 \pi)$$

    `rows` are numbers, such as images with pixels from 0 to 1, of n numbers each; `seed` is public.
    Row by row, without data: clip them to (-1, 1) in `queries.second_moments`.

    >>> random_features(np.zeros((2, 8, 8)), n_features=3, seed=1).column_names
    ['feature 0', 'feature 1', 'feature 2']
    """
    check_count(1, n_features=n_features)
    check_count(0, seed=seed)
    numbers: Floats = np.asarray(rows, dtype=np.float64)
    if numbers.ndim < 2 or not numbers[0].size or not np.isfinite(numbers).all():
        raise ArgumentError(
            "rows must be finite numbers of shape (n_rows, ...), with at least one for each row; "
            f"got shape {numbers.shape}"
        )
    numbers = numbers.reshape(len(numbers), -1)
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((numbers.shape[1], n_features)) / np.sqrt(numbers.shape[1])
    phases = rng.uniform(0, 2 * np.pi, n_features)
    columns = np.cos(numbers @ directions + phases)
    return pa.table({f"feature {k}": pa.array(columns[:, k]) for k in range(n_features)})
