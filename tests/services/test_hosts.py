"""Executors on hosts of their own, with nothing of the driver's but what Spark sends them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.lake_sandbox import EBBTIDE_HOME, ROOT
from tests.services.cells import SAMPLE, CellSandbox, contents, run_nights
from tests.services.s3_api import BUCKET, S3Api
from tests.services.spark_cluster import SparkCluster
from tests.services.spark_hosts import DRIVER, two_hosts

ENVIRONMENT = EBBTIDE_HOME / "environment.tar.gz"
WORKER_PYTHON = "/usr/bin/python3.11"

pytestmark = pytest.mark.services


def test_two_nights_on_hosts_that_share_no_file_with_the_driver(
    tmp_path: Path, embedded: dict[str, Any]
) -> None:
    ENVIRONMENT.unlink(missing_ok=True)
    packed = ["make", "-C", str(ROOT), "environment.tar.gz", f"WORKER_PYTHON={WORKER_PYTHON}"]
    subprocess.run(packed, check=True)
    with two_hosts() as hosts, S3Api(tmp_path, DRIVER) as s3:
        with SparkCluster(tmp_path, hosts) as cluster:
            spark = {
                **cluster.settings(),
                "spark.driver.host": DRIVER,
                "spark.driver.bindAddress": DRIVER,
                "spark.archives": f"{ENVIRONMENT}#environment",
                "spark.pyspark.python": "./environment/bin/python",
                "spark.pyspark.driver.python": str(ROOT / "conf" / "python"),
            }
            catalog = {"warehouse": f"s3://{BUCKET}/hosts", **s3.settings()}
            lake = CellSandbox(tmp_path / "home", catalog, spark)
            run_nights(lake, s3.upload(SAMPLE, "logs/hosts"))
            assert contents(lake) == embedded
        assert all(list(host.directory.glob("worker-*/app-*")) for host in hosts if host.directory)
