# SPDX-License-Identifier: Apache-2.0
"""The bill of materials (CycloneDX) that a built wheel carries in `.dist-info/sboms`."""

import json
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACE = "build/pufferslice.cdx.json"


class BillOfMaterials(BuildHookInterface):
    """Lists what the wheel contains and what it asks for; the same source gives the same file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file and add it, unless the wheel is an editable one."""
        if version != "editable":
            path = Path(self.root, PLACE)
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(self._bill(), indent=2) + "\n", encoding="utf-8")
            build_data["sbom_files"].append(PLACE)

    def _bill(self) -> dict[str, Any]:
        metadata = self.metadata
        package = {
            "type": "library",
            "bom-ref": f"pkg:pypi/{metadata.name}@{metadata.version}",
            "name": metadata.name,
            "version": metadata.version,
            "purl": f"pkg:pypi/{metadata.name}@{metadata.version}",
            "licenses": [{"license": {"id": metadata.core.license_expression}}],
        }
        adult = {
            "type": "data",
            "bom-ref": "adult",
            "name": "Adult (census income)",
            "licenses": [{"license": {"id": "CC-BY-4.0"}}],
            "externalReferences": [
                {"type": "documentation", "url": "https://doi.org/10.24432/C5XW20"}
            ],
        }
        required = [_library(line) for line in metadata.core.dependencies]
        return {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {"component": package},
            "components": [adult, *required],
            "dependencies": [
                {
                    "ref": package["bom-ref"],
                    "dependsOn": [part["bom-ref"] for part in (adult, *required)],
                }
            ],
        }


def _library(requirement: str) -> dict[str, Any]:
    """A dependency: its range is a property, because the installer chooses the version."""
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}",
        "name": name,
        "purl": f"pkg:pypi/{name}",
        "properties": [{"name": "requirement", "value": requirement}],
    }
