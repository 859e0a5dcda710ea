"""Hold records of a topic for a case: what a rule removes is copied first, until the hold ends.

The log goes on as Kafka's. Held records that leave it are kept in `lake.<cluster>_held.<topic>`.
Making a hold and widening it act at once; `approve` asks before one is ended or narrowed. See
docs/holds.md.

[Its form](plugin/ebbtide/ebbtide/forms/hold_records) suggests topics, partitions and holds.
"""

from airflow.sdk import Param, dag

from ebbtide.log.requests.erase_request import Encoding
from ebbtide.log.requests.hold_request import CONDITIONS, KEYS, Action
from ebbtide.log.requests.words import VARIABLES
from ebbtide.orchestration.approval.chains import plan_and_approve
from ebbtide.orchestration.house import LINE, Purpose, asking, optional, plan_only, topic

WHAT = "What is held; all that is filled in applies together"
WHY = "What for"
HIDDEN = {"keys": KEYS} | {name: VARIABLES[name] for name in ("case_id", "reason", "owner")}
OPTIONS = ("action", "hold", *CONDITIONS, "review_date", "keys_file", "encoding")


@dag(
    schedule=None,
    **asking(__doc__, Purpose.RECOVER),
    params={
        "action": Param(
            "make",
            type="string",
            enum=[str(action) for action in Action],
            title="Action",
            description="Make a hold, change one, or end one.",
        ),
        "topic": topic(),
        "hold": optional("string", "Hold", "The id of the hold to change or to end."),
        "partition": optional(
            "integer", "Partition", "Empty means every partition.", minimum=0, section=WHAT
        ),
        "first_offset": optional("integer", "First offset", "Included.", minimum=0, section=WHAT),
        "end_offset": optional("integer", "End offset", "Not included.", minimum=1, section=WHAT),
        "event_time_from": optional(
            "string", "Event time from", "Included.", format="date-time", section=WHAT
        ),
        "event_time_until": optional(
            "string", "Event time until", "Not included.", format="date-time", section=WHAT
        ),
        "keys": optional(
            "array",
            "Keys",
            "One key per line. Airflow stores them in clear with the run, for everybody who may "
            "see it; the hold stores their hashes. To keep them out of Airflow, use a file.",
            items={"type": "string", **LINE},
            section=WHAT,
        ),
        "keys_file": optional(
            "string",
            "File of keys",
            "A path or URI that Spark reads: text, one key a line, up to 10,000.",
            minLength=1,
            section=WHAT,
        ),
        "encoding": Param(
            "utf-8",
            type="string",
            enum=[str(encoding) for encoding in Encoding],
            title="Encoding",
            description="How the bytes of a key are written.",
            section=WHAT,
        ),
        "case_id": optional("string", "Case", "Such as its file number.", section=WHY),
        "reason": optional("string", "Reason", "Why the records are needed.", section=WHY),
        "owner": optional("string", "Owner", "Whom to ask about the hold.", section=WHY),
        "review_date": optional(
            "string",
            "Review date",
            "From the day after, reports and pages warn until somebody has looked.",
            format="date",
            section=WHY,
        ),
        "plan_only": plan_only(),
    },
)
def hold_records() -> None:
    options = {name: "--" + name.replace("_", "-") for name in OPTIONS}
    asked = {"topics": ["{{ params.topic }}"], "options": options, "hidden": HIDDEN}
    plan_and_approve("hold_records", asked=asked, is_hold=True)


hold_records()
