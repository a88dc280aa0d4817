"""Rows from what users have: lists, dictionaries, data frames and data sets."""

from __future__ import annotations

import json
import os
from typing import Any


def is_file(value: Any) -> bool:
    """Whether a value names a file."""
    return isinstance(value, (str, os.PathLike))


def rows_of(value: Any) -> list[dict[str, Any]]:
    """The rows of a value as a list of dictionaries; texts become rows with ids from 0 on.

    Takes a list of texts or of dictionaries, a dictionary from ids to texts, a frame of pandas or
    polars, and a data set whose items are dictionaries.
    """
    if isinstance(value, dict):
        return [{"id": str(key), "text": text} for key, text in value.items()]
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # pandas
        value = value.to_dict(orient="records")
    elif hasattr(value, "to_dicts"):  # polars
        value = value.to_dicts()
    elif hasattr(value, "to_pylist"):  # Arrow
        value = value.to_pylist()
    rows = []
    for number, row in enumerate(value):
        if isinstance(row, str):
            row = {"id": str(number), "text": row}
        elif not isinstance(row, dict):
            raise TypeError(f"row {number} is {type(row).__name__}; give texts or dictionaries")
        rows.append(row)
    return rows


def json_lines(rows: list[dict[str, Any]]) -> str:
    """The rows as JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False, default=plain) + "\n" for row in rows)


def plain(value: Any) -> Any:
    """A number or list of NumPy as one of Python."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")
