# SPDX-License-Identifier: Apache-2.0
"""Compute what the golden files hold; as a script, write all of them, or those that are named.

`python -m tests.golden.make [scenarios] [plans] [steps] [commands]`: by hand, only where numbers
are meant to change, and the commit says why they do.
"""

import hashlib
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.golden import adapter, commands, specs

FOLDER = Path(__file__).parent
TEXT, VARIES = "text", "varies"
"""What stands for a sentence, and for what no two runs have in common."""


def scenario(spec: specs.Spec) -> dict[str, Any]:
    """One entry of scenarios.json."""
    return {"spec": spec_digest(spec), "kind": spec["kind"], "found": adapter.certify(spec)}


def plan(spec: specs.Spec) -> dict[str, Any]:
    """One entry of plans.json."""
    return {"spec": spec_digest(spec), "found": adapter.plan(spec)}


def step(spec: specs.Spec) -> dict[str, Any]:
    """One entry of steps.json."""
    from tests.golden import models

    model, records = models.learner(spec["model"], spec["seed"], spec["n_records"])
    found = adapter.step(spec, model, models.loss, records)
    return {"model": spec["model"], "way": spec["way"], "found": found}


def chain(name: str) -> list[dict[str, Any]]:
    """Entries of commands.json: commands that are run one after the other in one new folder."""
    entries = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for file, text in commands.FILES.items():
            (folder / file).write_text(text, encoding="utf-8")
        pq.write_table(pa.table(commands.many()), folder / "many.parquet")
        for line in commands.CHAINS[name]:
            code, out = adapter.run_command(folder, line)
            answer = _numbers(json.loads(out)) if "--json" in line and out else None
            entries.append({"line": " ".join(line), "code": code, "answer": answer})
    return entries


def spec_digest(spec: specs.Spec) -> str:
    """Tells whether the input is the same; what numpy draws could change."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:12]


def _numbers(answer: Any, key: str = "") -> Any:
    """The answer of a command without its sentences and without what varies."""
    varies = key in commands.VARIES or (key in commands.VARIES_AS_LIST and isinstance(answer, list))
    if varies and not isinstance(answer, dict):
        return VARIES
    if isinstance(answer, dict):
        return {k: VARIES if varies else _numbers(v, k) for k, v in answer.items()}
    if isinstance(answer, list):
        if answer and all(isinstance(one, str) for one in answer):
            return TEXT
        return [_numbers(one) for one in answer]
    return TEXT if isinstance(answer, str) else answer


def write(name: str, entries: Any) -> None:
    """One golden file."""
    text = json.dumps({"entries": entries}, sort_keys=True, indent=1, ensure_ascii=False)
    (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def main(wanted: list[str]) -> None:
    """Write the named golden files anew, or all of them."""
    warnings.simplefilter("ignore")
    computed = {
        "scenarios": lambda: [scenario(spec) for spec in specs.scenario_specs()],
        "plans": lambda: [plan(spec) for spec in specs.plan_specs()],
        "steps": lambda: [step(spec) for spec in specs.step_specs()],
        "commands": lambda: {name: chain(name) for name in commands.CHAINS},
    }
    for name in wanted or computed:
        write(name, computed[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
