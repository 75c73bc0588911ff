"""A Docker engine of the tests' own, that leaves nothing behind: no bridge, no rule, no data."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

PACKAGES = ("docker.io", "docker-compose", "iptables", "debootstrap")
DOCKER = "/usr/bin/docker"  # Debian's: another one on PATH may refuse to build.
LIBRARIES = (
    "ca-certificates,libssl3,libffi8,libbz2-1.0,libreadline8,libsqlite3-0,liblzma5,zlib1g,"
    "libncursesw6,libuuid1,libnsl2,libexpat1,netbase,tzdata"
)
"""What a Python that was built on Debian is linked against."""
PRIVATE = ("/var/lib/docker", "/run/docker", "/run/containerd", "/etc/docker")
"""Where an engine writes whatever it is told: each sees folders of its own there."""
INSIDE = f'for at in {" ".join(PRIVATE)}; do mount --bind "$0$at" "$at"; done; exec "$@"'


def install() -> None:
    """Debian's packages, where they are missing."""
    needed = (DOCKER, "/usr/bin/docker-compose", "/usr/sbin/iptables", "/usr/sbin/debootstrap")
    if all(pathlib.Path(path).exists() for path in needed):
        return
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-qq", "--no-install-recommends", *PACKAGES]):
        subprocess.run(["apt-get", "-y", *words], check=True, env=environ)


class Engine:
    """dockerd in a folder, in a network namespace or, to build only, in none of its own.

    Its mounts and processes are in namespaces of their own, and end with it.
    """

    def __init__(self, directory: pathlib.Path, namespace: str | None = None):
        self._directory = directory
        self._namespace = namespace
        self.host = f"unix://{directory}/sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._cgroup = f"eve{os.getpid()}-{directory.name}"
        self._made: list[pathlib.Path] = []

    def start(self) -> "Engine":
        for at in PRIVATE:
            (self._directory / "own" / at[1:]).mkdir(parents=True, exist_ok=True)
            if not pathlib.Path(at).exists():  # What is mounted needs a place.
                pathlib.Path(at).mkdir()
                self._made.append(pathlib.Path(at))
        (self._directory / "pid").unlink(missing_ok=True)
        with open(self._directory / "dockerd.log", "ab") as log:
            self._process = subprocess.Popen(
                self._words(), stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 60
        while self.docker("info", check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = (self._directory / "dockerd.log").read_text()[-2000:]
                self.stop()
                raise RuntimeError(f"dockerd does not start: {text}")
            time.sleep(0.2)
        return self

    def _words(self) -> list[str]:
        folder = str(self._directory)
        words = ["unshare", "--mount", "--propagation", "slave", "--pid", "--fork", "--mount-proc"]
        words += ["--kill-child", "sh", "-ec", INSIDE, f"{folder}/own"]
        words += ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
        words += ["--pidfile", f"{folder}/pid", "-H", self.host, "--cgroup-parent", self._cgroup]
        words += ["--exec-opt", "native.cgroupdriver=cgroupfs"]
        if self._namespace is not None:
            return ["nsenter", f"--net=/run/netns/{self._namespace}", *words]
        # The rules and bridges would be the machine's; and so would those of a swarm that an
        # interrupted test did not leave.
        shutil.rmtree(self._directory / "data" / "swarm", ignore_errors=True)
        words += ["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none"]
        return words

    def stop(self) -> None:
        """Ends dockerd with its containers."""
        if self._process is not None and self._process.poll() is None:
            pid = self._process.pid
            for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.kill(int(child), signal.SIGTERM)
            try:
                self._process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                self._process.kill()  # All that dockerd has started dies with it.
                self._process.wait()
        for top in pathlib.Path("/sys/fs/cgroup").glob(f"**/{self._cgroup}"):
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):  # Its last process is still going.
                    os.rmdir(folder)
        while self._made:
            with contextlib.suppress(OSError):  # Somebody else has use for it by now.
                self._made.pop().rmdir()

    def lose(self) -> None:
        """Its host loses power: all processes die at once, and what is not on disk is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._directory / "exec", ignore_errors=True)

    def docker(
        self, *words: str, check: bool = True, timeout: float = 900, **kwargs: object
    ) -> "subprocess.CompletedProcess[str]":
        """A docker command; its output is text."""
        return self._run([DOCKER, *words], check, timeout, **kwargs)

    def compose(
        self, *words: str, check: bool = True, timeout: float = 600, **kwargs: object
    ) -> "subprocess.CompletedProcess[str]":
        """A docker-compose command."""
        return self._run(["docker-compose", "--no-ansi", *words], check, timeout, **kwargs)

    def volume(self, name: str) -> pathlib.Path:
        """Where a volume's files are."""
        return self._directory / "data" / "volumes" / name / "_data"

    def environ(self) -> dict[str, str]:
        return {**os.environ, "DOCKER_HOST": self.host, "DOCKER_BUILDKIT": "0"}

    def _run(
        self, words: list[str], check: bool, timeout: float, **kwargs: object
    ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=timeout, env=self.environ(), **kwargs
        )  # type: ignore[call-overload]
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done


def remove(folder: pathlib.Path) -> None:
    """A folder of an engine: a hundred thousand files, for which Python takes minutes."""
    subprocess.run(["rm", "-rf", folder], check=True)


def make_base(engine: Engine, work: pathlib.Path) -> None:
    """A stand-in for python:3.10-slim where none can be pulled: Debian and this Python."""
    with contextlib.suppress(subprocess.TimeoutExpired):  # A registry that is out of reach.
        if engine.docker("pull", "python:3.10-slim", check=False, timeout=60).returncode == 0:
            return
    root = work / "rootfs"
    mirror = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Codename: bookworm"],
        check=True, capture_output=True, text=True,
    ).stdout.split()[0]  # fmt: skip
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={LIBRARIES}", "bookworm", root, mirror],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    for path in (root / "var/cache/apt/archives").glob("*.deb"):
        path.unlink()
    prefix = pathlib.Path(sys.base_prefix)
    for name in ("bin", "lib", "include"):
        subprocess.run(["cp", "-a", prefix / name, root / "usr/local/"], check=True)
    shutil.rmtree(root / "usr/local/lib/python3.10/test", ignore_errors=True)
    for name in ("python", "python3"):
        link = root / "usr/local/bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to("python3.10")
    subprocess.run(["chroot", root, "ldconfig"], check=True)
    # Whom this machine trusts: its way to the package index may have a certificate of its own.
    certificates = "etc/ssl/certs/ca-certificates.crt"
    shutil.copy(pathlib.Path("/") / certificates, root / certificates)
    (root / "etc/pip.conf").write_text(f"[global]\ncert = /{certificates}\n")
    subprocess.run(
        f"tar -C {root} -c . | {DOCKER} import -c 'CMD [\"python3\"]' - python:3.10-slim",
        shell=True, check=True, env=engine.environ(), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    shutil.rmtree(root)


def build(engine: Engine, root: pathlib.Path) -> None:
    """The real Dockerfile, of a checkout."""
    engine.docker("build", "--network", "host", "-q", "-f", str(root / "docker/Dockerfile"),
                  "-t", "eve-acme", str(root))  # fmt: skip
