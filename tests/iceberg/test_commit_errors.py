"""What a commit that fails is reported as, by the class of Iceberg's exception."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.commits import Step, commit

ICEBERG = "org.apache.iceberg.exceptions."


def thrown(name: str, message: str) -> Py4JJavaError:
    error = Py4JJavaError.__new__(Py4JJavaError)
    error.java_exception = SimpleNamespace(
        getClass=lambda: SimpleNamespace(getName=lambda: name),
        getMessage=lambda: message,
        getCause=lambda: None,
    )
    return error


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("CommitFailedException", r"another writer committed first: m\. Run the job again$"),
        ("ValidationException", r"another writer committed first: m\. Run the job again$"),
        (
            "CommitStateUnknownException",
            r"an answer of the catalog to commit probe, found: m\. The catalog may",
        ),
    ],
)
def test_only_a_lost_race_is_another_writer(name: str, said: str) -> None:
    def fail() -> Any:
        raise thrown(ICEBERG + name, "m")

    with pytest.raises(CommitConflictError, match=said):
        commit(Step.PROBE, fail)
