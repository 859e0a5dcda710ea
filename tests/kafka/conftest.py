"""Fixtures shared by what needs Kafka's jars."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka.oracle import JARS, PROJECT


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """Kafka's jars, fetched at first use."""
    script = PROJECT / "conf" / "ivy" / "resolve_jars.py"
    subprocess.run([sys.executable, str(script), "kafka", str(JARS)], check=True)
    return JARS


@pytest.fixture(scope="session")
def sample_log() -> Path:
    return PROJECT / "sample" / "log"
