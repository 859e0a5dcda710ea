"""Noncurrent versions of a table's objects: on a versioned bucket, deleted objects still exist.

Iceberg's own client lists them, because pyarrow has no call for it. API: S3, ListObjectVersions.
"""

from __future__ import annotations

from typing import NamedTuple

from ebbtide.iceberg.catalog import Table
from ebbtide.spark.jvm import JavaMethod, java_class
from ebbtide.stores import s3
from ebbtide.stores.store import after_authority, authority_of, scheme_of

_MODEL = "software.amazon.awssdk.services.s3.model."
_WITHOUT_VERSIONS = ("", "file", "hdfs")


class NoncurrentVersions(NamedTuple):
    """The number of noncurrent versions below a table's locations."""

    number: int = 0
    unknown: str = ""  # why the store did not list them


def noncurrent_versions(table: Table) -> NoncurrentVersions:
    """Count them in the store's list. If the store refuses, return the reason, not an error."""
    locations = {location: scheme_of(location) for location in table.locations}
    versioned = [each for each, scheme in locations.items() if scheme not in _WITHOUT_VERSIONS]
    for scheme in (locations[location] for location in versioned):
        if scheme not in s3.SCHEMES:
            unknown = f"ebbtide cannot list versions of {scheme}:// objects"
            return NoncurrentVersions(unknown=unknown)
    try:
        return NoncurrentVersions(sum(_count(table, location) for location in versioned))
    except Exception as error:  # each store and each FileIO raises another class
        return NoncurrentVersions(unknown=str(error).partition("\n")[0])


def _count(table: Table, location: str) -> int:
    spark, client = table.spark, table.java.io().client(location)
    is_latest = JavaMethod.of(spark, _MODEL + "ObjectVersion", "isLatest")
    is_latest_version = is_latest.as_a("java.util.function.Predicate")
    folder = after_authority(location).strip("/") + "/"
    asked = java_class(spark, _MODEL + "ListObjectVersionsRequest").builder()
    asked = asked.bucket(authority_of(location)).prefix(folder)
    count = 0
    while True:
        page = client.listObjectVersions(asked.build())
        versions = page.versions()
        count += int(versions.size()) - int(versions.stream().filter(is_latest_version).count())
        if not page.isTruncated():
            return count
        asked = asked.keyMarker(page.nextKeyMarker())
        asked = asked.versionIdMarker(page.nextVersionIdMarker())
