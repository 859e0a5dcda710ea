"""`ebbtide-verify`: check a certificate of erasure, and search its objects again for the keys.

Exit codes: 0, all that was checked holds, whatever the certificate's result is; 1, something
contradicts the certificate; 2, it could not be checked.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyiceberg.io import load_file_io
from securesystemslib.signer import Key

from ebbtide_verify import fingerprint, hmac_of
from ebbtide_verify.certificate import (
    Certificate,
    InvalidError,
    check_chain,
    opened,
    public_key,
    signed_before,
)
from ebbtide_verify.objects import reachable
from ebbtide_verify.scan import LEAST_BYTES, Rows, Sought, search

HOLDS, CONTRADICTED, UNCHECKED = 0, 1, 2


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="ebbtide-verify", description=__doc__)
    parser.add_argument("certificate", type=Path, help="the certificate, a DSSE envelope in JSON")
    parser.add_argument("--public-key", type=Path, required=True, action="append", help="in PEM")
    parser.add_argument("--chain", type=Path, help="folder of all certificates, *.json")
    parser.add_argument(
        "--timestamp-roots", type=Path, help="root certificates of its authority, PEM"
    )
    parser.add_argument("--keys-file", type=Path, help="the erased keys in hex, one per line")
    parser.add_argument("--secret-file", type=Path, help="the topic's secret: are they its keys?")
    parser.add_argument("--metadata", action="append", default=[], help="a newer table's metadata")
    parser.add_argument(
        "--property", action="append", default=[], metavar="NAME=VALUE", help="for Iceberg's FileIO"
    )
    parser.add_argument("--signature-only", action="store_true", help="open no object")
    args = parser.parse_args(argv)
    if args.secret_file and not args.keys_file:
        parser.error("expected the keys for --secret-file, found none: give --keys-file")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Check the certificate, print the result and return the exit code."""
    args = arguments(argv)
    try:
        keys = [public_key(path.read_bytes()) for path in args.public_key]
        certificate = opened(args.certificate.read_bytes(), keys)
        print(f"signature: valid, by key {certificate.key_id}")
        if args.timestamp_roots:
            when = signed_before(certificate, args.timestamp_roots.read_bytes())
            print(f"signed before {when}, says the timestamp authority")
        print(*_claims(certificate), sep="\n")
        if args.chain:
            print(_checked_chain(args.chain, certificate, keys))
        if not args.signature_only:
            _check_objects(args, certificate)
    except InvalidError as error:
        print(f"NOT VALID: {error}")
        return CONTRADICTED
    except Exception as error:  # each store and each codec raises another class
        print(f"NOT CHECKED: {type(error).__name__}: {error}")
        return UNCHECKED
    print("VALID, as far as it was checked")
    return HOLDS


def _claims(certificate: Certificate) -> Iterator[str]:
    """Yield the claims of the certificate, one line each."""
    says = certificate.predicate
    sought, rows = says["sought"], says["sought"]["rows"]
    yield f"certificate {says['certificate']} of {says['topic']}, {says['scan']['ended']}"
    asked = says["asked"]
    yield f"asked for by {asked['by'] or '-'}, approved by {asked['approved_by'] or '-'}"
    offsets = ", offsets {first} to {end} (exclusive) of partition {partition}"
    yield f"sought: {len(sought['keys'])} keys" + (offsets.format(**rows) if rows else "")
    yield f"searched: {len(certificate.digests)} objects, {says['scan']['bytes']:,} bytes"
    result = "found" if says["found"] else "not found"
    unread = f"incomplete: {len(says['unread'])} objects or tables not read; in the rest: "
    yield f"result: {unread if says['unread'] else ''}{result}"
    yield from (f"found: {hit['place']} of {hit['object']}" for hit in says["found"])
    yield from (f"not read: {item['object']}: {item['why']}" for item in says["unread"])
    yield from (f"out of reach: {item['what']}: {item['why']}" for item in says["out_of_reach"])
    yield from (f"hold in force: {hold}" for hold in says["holds"])


def _checked_chain(folder: Path, certificate: Certificate, keys: Sequence[Key]) -> str:
    """Check that the folder's certificates follow each other, and that this is one of them."""
    chain = [opened(path.read_bytes(), keys) for path in sorted(folder.glob("*.json"))]
    chain.sort(key=lambda each: each.predicate["chain"]["number"])
    check_chain(chain)
    if certificate.digest not in {each.digest for each in chain}:
        raise InvalidError(f"expected this certificate in {folder}, found {len(chain)} without it")
    return f"chain: {len(chain)} certificates, none missing or changed"


def _check_objects(args: argparse.Namespace, certificate: Certificate) -> None:
    """Compare each object's digest, and search it and the newer objects of `--metadata`."""
    properties = dict(text.split("=", 1) for text in args.property)
    sought, known = _sought(args, certificate)
    counts = Counter[str]()
    for uri, expected in certificate.digests.items():
        data = _read(uri, properties)
        if data is None:
            counts["deleted since"] += 1
            continue
        if (found := hashlib.sha256(data).hexdigest()) != expected:
            raise InvalidError(f"expected {uri} with SHA-256 {expected}, found {found}")
        counts["as certified"] += 1
        _search(uri, data, sought, known)
    if certificate.digests and "as certified" not in counts:
        raise ValueError(f"found none of the {len(certificate.digests)} objects of the certificate")
    for metadata in args.metadata:
        for uri in reachable(metadata, lambda path: _read(path, properties) or b""):
            if uri not in certificate.digests and (data := _read(uri, properties)) is not None:
                counts["newer"] += 1
                _search(uri, data, sought, known)
    print(f"objects: {', '.join(f'{number} {what}' for what, number in counts.items()) or 'none'}")
    if sought is None:
        print("not searched again: give the keys with --keys-file")
    else:
        named, given = len(set(certificate.predicate["sought"]["keys"])), len(sought.values)
        keys = f"{given} of {named} keys" if args.secret_file else f"{given} given keys"
        what = keys + (", and the rows" if sought.rows else "")
        print(f"searched again for {what}: none in an object that the certificate does not list")


def _sought(args: argparse.Namespace, certificate: Certificate) -> tuple[Sought | None, set[str]]:
    """Return the keys and rows to search for, and the objects not to search again.

    Raise InvalidError if the keys are not those of the certificate.
    """
    claimed = certificate.predicate["sought"]
    rows, names = Rows(**claimed["rows"]) if claimed["rows"] else None, claimed["keys"]
    if not args.keys_file and (names or not rows):
        return None, set()
    text = args.keys_file.read_text() if args.keys_file else ""
    keys = list(dict.fromkeys(bytes.fromhex(line) for line in text.split()))
    if args.secret_file:
        secret = args.secret_file.read_bytes()
        if fingerprint(secret) != claimed["secret"]:
            raise InvalidError(f"expected the certificate's secret, found {args.secret_file}")
        unknown = [n for n, key in enumerate(keys, 1) if hmac_of(secret, key) not in names]
        if unknown:
            raise InvalidError(f"expected keys of the certificate, found unknown keys: {unknown}")
    if short := sum(len(key) < LEAST_BYTES for key in keys):
        print(f"{short} keys are shorter than {LEAST_BYTES} bytes: compared with whole cells only")
    says = certificate.predicate
    sought = Sought(keys, rows, claimed.get("numbers", ()))
    return sought, {item["object"] for item in (*says["found"], *says["unread"])}


def _search(uri: str, data: bytes, sought: Sought | None, known: set[str]) -> None:
    if sought is None or uri in known:
        return
    for hit in search(data, sought):
        name = f"key {hit.sought + 1}" if hit.sought < len(sought.values) else "rows"
        raise InvalidError(f"expected no sought key or row in {uri}, found {name}: {hit.place}")


def _read(uri: str, properties: dict[str, str]) -> bytes | None:
    """Return an object's bytes, or None if it was deleted."""
    if ":" in uri and {"#", "?"} & set(uri):  # PyIceberg would open another object
        raise ValueError(f"expected a URI without # and ?, found {uri}")
    file = load_file_io(properties, uri).new_input(uri)
    try:
        with file.open() as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
