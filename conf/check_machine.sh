#!/usr/bin/env bash
# What must be there before anything is set up: Python 3.11 and Java 17. One line if it is not.
set -euo pipefail

python=$1
fail() {
    echo "setup: $*" >&2
    exit 1
}

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
    fail "Python 3.11 is needed and '$python' does not run; install it, or say make PYTHON=/path/to/python3.11"
[ "$version" = 3.11 ] ||
    fail "Python 3.11 is needed and '$python' is $version; say make PYTHON=/path/to/python3.11"

java=java
[ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java
found=$("$java" -version 2>&1) ||
    fail "Java 17 is needed and '$java' does not run; install a JDK or JRE 17, or point JAVA_HOME to one"
major=$(sed -nE 's/^[^"]*version "([0-9]+)[."].*/\1/p' <<<"$found")
[ "$major" = 17 ] ||
    fail "Java 17 is needed and '$java' is version ${major:-unknown}; point JAVA_HOME to a Java 17"
