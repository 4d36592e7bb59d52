# SPDX-License-Identifier: Apache-2.0
"""Linear models of one release of second moments: post-processing, which costs nothing.

`queries.second_moments` publishes what a linear model needs to know of the rows, with noise that
hides the secret. `ridge`, `lda`, `naive_bayes` and `least_squares` are functions of the released
numbers and of public facts; no function of a release here takes a row.
"""

from pufferslice.models.design import suggest_columns, weights_by_use
from pufferslice.models.fit import lda, least_squares, naive_bayes, ridge
from pufferslice.models.linear import LinearClassifier, LinearRegressor
from pufferslice.models.recipes import hashed_words, random_features

__all__ = [
    "LinearClassifier",
    "LinearRegressor",
    "hashed_words",
    "lda",
    "least_squares",
    "naive_bayes",
    "random_features",
    "ridge",
    "suggest_columns",
    "weights_by_use",
]
