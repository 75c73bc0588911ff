"""`eve data mnist`, with four small files of the tests' own in the place of MNIST's."""

import gzip
import hashlib
import io
import tarfile

import pytest

from eve_acme.cli.main import main
from eve_acme.experiments import mnist

RAW = {name: b"\0" * 8 + bytes([5, 0, 4, 1, 9, i]) for i, name in enumerate(mnist.FILES)}


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    files = {
        name: mnist.File(hashlib.md5(raw).hexdigest(), mnist.FILES[name].labels)
        for name, raw in RAW.items()
    }
    monkeypatch.setattr(mnist, "FILES", files)
    monkeypatch.setattr(mnist, "directory", lambda: tmp_path / "bsuite")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")  # No npm.


def _folder(path, compress):
    path.mkdir()
    for name, raw in RAW.items():
        end, data = (".gz", gzip.compress(raw)) if compress else ("", raw)
        (path / f"{name}{end}").write_bytes(data)
    return path


def _tarball(path):
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in RAW.items():
            info = tarfile.TarInfo(f"package/data/{name}")
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return path


def _installed(tmp_path):
    return {
        name: gzip.decompress((tmp_path / "bsuite" / f"{name}.gz").read_bytes()) for name in RAW
    }


@pytest.mark.parametrize("kind", ["raw", "gz", "tarball"])
def test_files_come_from_a_path(kind, tmp_path):
    source = tmp_path / "source"
    given = _tarball(source) if kind == "tarball" else _folder(source, kind == "gz")
    assert main(["data", "mnist", "--from", str(given)]) == 0
    assert _installed(tmp_path) == RAW


def test_they_come_from_the_cache_when_bsuites_folder_is_gone(tmp_path, capsys):
    source = _folder(tmp_path / "source", compress=False)
    assert main(["data", "mnist", "--from", str(source)]) == 0
    for path in (tmp_path / "bsuite").iterdir():
        path.unlink()
    assert main(["data", "mnist"]) == 0
    assert _installed(tmp_path) == RAW
    assert main(["data", "mnist"]) == 0
    assert "already there" in capsys.readouterr().out


@pytest.mark.parametrize("spoil", ["flip", "remove", "empty"])
def test_what_is_not_mnist_is_refused_in_one_line(spoil, tmp_path, capsys):
    source = _folder(tmp_path / "source", compress=False)
    file = source / "t10k-images-idx3-ubyte"
    if spoil == "remove":
        file.unlink()
    else:
        file.write_bytes(b"" if spoil == "empty" else file.read_bytes()[:-1] + b"x")
    assert main(["data", "mnist", "--from", str(source)]) == 2
    error = capsys.readouterr().err
    assert "t10k-images-idx3-ubyte" in error and error.count("\n") == 1
    assert not (tmp_path / "bsuite").exists()


def test_without_npm_it_says_what_to_give(capsys):
    assert main(["data", "mnist"]) == 2
    assert "--from PATH" in capsys.readouterr().err
