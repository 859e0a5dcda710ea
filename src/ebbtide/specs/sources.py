"""The jobs that bring records in and copy them out, and those of other tools' tables."""

from __future__ import annotations

from ebbtide.kafka.live_offsets import Isolation
from ebbtide.ledger import results
from ebbtide.settings.names import TopicName
from ebbtide.settings.upstream import check_uri
from ebbtide.specs.job_spec import (
    FREE_OF_ALL,
    START,
    Button,
    Duty,
    Frame,
    JobSpec,
    OnAdopted,
    Purpose,
    Work,
    ask_button,
    only_work,
    plan_button,
    section,
)
from ebbtide.specs.params import (
    CHOICE,
    FLAG,
    LINES,
    NUMBER,
    PARTITIONS,
    SEVERAL,
    SEVERAL_AND_NEW,
    TEXT,
    URI,
    JobParam,
    Suggestions,
    columns,
    like,
    now,
    plan_only,
    topic,
    topics,
)
from ebbtide.specs.settings_changes import parse_setting

RECEIVED = now("When the records count as received")
PARTS = ("partition", "offset", "timestamp", "key", "value")
PROFILE = TEXT("profile", "", "the layout's name; else it is recognised")
SETTING = like(r"^(kafka|ebbtide)\.[^=\s]+=.*$", "NAME=VALUE, of kafka.* and ebbtide.*")


def _cluster(variable: str) -> JobParam:
    return TEXT(
        "cluster",
        "Cluster",
        "Namespace of the topics' tables; without a dot.",
        default="log",
        default_from=variable,
        is_required=True,
        suggests=Suggestions.CLUSTERS,
        schema=like(r"^[A-Za-z0-9_-]+$", "letters, digits, _ and - without a dot, such as log"),
    )


def _accept_gap(help: str) -> JobParam:
    return FLAG("accept_gap", "Accept gaps", help)


def topics_per_application() -> JobParam:
    """Return the size of a group that one Spark application serves."""
    return NUMBER(
        "topics_per_application",
        "Topics per Spark application",
        "Starting Spark costs over ten seconds, so topics share an application.",
        default=250,
        schema={"minimum": 1, "maximum": 1000},
        option="",
    )


INGEST_SEGMENTS = JobSpec(
    name="ingest_segments",
    summary="appends a broker's log directory, or a copy of one, to the tables",
    title="Ingest a log directory",
    intro="Reads what is new in the segment files of a broker's log directory, or of a copy of it. "
    "A run that finds nothing new changes nothing.",
    purpose=Purpose.INGEST,
    frame=Frame.DIRECT,
    sections=(
        section(
            "From where",
            URI(
                "source",
                "Source",
                "A broker's log directory, or a copy of one: a path or a URI Spark reads.",
                default="sample/log",
                default_from="EBBTIDE_INGEST_SOURCE",
                is_required=True,
                parse=check_uri,
            ),
            _cluster("EBBTIDE_INGEST_CLUSTER"),
        ),
        section("Which topics", topics(SEVERAL_AND_NEW, "all in the source", "--topic")),
        section(
            "How",
            _accept_gap(
                "Record missing offsets of a topic that is not compacted, not refuse them."
            ),
            RECEIVED,
            is_open=False,
        ),
    ),
    options=(
        LINES(
            "set",
            "",
            "a setting of the topics that this run creates; repeat for more",
            parse=parse_setting,
        ),
    ),
    buttons=(START,),
    schedule="EBBTIDE_INGEST_SCHEDULE",
    is_planned=False,
    is_ingest=True,
    on_adopted=OnAdopted.REFUSES,
    why="another tool writes the table",
    duties=only_work(Work.INGEST),
    result=(results.IngestedPartition, results.IngestedTopic),
)

INGEST_TOPIC = JobSpec(
    name="ingest_topic",
    summary="appends live topics to the tables, up to what their brokers have now",
    title="Ingest live topics",
    intro="Takes, once and exactly, what the brokers have now and the lake does not. The first run "
    "for a topic makes its tables.",
    purpose=Purpose.INGEST,
    frame=Frame.DIRECT,
    sections=(
        section(
            "From where",
            TEXT(
                "connection",
                "Connection",
                "The Airflow connection of type kafka; its extra is librdkafka's settings.",
                default="kafka_default",
                default_from="EBBTIDE_INGEST_TOPIC_CONNECTION",
                is_required=True,
                suggests=Suggestions.CONNECTIONS,
                schema={"minLength": 1},
            ),
            _cluster("EBBTIDE_INGEST_TOPIC_CLUSTER"),
        ),
        section(
            "Which topics",
            topics(SEVERAL_AND_NEW, "those of the pattern", "--topic"),
            TEXT(
                "pattern",
                "Pattern",
                "A regular expression for whole names of topics at the brokers.",
                default_from="EBBTIDE_INGEST_TOPIC_PATTERN",
                option="--topics-pattern",
                schema={"minLength": 1},
            ),
            help="Name topics, or give a pattern.",
        ),
        section(
            "How",
            CHOICE(
                "isolation",
                "Isolation",
                "Whether records of aborted and open transactions are left out.",
                choices=Isolation,
            ),
            _accept_gap("Go on without offsets that the brokers removed before they were taken."),
            RECEIVED,
            is_open=False,
        ),
    ),
    buttons=(START,),
    schedule="EBBTIDE_INGEST_TOPIC_SCHEDULE",
    is_planned=False,
    is_ingest=True,
    needs_connections=True,
    on_adopted=OnAdopted.REFUSES,
    why="another tool writes the table",
    duties=only_work(Work.SLICE),
    result=(results.IngestedPartition, results.IngestedTopic),
)

INGEST_TABLE = JobSpec(
    name="ingest_table",
    summary="copies the new rows of another tool's tables to topics of ebbtide",
    title="Copy a table that others write",
    intro="Takes, once and exactly, the rows that the table has now and the topic does not. It is "
    "for tables that nobody else may write, such as Tableflow's. The first run makes the topic.",
    purpose=Purpose.INGEST,
    frame=Frame.DIRECT,
    sections=(
        section(
            "From where",
            TEXT(
                "source",
                "Table",
                "[<catalog>:]<namespace>.<table>, for one topic; empty: as before.",
                parse=TopicName.parse,
                suggests=Suggestions.TABLES,
                schema=like(r"^[^.]+\..+$", "<namespace>.<table>, such as raw.orders"),
            ),
            TEXT(
                "source_topic",
                "Topic of the table",
                "Which one to copy, where the table holds several.",
            ),
        ),
        section(
            "To which topics",
            topics(SEVERAL_AND_NEW, "all that have been copied to before", "--topic"),
        ),
        section(
            "Columns",
            *columns(*PARTS, "headers"),
            is_open=False,
            help="Columns are recognised in the tables of known writers. Name those that are not.",
        ),
        section(
            "How",
            plan_only(
                "Show what the table is taken for and what is new; change nothing.",
                option="--plan-only",
            ),
            RECEIVED,
            is_open=False,
        ),
    ),
    options=(PROFILE, TEXT("topic_column", "", "Its name; else it is recognised.")),
    buttons=(
        plan_button("shows what the table is taken for, and how many rows would come."),
        START,
    ),
    schedule="EBBTIDE_INGEST_TABLE_SCHEDULE",
    is_planned=False,
    is_ingest=True,
    on_adopted=OnAdopted.REFUSES,
    why="another tool writes the table; copy it to a topic of its own",
    duties=only_work(Work.COPY),
    result=(results.CopiedPartition, results.CopiedTopic),
)

REPLICATE_LOG = JobSpec(
    name="replicate_log",
    summary="copies missing records and batches to each replica of a topic",
    title="Bring replicas up to date",
    intro="Copies to each replica what it lacks of its primary: records, batches, settings and log "
    "start offsets. ebbtide.replicas of a topic names its replicas.",
    purpose=Purpose.RETENTION,
    frame=Frame.GROUPED,
    sections=(
        section("Topics", topics(SEVERAL, "all that are enabled")),
        section("Size", topics_per_application(), is_open=False),
    ),
    buttons=(START,),
    schedule="EBBTIDE_REPLICATE_SCHEDULE",
    is_planned=False,
    on_adopted=OnAdopted.REFUSES,
    why="a replica has batches, which the table has not",
    duties={**FREE_OF_ALL, Work.REPLICATION: Duty.RESUME},
    result=(results.ReplicatedPartition, results.ReplicatedTopic),
)

EXPORT_SEGMENTS = JobSpec(
    name="export_segments",
    summary="writes a topic's tables as segment files of a broker's log directory",
    title="Export to segment files",
    intro="Writes the topic's tables as the segment files of a broker's log directory, to restore "
    "a broker from. Nothing changes in the lake.",
    purpose=Purpose.RECOVER,
    frame=Frame.DIRECT,
    needs_topic=True,
    sections=(
        section(
            "What and where to",
            topic(),
            PARTITIONS(
                "partitions",
                "Partitions",
                "A list such as [0, 2]; empty means all.",
                option="--partition",
                suggests=Suggestions.PARTITIONS,
                schema={"minItems": 1},
            ),
            URI(
                "target",
                "Target",
                "A directory to be, on a path or URI that every Spark worker writes to.",
                is_required=True,
                parse=check_uri,
            ),
        ),
    ),
    buttons=(Button(name="start", label="Export", help="writes the files at once."),),
    is_planned=False,
    on_adopted=OnAdopted.REFUSES,
    why="the table has no batches, and its columns need not be what the broker wrote",
    duties=FREE_OF_ALL,
    result=(results.ExportedPartition, results.ExportedTopic),
)

ADOPT_TABLE = JobSpec(
    name="adopt_table",
    summary="recognises another tool's table, and makes it a topic",
    title="Adopt a table that others write",
    intro="Keeps the table as a topic, so that nights compact it while its writer goes on. Plan it "
    "first: the plan says which column is what of a record, and which of Kafka's rules hold.",
    purpose=Purpose.SETTINGS,
    frame=Frame.DIRECT,
    sections=(
        section(
            "Table",
            topic(
                "<namespace>.<table>. Suggested are the tables that are no topics yet, or hold "
                "several, of which new ones may have arrived.",
                label="Table",
                suggests=Suggestions.TABLES,
            ),
        ),
        section(
            "Columns",
            *columns(*PARTS, "topic"),
            is_open=False,
            help="Columns are recognised in tables of Spark's Kafka source, of Redpanda, of "
            "AutoMQ, and of Iceberg's sink for Kafka Connect. Name those that are not.",
        ),
        section(
            "Settings",
            LINES(
                "set",
                "Set",
                "One NAME=VALUE a line. A rule that is not set removes nothing.",
                default=["kafka.cleanup.policy=compact"],
                items=SETTING,
            ),
            plan_only(
                "Show what the table is taken for; change nothing.",
                default=True,
                option="--plan-only",
            ),
        ),
    ),
    options=(PROFILE,),
    buttons=(
        plan_button("shows what the table is taken for."),
        ask_button("keeps the table as a topic at once.", "Adopt"),
    ),
    is_planned=False,
    needs_state=False,
    on_adopted=OnAdopted.WORKS,
    why="again, to change the layout or settings",
    duties=None,
    result=(results.AdoptedPartition, results.AdoptTableTopic),
)

ABANDON_TABLE = JobSpec(
    name="abandon_table",
    summary="takes away all that adopt_table has written; the table's rows stay",
    title="Abandon an adopted table",
    intro="Takes back that a table of others is a topic: the properties on it and the state beside "
    "it go, its rows stay as they are.",
    purpose=Purpose.SETTINGS,
    frame=Frame.DIRECT,
    sections=(
        section(
            "Table",
            topic("One that was adopted; all others are refused."),
            plan_only("Show what would go; change nothing.", default=True, option="--plan-only"),
        ),
    ),
    buttons=(
        plan_button("shows what would go; nothing is changed."),
        ask_button("removes the properties and the state at once.", "Abandon"),
    ),
    is_planned=False,
    needs_state=False,
    on_adopted=OnAdopted.WORKS,
    why="unless a hold stands",
    duties=None,
    result=(results.OfPartition, results.AbandonedTopic),
)
