# shellcheck shell=bash
# Spark's own scripts read this before they start a JVM; `make setup` copies it to where SPARK_CONF_DIR
# points. It has the JVM map the classes that a training run archived (conf/class_archive.py) instead of
# loading them from jars, half of what a job's start costs. Without an archive all works, later.
#
# A JVM refuses an archive whose class path holds a directory with files. Spark puts SPARK_CONF_DIR there,
# so it names none from here on, and what was found in it is passed on by name.

if [ "${1:-}" = org.apache.spark.deploy.SparkSubmit ] && [ -f "$SPARK_CONF_DIR/spark-defaults.conf" ]; then
    ebbtide_conf=$(cd "$SPARK_CONF_DIR" && pwd)
    ebbtide_archive=${ebbtide_conf%/*}/classes.jsa
    case " $* " in
    *" --properties-file "*) ;;
    *) set -- "$1" --properties-file "$ebbtide_conf/spark-defaults.conf" "${@:2}" ;;
    esac
    # Its warnings belong to stderr: a job's plan goes to stdout.
    ebbtide_options="-Xlog:disable -Xlog:all=warning:stderr"
    ebbtide_options+=" -Dlog4j2.configurationFile=file://$ebbtide_conf/log4j2.properties"
    if [ -n "${EBBTIDE_ARCHIVE_CLASSES_TO:-}" ]; then
        ebbtide_options+=" -XX:ArchiveClassesAtExit=$EBBTIDE_ARCHIVE_CLASSES_TO"
    # A JVM dies of an archive cut short, so its length must be the one that was written.
    elif { read -r ebbtide_bytes _ <"$ebbtide_archive.stamp" &&
        [ "$(wc -c <"$ebbtide_archive")" = "$ebbtide_bytes" ]; } 2>/dev/null; then
        # Where it was written for, so that JVMs share its pages instead of moving 200 MB each.
        ebbtide_options+=" -XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
        ebbtide_options+=" -XX:SharedArchiveFile=$ebbtide_archive"
    else
        echo "ebbtide: Spark starts without the archive of its classes, which is slower: none fit to use in" \
            "$ebbtide_archive; \`make setup\` or conf/class_archive.py makes it" >&2
    fi
    # The JVM that puts the driver's command together lives for a moment.
    SPARK_LAUNCHER_OPTS=${SPARK_LAUNCHER_OPTS:--XX:TieredStopAtLevel=1 -XX:+UseSerialGC}
    SPARK_SUBMIT_OPTS="$ebbtide_options ${SPARK_SUBMIT_OPTS:-}"
    SPARK_CONF_DIR=${ebbtide_conf%/*}/no-conf
fi
