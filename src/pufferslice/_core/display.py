# SPDX-License-Identifier: Apache-2.0
"""Values in notebooks: escaped HTML without scripts, and pandas frames."""

import html
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pufferslice._core.text import shown
from pufferslice.errors import MissingExtraError, escaped

if TYPE_CHECKING:
    import pandas as pd

_MOST_DECIMALS: Final = 8
_LARGEST: Final = 1e15


def rounded(value: float, noise_std: float | None = None) -> str:
    """Round to three significant digits, or to the second digit of the noise.

    >>> rounded(0.22374), rounded(12_345.6), rounded(1_234_567.891, noise_std=2.24)
    ('0.224', '12,300', '1,234,567.9')
    """
    size, digits = (abs(value), 3) if noise_std is None else (noise_std, 2)
    if not size or not math.isfinite(size) or abs(value) >= _LARGEST:
        return f"{value:.6g}"
    decimals = digits - 1 - math.floor(math.log10(size))
    if decimals > _MOST_DECIMALS:
        return f"{value:.3g}"
    text = f"{round(value, decimals):,.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text and noise_std is None else text


class Shown:
    """A result that shows itself as JSON values, as a frame and in a notebook. Abstract."""

    __slots__ = ()

    is_internal: ClassVar[bool] = True
    """Whether the result must not be published."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return self.to_json()

    def to_pandas(self) -> "pd.DataFrame":
        """The result as a table, with a row for each of its parts."""
        return data_frame(self.table_rows())

    @abstractmethod
    def table_rows(self) -> list[dict[str, Any]]:
        """The rows of the table."""

    @abstractmethod
    def sentences(self) -> list[str]:
        """What a notebook says above the table."""

    def shown_rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows that a notebook shows."""
        return self.table_rows()

    def details(self) -> str:
        """A longer text for those who unfold it."""
        return str(self)

    def _repr_html_(self) -> str:
        parts = self.sentences(), self.shown_rows(), self.details()
        return html_of(*parts, internal=self.is_internal)


def html_of(
    sentences: Iterable[str], rows: Sequence[Mapping[str, Any]], details: str, *, internal: bool
) -> str:
    """Write sentences, a table with a column for each key, and a longer text to unfold, as HTML.

    Every text is escaped, also one that is a label of the data.
    """
    parts = [f"<p>{_text(sentence)}</p>" for sentence in sentences]
    if internal:
        parts.insert(0, "<p><strong>Internal: do not publish.</strong></p>")
    if rows:
        head = "".join(f"<th>{_text(name.replace('_', ' '))}</th>" for name in rows[0])
        body = "".join(
            f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row.values())}</tr>"
            for row in rows
        )
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    parts.append(f"<details><summary>In full</summary><pre>{html.escape(details)}</pre></details>")
    return f"<div>{''.join(parts)}</div>"


def data_frame(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Convert the rows to a pandas frame."""
    try:
        import pandas as pd  # noqa: PLC0415 - only for those who ask for a frame
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "to_pandas needs pandas; install it with: pip install pandas"
        ) from error
    return pd.DataFrame(list(rows))


def _text(text: str) -> str:
    return html.escape(escaped(text, keep="\u00a0"))


def _cell(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, float):
        return rounded(value)
    return _text(shown(str(value)))
