#!/bin/bash
# As the real one: a new data directory is filled by a first server that has no TCP port.
set -euo pipefail
data=/var/lib/postgresql/data
if [ ! -s "$data/PG_VERSION" ]; then
    initdb -D "$data" -U "$POSTGRES_USER" --auth-host=scram-sha-256 --auth-local=trust \
        --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD")
    echo "host all all all scram-sha-256" >>"$data/pg_hba.conf"
    pg_ctl -D "$data" -w start -o "-c listen_addresses=''"
    createdb -U "$POSTGRES_USER" "$POSTGRES_USER"
    for script in /docker-entrypoint-initdb.d/*.sql; do
        psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -f "$script"
    done
    sleep 3 # long enough for a health check that would take it for the real one
    pg_ctl -D "$data" -m fast -w stop
fi
exec postgres -D "$data" -c "listen_addresses=*"
