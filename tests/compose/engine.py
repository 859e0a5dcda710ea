"""Docker: the machine's own daemon where one runs, else one that is started for the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.lake_sandbox import EBBTIDE_HOME
from tests.waiting import PATIENCE_S

STAND_INS = Path(__file__).parent / "stand_ins"
START_SECONDS = PATIENCE_S
# The classic builder is in the daemon; the newer one is a program that may be missing.
BUILDER = {"DOCKER_BUILDKIT": "0"}
HEALTHY, ENDS_BY_ITSELF = "running healthy", "init"
CERTIFICATES = Path("/usr/local/share/ca-certificates")


class EngineError(Exception):
    """What an engine's command said before it failed."""


class Engine:
    """Docker while its block runs; its data stay, so that the next run builds less."""

    def __init__(self, directory: Path = EBBTIDE_HOME / "docker") -> None:
        self.directory = directory
        self._daemon: subprocess.Popen[bytes] | None = None
        self.environment = {**os.environ, **BUILDER}

    def __enter__(self) -> Self:
        if not self.answers():
            self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait(START_SECONDS)

    def answers(self) -> bool:
        """Whether a daemon is there for `docker`."""
        if shutil.which("docker") is None or shutil.which("docker-compose") is None:
            raise EngineError(
                "expected docker and docker-compose on PATH, found neither or one: "
                "apt-get install docker.io docker-compose debootstrap"
            )
        command = ["docker", "info"]
        return subprocess.run(command, env=self.environment, capture_output=True).returncode == 0

    def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        socket = f"unix://{self.directory}/docker.sock"
        self.environment["DOCKER_HOST"] = socket
        places = (
            *("--data-root", f"{self.directory}/data", "--exec-root", f"{self.directory}/exec"),
            *("-H", socket, "--pidfile", f"{self.directory}/docker.pid"),
        )
        with (self.directory / "dockerd.log").open("ab") as output:
            self._daemon = subprocess.Popen(["dockerd", *places], stdout=output, stderr=output)
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                log = (self.directory / "dockerd.log").read_text(errors="replace")
                raise EngineError(f"Docker's daemon did not start:\n{log[-2000:]}")
            time.sleep(0.5)

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """A command's output; EngineError with the end of all that it said where it fails."""
        done = subprocess.run(
            arguments,
            env={**self.environment, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise EngineError(f"{' '.join(arguments)}: {done.returncode}\n{done.stdout[-3000:]}")
        return done.stdout

    def docker(self, *arguments: str) -> str:
        """One command of `docker`."""
        return self.run("docker", *arguments)

    def has(self, image: str) -> bool:
        """Whether the image is here."""
        return bool(self.docker("images", "-q", image).strip())

    def provide(self, image: str, stand_in: str, jars: Sequence[Path] = ()) -> None:
        """Pull an image, or make its stand-in, with `jars` beside it, where no registry has it."""
        if self.has(image):
            return
        try:
            self.docker("pull", "--quiet", image)
        except EngineError:
            if not self.has("debian:bookworm"):
                self._make_debian()
            folder = self.directory / stand_in
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(STAND_INS / stand_in, folder)
            (folder / "jars").mkdir()
            for jar in jars:
                shutil.copy(jar, folder / "jars")
            self.docker("build", "--network", "host", "--tag", image, str(folder))

    def _make_debian(self) -> None:
        """A bare Debian that trusts what this machine trusts."""
        root = self.directory / "bookworm"
        shutil.rmtree(root, ignore_errors=True)
        what = ("--variant=minbase", "--include=ca-certificates", "bookworm", str(root))
        self.run("debootstrap", *what)
        certificates = sorted(CERTIFICATES.glob("*.crt"))
        for certificate in certificates:
            shutil.copy(certificate, root / CERTIFICATES.relative_to("/"))
        self.run("chroot", str(root), "update-ca-certificates")
        bundle = "/etc/ssl/certs/ca-certificates.crt"
        self._import(root, {"SSL_CERT_FILE": bundle, "PIP_CERT": bundle} if certificates else {})
        shutil.rmtree(root)

    def _import(self, root: Path, variables: Mapping[str, str]) -> None:
        archive = root.with_suffix(".tar")
        self.run("tar", "-C", str(root), "-cf", str(archive), ".")
        changes = [word for pair in variables.items() for word in ("-c", "ENV {}={}".format(*pair))]
        self.docker("import", *changes, str(archive), "debian:bookworm")
        archive.unlink()


class Compose:
    """The services of docker-compose.yaml under a project name of their own."""

    def __init__(
        self, engine: Engine, root: Path, project: str, settings: Mapping[str, str]
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.command: Sequence[str] = (
            *("docker-compose", "--project-directory", str(root), "--project-name", project),
            *("--file", str(root / "docker-compose.yaml")),
        )

    def __call__(self, *arguments: str) -> str:
        """One command; its output."""
        return self.engine.run(*self.command, *arguments, environment=self.settings)

    def container(self, service: str) -> str:
        """The id of a service's container."""
        return self("ps", "-q", service).strip()

    def wait_until_healthy(self, seconds: float) -> None:
        """Until every service that stays is healthy; EngineError names those that are too late."""
        deadline = time.monotonic() + seconds
        while unwell := [state for state in self._states() if not state.endswith(HEALTHY)]:
            if time.monotonic() > deadline:
                raise EngineError(f"not healthy after {seconds:.0f} s: {', '.join(unwell)}")
            time.sleep(1)

    def _states(self) -> list[str]:
        """Name, state and health of each container, the one that ends by itself aside."""
        service = '{{index .Config.Labels "com.docker.compose.service"}}'
        form = service + " {{.State.Status}} {{with .State.Health}}{{.Status}}{{end}}"
        states = self.engine.docker("inspect", "-f", form, *self("ps", "-q").split()).splitlines()
        return [state for state in states if not state.startswith(f"{ENDS_BY_ITSELF} ")]

    def kill(self, service: str) -> None:
        """Kill a service's first process from outside, as a crash would end it."""
        pid = self.engine.docker("inspect", "-f", "{{.State.Pid}}", self.container(service))
        os.kill(int(pid), 9)
