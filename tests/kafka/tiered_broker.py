"""A real broker with a remote tier, which is a directory of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.kafka.broker import KafkaBroker, java_tool

TIER = Path(__file__).parent / "tier" / "DirectoryTier.java"
# A segment a record whose timestamps lie apart; the tier gets each one but the last.
TIERED = {
    "remote.storage.enable": "true",
    "segment.ms": "1000",
    "retention.ms": "-1",
    "local.retention.ms": "3600000",
    "message.timestamp.after.max.ms": str(2**63 - 1),
}


def tiered_broker(jars_dir: Path, work_dir: Path) -> KafkaBroker:
    """A broker that moves closed segments to its tier at once, and then deletes their files."""
    classes, tier = work_dir / "classes", work_dir / "tier"
    command = [java_tool("javac"), "-d", str(classes), "-cp", f"{jars_dir}/*", str(TIER)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": TIER.stem,
        "remote.log.storage.manager.class.path": f"{classes}/",
        "rsm.config.directory": str(tier),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "remote.log.manager.task.interval.ms": "200",
        "log.retention.check.interval.ms": "200",
        "log.initial.task.delay.ms": "0",
        "log.cleaner.enable": "false",
    }
    return KafkaBroker(jars_dir, work_dir, **settings)
