"""certify_erasure: search every byte of a topic's tables for keys, and sign the result.

The job searches the tables of the topic, of its replicas and of ebbtide: the objects that
snapshots, branches and tags need, and all other files below a table's location. The certificate is
an in-toto Statement in a DSSE envelope, chained by hash in `lake.ebbtide.certificates`. It lists
the searched objects, the hits, and the places that the job cannot search. Nothing of the topic
changes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from securesystemslib.dsse import Envelope

from ebbtide.errors import CommitConflictError, RequestError, UnavailableError
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import find_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.erasures import erasures_on, secret_for
from ebbtide.iceberg.own_tables import append_own, create_own, read_own
from ebbtide.iceberg.topics import Topic, load, replica_names
from ebbtide.jobs.certify_erasure.search import (
    Inventory,
    OutOfReach,
    Searched,
    find_objects,
    search_objects,
)
from ebbtide.jobs.erase_keys.plan import keys_of_file, typed_keys
from ebbtide.ledger.certificates import CERTIFICATES, FOUND, INCOMPLETE, NOT_FOUND, CertificateRow
from ebbtide.ledger.erasure_secrets import KeyNames
from ebbtide.ledger.holds import Hold
from ebbtide.ledger.own_tables import ERASURES
from ebbtide.ledger.plans import PLAN_EVENTS, PLANS, PlanStep
from ebbtide.moments import machine_clock
from ebbtide.runner.holds import standing_holds
from ebbtide.runner.job import Job, PlanRequest, asked_of_each
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.runner.signing import SIGNING_KEY, CertificateSigner, certificate_signer, timestamp
from ebbtide.settings.names import TopicName
from ebbtide.specs.certify_request import (
    RANGE,
    AskedOffsets,
    check_is_one,
    check_of_erasure,
    parse_range,
)
from ebbtide.specs.erase_request import Encoding
from ebbtide.text import number, size
from ebbtide_verify.certificate import FIRST, PAYLOAD_TYPE, PREDICATE, STATEMENT
from ebbtide_verify.scan import LEAST_BYTES, Rows

ATTEMPTS = 5  # to append to the chain, if other runs append too


# The plan: keys and offsets to search for, and objects to search.


@dataclass(frozen=True, slots=True)
class CertifyPlan:
    """The keys to search for, and the objects to search."""

    topic: Topic
    run_id: str
    erasure: str | None
    keys: tuple[bytes, ...]
    names: tuple[str, ...]  # the keys' HMACs
    secret: str  # fingerprint of the secret of the HMACs
    rows: Rows | None
    numbers: tuple[str, ...]  # columns with the keys as whole numbers
    signer: CertificateSigner = field(repr=False)
    inventory: Inventory = field(repr=False)
    holds: Sequence[Hold]

    def outcome(self) -> JobOutcome:
        """Return the number of objects and of their bytes."""
        topic, objects = self.topic, self.inventory.objects
        outcome = JobOutcome({p: topic.offsets_of(p) for p in topic.partitions})
        outcome.topic = {
            "keys": len(self.keys),
            "objects": len(objects),
            "bytes": sum(stored.size_bytes for stored in objects),
        }
        return outcome


def plan_certificate(
    topic: Topic,
    keys: Sequence[bytes],
    rows: Rows | None = None,
    *,
    run_id: str,
    erasure: str | None,
) -> CertifyPlan:
    """Find all objects to search.

    Raise ConfigurationError if the signing key or the topic's secret cannot be read.
    """
    signer, secret = certificate_signer(), secret_for(topic)
    inventory = find_objects(topic.spark, [topic.name, *replica_names(topic)])
    inventory.out_of_reach.extend(_out_of_reach(topic))
    return CertifyPlan(
        topic,
        run_id,
        erasure,
        tuple(keys),
        tuple(map(secret.name, keys)),
        secret.fingerprint,
        rows,
        _number_columns(topic),
        signer,
        inventory,
        standing_holds(topic.spark, topic.name, machine_clock()),
    )


def check_can_sign(topic: Topic) -> None:
    """Raise ConfigurationError if the signing key or the topic's secret cannot be read."""
    certificate_signer()
    secret_for(topic)


def _number_columns(topic: Topic) -> tuple[str, ...]:
    """Return an adopted topic's key column, if its keys are whole numbers."""
    key = AdoptedRows.of(topic).layout.key if topic.is_adopted else None
    return (key.name,) if key is not None and key.type in ("int", "long") else ()


def _out_of_reach(topic: Topic) -> Iterator[OutOfReach]:
    """Yield the places that the job cannot search."""
    source = topic.config.upstream or "of the records, if there was one"
    yield {"what": f"the source {source}", "why": "only its owner can search it"}
    yield {"what": "logs that export_segments wrote", "why": "they are outside the tables"}
    if topic.is_adopted:
        why = "a bound of a manifest may have the first 16 characters of a key"
        yield {"what": "beginnings of keys", "why": why}
    yield {"what": "Airflow's database", "why": "it has keys that were typed into a form"}
    yield {"what": "logs of Airflow and Spark", "why": "they are outside the lake"}
    yield {"what": "backups and copies made by other tools", "why": "ebbtide does not know them"}
    for connection in topic.config.live_replicas:
        yield {"what": f"live topic of connection {connection}", "why": "its log is on brokers"}


# The certificate.


def execute_certificate(plan: CertifyPlan) -> JobOutcome:
    """Search, sign the certificate and append it to the chain."""
    searched = search_objects(plan.topic.spark, plan.inventory, plan.keys, plan.rows, plan.numbers)
    statement = _statement(plan, searched, machine_clock())
    row = append_signed(plan, statement)
    outcome = plan.outcome()
    outcome.topic |= {
        "certificate": row.certificate,
        "result": row.result,
        "found_in": Counter(hit["kind"] for hit in statement["predicate"]["found"]),
        "note": _in_words(row, statement["predicate"]),
    }
    return outcome


def _statement(plan: CertifyPlan, searched: Sequence[Searched], ended: datetime) -> dict[str, Any]:
    """Return the in-toto Statement, without its place in the chain."""
    kinds = {stored.uri: stored for stored in plan.inventory.objects}
    unread = [{"object": one.uri, "why": one.error} for one in searched if one.error]
    unread += plan.inventory.unread
    found = [
        {
            "object": one.uri,
            "kind": kinds[one.uri].kind,
            "place": place,
            "sought": (*plan.names, "rows")[number],
        }
        for one in searched
        for number, place in one.hits
    ]
    subjects = [
        {"name": one.uri, "digest": {"sha256": one.sha256}} for one in searched if one.sha256
    ]
    predicate = {
        "certificate": f"certify_erasure-{ended:%Y%m%d}-{uuid.uuid4().hex[:8]}",
        "topic": str(plan.topic.name),
        "asked": _asked(plan),
        "sought": {
            "keys": list(plan.names),
            "secret": plan.secret,
            "rows": plan.rows and plan.rows._asdict(),
            "numbers": plan.numbers,
        },
        "scan": {
            "began": plan.inventory.began.isoformat(timespec="seconds"),
            "ended": ended.isoformat(timespec="seconds"),
            "objects": len(subjects),
            "bytes": sum(one.size_bytes for one in searched),
            "tables": sorted({stored.table for stored in plan.inventory.objects}),
            "whole_cells_only": sum(len(key) < LEAST_BYTES for key in plan.keys),
            "method": "each object's stored bytes, and what its format decompresses to",
        },
        "found": found,
        "unread": unread,
        "out_of_reach": list(plan.inventory.out_of_reach),
        "replicas": [str(name) for name in replica_names(plan.topic)],
        "holds": list(map(str, plan.holds)),
        "proves": "Each subject was searched. What was sought was found only where `found` says; "
        "objects in `unread` may have it too. It does not prove that no copy exists elsewhere.",
    }
    return {
        "_type": STATEMENT,
        "subject": subjects,
        "predicateType": PREDICATE,
        "predicate": predicate,
    }


def _asked(plan: CertifyPlan) -> dict[str, Any]:
    """Return who asked for the erasure and who approved it, from the rows of its run."""
    spark, erasure = plan.topic.spark, plan.erasure
    asked: dict[str, Any] = {"run_id": erasure, "by": None, "reason": None, "at": None}
    asked |= {"plan": None, "approved_by": None, "approved_at": None}
    if erasure is None:
        return asked
    if find_table(spark, ERASURES.in_catalog()) is not None:
        rows = (
            spark.table(ERASURES.in_catalog())
            .where((F.col("run_id") == erasure) & (F.col("topic") == plan.topic.erased_under))
            .limit(1)
            .collect()
        )
        for row in rows:
            at = row["requested_at"].isoformat()
            asked |= {"by": row["requested_by"], "reason": row["reason"], "at": at}
    if find_table(spark, PLAN_EVENTS.in_catalog()) is not None:
        events = read_own(spark, PLAN_EVENTS, "run_id", [erasure])
        of_erasure = _plans_of_erasures(plan.topic, {event.plan_id for event in events})
        for event in sorted(events, key=lambda event: event.at):
            if event.event is PlanStep.APPROVED and event.plan_id in of_erasure:
                at = event.at.isoformat()
                asked |= {"plan": event.plan_id, "approved_by": event.by, "approved_at": at}
    return asked


def _plans_of_erasures(topic: Topic, plan_ids: Set[str]) -> set[str]:
    """Return the plans that erase keys of the topic. Other jobs may have the same run id."""
    plans = topic.spark.table(PLANS.in_catalog()).where(F.col("plan_id").isin(*plan_ids))
    mine = plans.where((F.col("job") == "erase_keys") & (F.col("topic") == topic.erased_under))
    return {row["plan_id"] for row in mine.select("plan_id").collect()}


def append_signed(plan: CertifyPlan, statement: Mapping[str, Any]) -> CertificateRow:
    """Sign the statement with its place in the chain, and append it to the table.

    Raise CommitConflictError if another run appends first in each attempt.
    """
    spark = plan.topic.spark
    for _ in range(ATTEMPTS):
        last = _last(spark)
        number, previous = (last.number + 1, last.digest) if last else (1, FIRST)
        chain = {"number": number, "previous": previous}
        predicate = {**statement["predicate"], "chain": chain}
        row = _signed(plan, {**statement, "predicate": predicate})

        def check(seen: CertificateRow | None = last) -> None:
            if _last(spark) != seen:
                raise CommitConflictError("another run appended a certificate first")

        try:
            append_own(
                spark, CERTIFICATES, [row], Step.CERTIFICATE, not_before_last=True, check=check
            )
        except CommitConflictError:
            continue
        return row
    raise CommitConflictError(
        f"expected to append a certificate within {ATTEMPTS} attempts, found that another run "
        "appended one first each time. Nothing was certified. Run the job again"
    )


def _last(spark: SparkSession) -> CertificateRow | None:
    """Return the newest certificate of the chain."""
    create_own(spark, CERTIFICATES)
    rows = spark.table(CERTIFICATES.in_catalog()).orderBy(F.col("number").desc()).limit(1)
    return next((CERTIFICATES.to_row(cells) for cells in rows.toArrow().to_pylist()), None)


def _signed(plan: CertifyPlan, statement: Mapping[str, Any]) -> CertificateRow:
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    try:
        envelope.sign(plan.signer.signer)
    except Exception as error:  # each key management raises another class
        raise UnavailableError(
            f"expected a signature by the key of {SIGNING_KEY}, found {type(error).__name__}: "
            f"{error}. Nothing was certified. Run the job again once the key can sign"
        ) from error
    says, stored = statement["predicate"], envelope.to_dict()
    (signature,) = envelope.signatures.values()
    if answer := timestamp(bytes.fromhex(signature.signature)):
        stored["timestamp"] = base64.b64encode(answer).decode()
    return CertificateRow(
        certificate=says["certificate"],
        number=says["chain"]["number"],
        previous=says["chain"]["previous"],
        digest=hashlib.sha256(payload).hexdigest(),
        topic=says["topic"],
        run_id=plan.run_id,
        erasure=plan.erasure,
        at=machine_clock(),
        result=INCOMPLETE if says["unread"] else FOUND if says["found"] else NOT_FOUND,
        keys=len(plan.keys),
        objects=says["scan"]["objects"],
        bytes=says["scan"]["bytes"],
        envelope=json.dumps(stored),
        public_key=plan.signer.public_pem,
    )


def _in_words(row: CertificateRow, says: Mapping[str, Any]) -> str:
    """Return the result of the certificate in a sentence."""
    kinds = Counter(hit["kind"] for hit in says["found"])
    places = ", ".join(f"{kind}: {number(count)}" for kind, count in kinds.items())
    result = f"found in {number(kinds.total())} places ({places})" if places else "not found"
    if says["unread"]:
        unread = number(len(says["unread"]))
        result = f"incomplete: {unread} objects or tables could not be read; in the rest {result}"
    sought = f"{number(row.keys)} keys"
    if rows := says["sought"]["rows"]:
        sought += " and offsets {first} to {end} (exclusive) of partition {partition}".format(
            **rows
        )
    return (
        f"certificate {row.certificate}: {number(row.objects)} objects of {size(row.bytes)} were "
        f"searched for {sought}: {result}. Not searched, since out of reach: "
        f"{', '.join(item['what'] for item in says['out_of_reach'])}"
    )


def _plan(spark: SparkSession, name: TopicName, request: PlanRequest) -> CertifyPlan:
    asked, file = request.parameters, request.given.keys_file
    encoding, offsets = Encoding(asked["encoding"]), parse_range(asked)
    keys = typed_keys(encoding)
    check_is_one(keys=bool(keys), file=bool(file), offsets=offsets is not None)
    topic = load(spark, name)
    rows = offsets and _rows(topic, offsets)
    if file:
        keys = keys_of_file(spark, file, encoding)
    if asked["erasure"]:
        names = KeyNames(secret_for(topic)).names
        erased = _keys_of_erasure(topic, asked["erasure"])
        check_of_erasure(str(name), asked["erasure"], erased, list(map(names, keys)))
    run_id = request.given.run_id
    return plan_certificate(topic, keys, rows, run_id=run_id, erasure=asked["erasure"])


def _rows(topic: Topic, offsets: AskedOffsets) -> Rows:
    """Return the rows to search for, with an adopted topic's partition and offset columns."""
    rows = Rows(*offsets)
    if not topic.is_adopted:
        return rows
    adopted = AdoptedRows.of(topic)
    partition, offset = adopted.layout.partition, adopted.layout.offset
    if adopted.in_table is not None:
        raise RequestError(
            f"expected a table with one topic for a search for offsets, found {topic.name} in a "
            "table of several: its files do not show whose offset a row has. Search for keys"
        )
    if len(partition.path) > 1 or len(offset.path) > 1:
        raise RequestError(
            f"expected columns of {topic.name} that are not nested for a search for offsets, found "
            f"{partition.name} and {offset.name}. Search for keys"
        )
    return rows._replace(columns=((partition.name, offset.name), *rows.columns))


def _keys_of_erasure(topic: Topic, run_id: str) -> set[str]:
    rows = erasures_on(topic)
    if rows is None:
        return set()
    return set(rows.where(F.col("run_id") == run_id).select("name").toArrow()["name"].to_pylist())


CERTIFY_ERASURE = Job(
    "certify_erasure",
    _plan,
    execute_certificate,
    asked=asked_of_each("encoding", "erasure", *RANGE),
)
