"""`eve doctor`: one screen, advice for what is wrong, and an exit code."""

import resource
import shutil
import sys
import types

import pytest

from eve_acme.cli import doctor
from eve_acme.cli.main import main


@pytest.mark.acme
def test_a_whole_installation_is_one_screen_and_code_zero(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "no problems" and len(lines) <= 24
    names = {line[6:18].strip() for line in lines if not line.startswith(" ")}
    assert names >= {"Python", "JAX", "Acme", "Reverb", "Launchpad", "ports", "disk", "cores"}


@pytest.mark.acme
def test_what_does_not_load_is_named_with_what_to_do(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "launchpad", None)
    monkeypatch.setattr(doctor, "CHECKS", (doctor._parts,))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "BAD   Launchpad    does not load: ModuleNotFoundError" in out
    assert "-> Python 3.10 on Linux x86_64, and pip install" in out and "problems: 1" in out


def test_disk_limits_and_autogroup_are_judged(monkeypatch, tmp_path):
    def free(megabytes):
        usage = types.SimpleNamespace(free=megabytes * 2**20)
        monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
        return [finding.kind for finding in doctor._disk()]

    assert (free(100), free(500), free(5000)) == (["BAD"] * 2, ["note"] * 2, ["ok"] * 2)
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (300, 300))
    files, processes = doctor._limits()
    assert (files.kind, files.advice[-14:]) == ("note", "ulimit -n 1024")
    assert (processes.kind, processes.text) == ("ok", "at most 300")
    monkeypatch.setattr(doctor, "AUTOGROUP", tmp_path / "autogroup")
    assert next(doctor._autogroup()).text == "this kernel has none"
    (tmp_path / "autogroup").write_text("1\n")
    assert next(doctor._autogroup()).kind == "note"
