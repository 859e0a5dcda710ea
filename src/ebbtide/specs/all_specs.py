"""All jobs, and all DAGs that people start by a form."""

from __future__ import annotations

from ebbtide.specs import by_hand, retention, sources
from ebbtide.specs.job_spec import FormSpec, Frame, JobSpec

SPECS: dict[str, JobSpec] = {
    spec.name: spec
    for spec in (
        sources.INGEST_SEGMENTS,
        sources.INGEST_TOPIC,
        sources.INGEST_TABLE,
        retention.MARK_TOMBSTONES,
        retention.CLEAN_LOG,
        retention.EXPIRE_SEGMENTS,
        by_hand.DELETE_RECORDS,
        sources.REPLICATE_LOG,
        retention.EXPIRE_SNAPSHOTS,
        by_hand.ERASE_KEYS,
        by_hand.CERTIFY_ERASURE,
        sources.EXPORT_SEGMENTS,
        by_hand.CONFIGURE_TOPIC,
        by_hand.HOLD_RECORDS,
        by_hand.REPAIR_STATE,
        by_hand.UNDO_RUN,
        sources.ADOPT_TABLE,
        sources.ABANDON_TABLE,
    )
}
FORMS: dict[str, FormSpec] = {
    **{name: spec for name, spec in SPECS.items() if spec.frame is not Frame.STAGE},
    **{
        form.name: form
        for form in (retention.APPLY_RETENTION, retention.NIGHTLY_RETENTION, retention.APPROVE_PLAN)
    },
}
