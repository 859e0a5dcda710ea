"""Jobs that ingest, copy, replicate and export records, or adopt tables of other tools."""

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

RECEIVED = now("The time at which the records count as received")
PARTS = ("partition", "offset", "timestamp", "key", "value")
PROFILE = TEXT("profile", "", "name of the layout [recognised]")
SETTING = like(r"^(kafka|ebbtide)\.[^=\s]+=.*$", "NAME=VALUE, of kafka.* and ebbtide.*")


def _cluster(variable: str) -> JobParam:
    return TEXT(
        "cluster",
        "Cluster",
        "Namespace of the topics' tables, without a dot.",
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
        "Starting Spark takes over ten seconds, so topics share an application.",
        default=250,
        schema={"minimum": 1, "maximum": 1000},
        option="",
    )


INGEST_SEGMENTS = JobSpec(
    name="ingest_segments",
    summary="appends a broker's log directory, or a copy of one, to the tables",
    title="Ingest a log directory",
    intro="Appends new records from the segment files of a broker's log directory, or of a copy "
    "of one. Without new records, nothing is changed.",
    purpose=Purpose.INGEST,
    frame=Frame.DIRECT,
    sections=(
        section(
            "From where",
            URI(
                "source",
                "Source",
                "A broker's log directory or a copy of one, as a path or URI that Spark reads.",
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
                "If the source lacks offsets and compaction cannot explain it, record the gap and "
                "go on."
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
    summary="appends new records of live topics to the tables",
    title="Ingest live topics",
    intro="Appends the records that the brokers have and the lake lacks, exactly once. The first "
    "run creates the topic's tables.",
    purpose=Purpose.INGEST,
    frame=Frame.DIRECT,
    sections=(
        section(
            "From where",
            TEXT(
                "connection",
                "Connection",
                "Airflow connection of type kafka. Its extra has the settings of librdkafka.",
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
                "Regular expression that matches whole topic names on the brokers.",
                default_from="EBBTIDE_INGEST_TOPIC_PATTERN",
                option="--topics-pattern",
                schema={"minLength": 1},
            ),
            help="Name topics or give a pattern.",
        ),
        section(
            "How",
            CHOICE(
                "isolation",
                "Isolation",
                "read_committed: skips records of aborted transactions and stops at open ones.",
                choices=Isolation,
            ),
            _accept_gap(
                "Continue without offsets that the brokers removed before they were ingested."
            ),
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
    summary="copies new rows of another tool's tables to ebbtide's topics",
    title="Copy a table you may only read",
    intro="Copies the rows that the table has and the topic lacks, exactly once. For tables that "
    "only their owner may write, such as Tableflow's. The first run creates the topic.",
    purpose=Purpose.INGEST,
    frame=Frame.DIRECT,
    sections=(
        section(
            "From where",
            TEXT(
                "source",
                "Table",
                "[<catalog>:]<namespace>.<table>, for one topic. Empty: the table of the last run.",
                parse=TopicName.parse,
                suggests=Suggestions.TABLES,
                schema=like(r"^[^.]+\..+$", "<namespace>.<table>, such as raw.orders"),
            ),
            TEXT(
                "source_topic",
                "Topic in the table",
                "The topic to copy, if the table has several.",
            ),
        ),
        section(
            "To which topics",
            topics(SEVERAL_AND_NEW, "all topics that are copied from a table", "--topic"),
        ),
        section(
            "Columns",
            *columns(*PARTS, "headers"),
            is_open=False,
            help="The columns of known writers are recognised. Name the columns that are not.",
        ),
        section(
            "How",
            plan_only(
                "Show the recognised layout and the number of new rows, and end.",
                option="--plan-only",
            ),
            RECEIVED,
            is_open=False,
        ),
    ),
    options=(PROFILE, TEXT("topic_column", "", "Name of the column. Not given: it is recognised.")),
    buttons=(
        plan_button("shows the recognised layout and how many rows would be copied."),
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
    intro="Copies missing records, batches, settings and log start offsets from a topic to its "
    "replicas. The setting ebbtide.replicas lists them.",
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
    why="a replica needs batches, which the table lacks",
    duties={**FREE_OF_ALL, Work.REPLICATION: Duty.RESUME},
    result=(results.ReplicatedPartition, results.ReplicatedTopic),
)

EXPORT_SEGMENTS = JobSpec(
    name="export_segments",
    summary="writes a topic's tables as segment files of a broker's log directory",
    title="Export to segment files",
    intro="Writes the topic's tables as segment files of a broker's log directory, from which a "
    "broker can be recovered. Nothing changes in the lake.",
    purpose=Purpose.RECOVER,
    frame=Frame.DIRECT,
    needs_topic=True,
    sections=(
        section(
            "Topic and target",
            topic(),
            PARTITIONS(
                "partitions",
                "Partitions",
                "A list such as [0, 2]. Empty: all.",
                option="--partition",
                suggests=Suggestions.PARTITIONS,
                schema={"minItems": 1},
            ),
            URI(
                "target",
                "Target",
                "A new directory, as a path or URI that every Spark worker can write.",
                is_required=True,
                parse=check_uri,
            ),
        ),
    ),
    buttons=(Button(name="start", label="Export", help="writes the files immediately."),),
    is_planned=False,
    on_adopted=OnAdopted.REFUSES,
    why="the table has no batches, and its columns may differ from what the broker wrote",
    duties=FREE_OF_ALL,
    result=(results.ExportedPartition, results.ExportedTopic),
)

ADOPT_TABLE = JobSpec(
    name="adopt_table",
    summary="recognises another tool's table and makes it a topic",
    title="Adopt a table you do not own",
    intro="Makes the table a topic, so that nightly runs apply retention to it while its writer "
    "continues. Plan it first: the plan shows the column of each part of a record, and "
    "which of Kafka's rules hold.",
    purpose=Purpose.SETTINGS,
    frame=Frame.DIRECT,
    sections=(
        section(
            "Table",
            topic(
                "<namespace>.<table>. Suggests tables that are no topics yet, and tables with "
                "several topics.",
                label="Table",
                suggests=Suggestions.TABLES,
            ),
        ),
        section(
            "Columns",
            *columns(*PARTS, "topic"),
            is_open=False,
            help="Columns are recognised in tables of Spark's Kafka source, Redpanda, AutoMQ and "
            "Iceberg's sink for Kafka Connect. Name the columns that are not.",
        ),
        section(
            "Settings",
            LINES(
                "set",
                "Set",
                "One NAME=VALUE per line. A rule that is not set removes nothing.",
                default=["kafka.cleanup.policy=compact"],
                items=SETTING,
            ),
            plan_only(
                "Show the recognised layout, and end.",
                default=True,
                option="--plan-only",
            ),
        ),
    ),
    options=(PROFILE,),
    buttons=(
        plan_button("shows the recognised layout."),
        ask_button("makes the table a topic immediately.", "Adopt"),
    ),
    is_planned=False,
    needs_state=False,
    on_adopted=OnAdopted.WORKS,
    why="run it again to change the layout or settings",
    duties=None,
    result=(results.AdoptedPartition, results.AdoptTableTopic),
)

ABANDON_TABLE = JobSpec(
    name="abandon_table",
    summary="stops managing an adopted table; its rows are not changed",
    title="Abandon an adopted table",
    intro="Stops managing an adopted table: removes ebbtide's properties and drops its state. The "
    "rows are not changed.",
    purpose=Purpose.SETTINGS,
    frame=Frame.DIRECT,
    sections=(
        section(
            "Table",
            topic("An adopted table, as <namespace>.<table>."),
            plan_only(
                "Show which properties and tables would be removed, and end.",
                default=True,
                option="--plan-only",
            ),
        ),
    ),
    buttons=(
        plan_button("shows which properties and tables would be removed; nothing is changed."),
        ask_button("removes the properties and the state immediately.", "Abandon"),
    ),
    is_planned=False,
    needs_state=False,
    on_adopted=OnAdopted.WORKS,
    why="refused while a hold covers the table",
    duties=None,
    result=(results.OfPartition, results.AbandonedTopic),
)
