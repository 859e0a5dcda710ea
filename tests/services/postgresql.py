"""PostgreSQL from Debian's packages, in a directory of its own, with a password for everybody."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.ports import free_port
from tests.services.process import Server

BINARIES = Path("/usr/lib/postgresql")
USER, PASSWORD = "ebbtide", "p@ss:w/or d%"
# PostgreSQL refuses to run as root; Debian's package makes this user.
OWNER = "postgres"


class PostgreSql(Server):
    """A server with the databases it is asked for."""

    def __init__(self, directory: Path) -> None:
        port = free_port()
        self.home = Path(tempfile.mkdtemp(prefix="ebbtide-postgresql-"))  # where its user may go
        self.directory = self.home / "data"
        self.binaries = max(BINARIES.glob("*/bin"), key=lambda path: int(path.parent.name))
        where = ("-D", str(self.directory), "-p", str(port), "-k", str(self.directory))
        command = [str(self.binaries / "postgres"), *where, "-c", "listen_addresses=127.0.0.1"]
        command += ["-c", "fsync=off"]  # what it holds is thrown away
        super().__init__(
            "PostgreSQL", _as_owner(command), port, directory / "postgresql.log", {"LC_ALL": "C"}
        )

    def start(self) -> None:
        """Start it; its first start makes its directory."""
        if not self.directory.exists():
            self._initialize()
        super().start()

    def _initialize(self) -> None:
        password = self.home / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:
            for path in (self.home, password):
                shutil.chown(path, OWNER)
        subprocess.run(
            _as_owner(
                [
                    *(str(self.binaries / "initdb"), "-D", str(self.directory), "-U", USER),
                    *("--auth=scram-sha-256", f"--pwfile={password}", "--no-sync"),
                ]
            ),
            check=True,
            capture_output=True,
        )

    def remove(self) -> None:
        """Remove what it holds."""
        shutil.rmtree(self.home)

    def create(self, database: str) -> None:
        """A new database."""
        command = [str(self.binaries / "psql"), "-h", "127.0.0.1", "-p", str(self.port), "-U", USER]
        subprocess.run(
            [*command, "-d", "postgres", "-c", f"CREATE DATABASE {database}"],
            env={**os.environ, "PGPASSWORD": PASSWORD},
            check=True,
            capture_output=True,
        )

    def settings(self, database: str) -> dict[str, str]:
        """What Spark's catalog says of one of its databases."""
        return {
            "type": "jdbc",
            "uri": f"jdbc:postgresql://127.0.0.1:{self.port}/{database}?ApplicationName=ebbtide",
            "jdbc.user": USER,
            "jdbc.password": PASSWORD,
        }


def _as_owner(command: list[str]) -> list[str]:
    return ["runuser", "-u", OWNER, "--", *command] if os.geteuid() == 0 else command
