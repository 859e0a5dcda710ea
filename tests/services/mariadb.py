"""MariaDB from Debian's package `mariadb-server-core`: a database that ebbtide refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.ports import LOOPBACK, free_port
from tests.services.process import Server

PROGRAM = Path("/usr/sbin/mariadbd")
# What a server needs to know of itself.
SYSTEM = [
    Path("/usr/share/mysql", f"{name}.sql")
    for name in ("mysql_system_tables", "mysql_performance_tables", "mysql_system_tables_data")
]
DATABASE, USER, PASSWORD = "catalog", "ebbtide", "tests-password"


class MariaDb(Server):
    """A server with one empty database and its user."""

    def __init__(self, directory: Path) -> None:
        port = free_port()
        self.home = Path(tempfile.mkdtemp(prefix="ebbtide-mariadb-"))  # a socket's path is short
        self.directory = self.home / "data"
        self.at_start = self.home / "at_start.sql"
        # It runs as root only if it is told to.
        as_root = ["--user=root"] if os.geteuid() == 0 else []
        self.program = [str(PROGRAM), "--no-defaults", f"--datadir={self.directory}", *as_root]
        command = [
            *(*self.program, f"--bind-address={LOOPBACK}", f"--port={port}"),
            *(f"--socket={self.home}/socket", f"--pid-file={self.home}/pid"),
            f"--init-file={self.at_start}",
        ]
        super().__init__("MariaDB", command, port, directory / "mariadb.log")

    def start(self) -> None:
        """Start it; its first start makes its directory."""
        if not self.directory.exists():
            self.directory.mkdir()
            script = "".join(["CREATE DATABASE mysql;\nUSE mysql;\n", *map(Path.read_text, SYSTEM)])
            subprocess.run(
                [*self.program, "--bootstrap"],
                input=script.encode(),
                check=True,
                capture_output=True,
            )
            self.at_start.write_text(
                f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n"
                f"CREATE USER IF NOT EXISTS {USER}@{LOOPBACK} IDENTIFIED BY '{PASSWORD}';\n"
                f"GRANT ALL ON {DATABASE}.* TO {USER}@{LOOPBACK};\n"
            )
        super().start()

    def remove(self) -> None:
        """Remove what it holds."""
        shutil.rmtree(self.home)

    def tables(self) -> list[str]:
        """The names of the database's tables, by the file that each has."""
        return sorted(file.stem for file in (self.directory / DATABASE).glob("*.frm"))

    def settings(self) -> dict[str, str]:
        """What Spark's catalog says of its database."""
        return {
            "type": "jdbc",
            "uri": f"jdbc:mariadb://{LOOPBACK}:{self.port}/{DATABASE}",
            "jdbc.user": USER,
            "jdbc.password": PASSWORD,
        }
