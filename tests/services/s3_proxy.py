"""S3Proxy: an S3 API of another maker, which checks the signature of each request."""

from __future__ import annotations

from pathlib import Path

from tests.lake_sandbox import EBBTIDE_HOME
from tests.ports import LOOPBACK, free_port
from tests.services.process import Server
from tests.services.s3_api import BUCKET, KEY, SECRET, s3_settings

JARS = EBBTIDE_HOME / "s3proxy-jars"
# It says each byte that it reads, unless told not to.
LOG = """
<configuration>
  <appender name="output" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%level %logger %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="output"/></root>
</configuration>
"""


class S3Proxy(Server):
    """A server with one empty bucket, and one login."""

    def __init__(self, directory: Path) -> None:
        port = free_port()
        buckets = directory / "s3proxy-buckets"
        (buckets / BUCKET).mkdir(parents=True)
        settings = {
            "s3proxy.endpoint": f"http://{LOOPBACK}:{port}",
            "s3proxy.authorization": "aws-v4",
            "s3proxy.identity": KEY,
            "s3proxy.credential": SECRET,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(buckets),
        }
        properties, log = directory / "s3proxy.properties", directory / "s3proxy-log.xml"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        log.write_text(LOG)
        command = ["java", "-Xmx512m", f"-Dlogback.configurationFile={log}", "-cp", f"{JARS}/*"]
        command += ["org.gaul.s3proxy.Main", "--properties", str(properties)]
        super().__init__("S3Proxy", command, port, directory / "s3proxy.log")

    def settings(self) -> dict[str, str]:
        """What a catalog says of it."""
        return s3_settings(f"http://{self.host}:{self.port}")
