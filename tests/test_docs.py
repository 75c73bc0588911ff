"""The API reference is that of the code: as it is generated, and as Python itself sees it."""

import dataclasses
import importlib
import importlib.util
import inspect
import json
import pathlib
import re

import pytest

import eve_acme
from eve_acme import EVEConfig

FOLDER = pathlib.Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def make_api():
    spec = importlib.util.spec_from_file_location("make_api", FOLDER / "make_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(make_api):
    assert make_api.PAGE.read_text() == make_api.page(), "run: python docs/make_api.py"


def test_all_that_is_exported_is_on_it(make_api):
    bold = re.findall(r"^### \*\*`(\w+)`\*\*$", make_api.page(), re.MULTILINE)
    assert sorted(bold) == sorted(set(eve_acme.__all__) - {"PRESETS"})


@pytest.mark.acme
def test_every_hyper_parameter_is_on_it(make_api):
    page = make_api.page()
    for field in dataclasses.fields(eve_acme.EVEConfig):
        assert f"- `{field.name} = " in page


def test_signatures_are_those_of_the_objects(make_api):
    """Names of parameters from `inspect`, which has imported them, in the order of the page."""
    page = make_api.page()
    for module, names in make_api.PUBLIC.items():
        for name in names:
            thing = getattr(importlib.import_module(f"eve_acme.{module}"), name)
            written = re.search(rf"^{name}\((.*)\)(?: -> .*)?$", page, re.MULTILINE)
            if written:
                parameters = inspect.signature(thing).parameters
                places = [written[1].find(parameter) for parameter in parameters]
                assert places == sorted(places) and -1 not in places, (name, written[1])
            else:
                assert inspect.isclass(thing), name
                assert inspect.getdoc(thing).split("\n")[0] in page


def test_docstrings_become_lists(make_api):
    text = "What it is.\n\nArgs:\n  size: how large,\n    in cells.\n  seed: of all."
    assert make_api._markdown(text) == (
        "What it is.\n\nArgs:\n\n- `size`: how large,\n    in cells.\n- `seed`: of all."
    )


def test_hyper_parameters_have_the_defaults_that_their_page_says():
    text = (FOLDER / "hyperparameters.md").read_text()
    rows = re.findall(r"^\| (`[^|]+) \| ([^|\s][^|]*) \|", text, re.MULTILINE)
    fields = [field for names, _ in rows for field in re.findall(r"`(\w+)`", names)]
    defaults = [default for _, values in rows for default in values.split(", ")]
    assert len(fields) == 14
    for field, default in zip(fields, defaults, strict=True):
        value = getattr(EVEConfig(), field)
        assert type(value)(json.loads(default) if not isinstance(value, str) else default) == value
