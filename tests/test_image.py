"""docker/Dockerfile and the files around it, without an engine; docker/sbom.py on a report."""

import importlib.util
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()


def test_the_image_is_unprivileged_and_lean():
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "\nUSER 10001:10001\n" in final  # By number: Kubernetes checks runAsNonRoot by it.
    assert final.index("USER ") > final.index("RUN useradd")
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == ["${BASE}", "${BASE}"]
    assert re.search(r"^ARG BASE=python:3\.10-slim$", DOCKERFILE, re.MULTILINE)
    assert "apt-get" not in DOCKERFILE and "--no-cache-dir" in DOCKERFILE
    assert "\nHEALTHCHECK " in DOCKERFILE and "EXPOSE" not in DOCKERFILE


def test_nothing_else_gets_into_the_image():
    """An allow list: what else lies in a checkout, secrets included, is not even sent."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {"requirements.txt", "docker/sbom.py", "launch", "eve_acme"}
    assert {rule[1:] for rule in rules if rule.startswith("!")} == allowed
    assert not re.search(r"(?i)(token|password|secret|api_key)", DOCKERFILE)


def test_a_bill_of_materials_from_a_report_of_pip():
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "docker" / "sbom.py")
    sbom = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sbom)

    def item(name, version, checksum, **metadata):
        info = dict(url="https://example.org/x.whl", archive_info=dict(hash=f"sha256={checksum}"))
        return dict(download_info=info, metadata=dict(name=name, version=version, **metadata))

    report = dict(
        version="1",
        install=[
            item("Two_Words", "2.0", "b" * 64, license="MIT\nand all of its text"),
            item("one", "1.0", "a" * 64, license_expression="Apache-2.0", license="other"),
            item("none", "3", "c" * 64),
        ],
    )
    bill = sbom.bill(report)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    none, one, two = bill["components"]
    assert two["purl"] == "pkg:pypi/two-words@2.0" and two["name"] == "Two_Words"
    assert two["hashes"] == [dict(alg="SHA-256", content="b" * 64)]
    assert two["licenses"] == [dict(license=dict(name="MIT"))]
    assert one["licenses"] == [dict(license=dict(name="Apache-2.0"))]
    assert "licenses" not in none
