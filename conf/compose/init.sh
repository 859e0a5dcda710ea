#!/usr/bin/env bash
# What must be there before any other service starts: configuration, login, Airflow's tables,
# and the pool of Spark slots.
set -euo pipefail

cd conf/compose
python ../render.py spark-defaults.conf "catalog-$EBBTIDE_CATALOG.conf" "files-$EBBTIDE_FILES.conf" "$SPARK_CONF_DIR"
cd ../..
cp conf/log4j2.properties conf/spark-env.sh "$SPARK_CONF_DIR/"
python - <<'PYTHON'
import json, os, pathlib

logins = pathlib.Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
logins.write_text(json.dumps({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}))
logins.chmod(0o600)
PYTHON
airflow db migrate
exec python -m ebbtide.orchestration.pool
