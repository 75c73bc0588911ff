"""Turns pip's installation report into a software bill of materials (CycloneDX 1.5, JSON).

pip install --report report.json ... && python sbom.py report.json sbom.json

It lists what pip has installed, each with the checksum of the file that it came from. Packages of
the base image are not in it.
"""

import json
import sys
from typing import Any


def bill(report: dict[str, Any]) -> dict[str, Any]:
    """The bill of a report of `pip install --report`."""
    parts = [_component(item) for item in report["install"]]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "eve-acme"}},
        "components": sorted(parts, key=lambda part: part["purl"]),
    }


def _component(item: dict[str, Any]) -> dict[str, Any]:
    metadata = item["metadata"]
    name, version = metadata["name"], metadata["version"]
    checksum = item["download_info"]["archive_info"]["hash"].partition("sha256=")[2]
    part = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
        "hashes": [{"alg": "SHA-256", "content": checksum}],
    }
    license = metadata.get("license_expression") or metadata.get("license")
    if license:
        part["licenses"] = [{"license": {"name": license.strip().splitlines()[0][:100]}}]
    return part


if __name__ == "__main__":
    with open(sys.argv[1]) as source, open(sys.argv[2], "w") as target:
        json.dump(bill(json.load(source)), target, indent=1)
