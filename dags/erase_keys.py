"""Erase keys of a compacted topic: each gets a tombstone, which supersedes all records before it.

`plan` counts the records of the keys, and `approve` asks before a tombstone is written. Where
somebody writes the topic (`ebbtide.source`), tombstones are produced to it and arrive by the next
ingest, for which the run waits: trigger `ingest_topic` unless it is scheduled. Only a topic without
a writer gets them appended to its tables. A cleaner round follows if Kafka's would begin. What
became of each key, and from when it is out of the table and off the disk, is in
`lake.ebbtide.erasures`. See docs/erase_keys.md.

[Its form](plugin/ebbtide/ebbtide/forms/erase_keys) suggests topics and connections.
"""

from airflow.sdk import Param, dag

from ebbtide.log.requests.erase_request import KEYS, Encoding
from ebbtide.log.requests.words import VARIABLES
from ebbtide.orchestration.approval.chains import plan_and_approve
from ebbtide.orchestration.house import LINE, Purpose, asking, optional, plan_only, required, topic

WHICH = "Keys: typed in, or a file of them"
HOW = "How the tombstones get there"
OPTIONS = "keys_file encoding connection append timeout_ms".split()


@dag(
    schedule=None,
    **asking(__doc__, Purpose.REMOVE),
    params={
        "topic": topic(),
        "requested_by": required("Requested by", "Who asked for it; each tombstone says so."),
        "reason": required(
            "Reason", "Why, such as the number of a request; each tombstone says so."
        ),
        "keys": optional(
            "array",
            "Keys",
            "One key per line. Airflow stores them in clear with the run, for everybody who may "
            "see it. To keep them out of Airflow, use a file.",
            items={"type": "string", **LINE},
            section=WHICH,
        ),
        "keys_file": optional(
            "string",
            "File of keys",
            "A path or URI that Spark reads: text, one key a line, up to a million.",
            minLength=1,
            section=WHICH,
        ),
        "encoding": Param(
            "utf-8",
            type="string",
            enum=[str(encoding) for encoding in Encoding],
            title="Encoding",
            description="How the bytes of a key are written.",
            section=WHICH,
        ),
        "connection": optional(
            "string",
            "Connection",
            "An Airflow connection of type kafka that may write the topic; empty means its own.",
            section=HOW,
        ),
        "append": Param(
            False,
            type="boolean",
            title="Append to the tables",
            description="Only for a topic that nobody writes any more.",
            section=HOW,
        ),
        "timeout_ms": Param(
            600_000,
            type="integer",
            minimum=1,
            maximum=86_400_000,
            title="Timeout (ms)",
            description="How long the tombstones may take to arrive in the tables.",
            section=HOW,
        ),
        "plan_only": plan_only("which shows how many records there are of the keys"),
    },
)
def erase_keys() -> None:
    keys = {"hidden": {"keys": KEYS}, "is_live": True}
    words = {name: VARIABLES[name] for name in ("requested_by", "reason")}
    options = {name: "--" + name.replace("_", "-") for name in OPTIONS}
    plan_and_approve(
        "erase_keys",
        asked={
            "topics": ["{{ params.topic }}"],
            "options": options,
            **keys,
            "hidden": {"keys": KEYS, **words},
        },
        again={
            "options": {"keys_file": "--keys-file"},
            "pool": "default_pool",  # it waits for an ingest, which may need the only Spark slot
            **keys,
        },
    )


erase_keys()
