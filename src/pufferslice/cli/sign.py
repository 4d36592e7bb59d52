# SPDX-License-Identifier: Apache-2.0
"""`pufferslice sign` and `pufferslice keygen`: Ed25519 signatures of certificates and releases."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from pufferslice.cli.output import Json, answer
from pufferslice.errors import ArgumentError


def sign(
    file: Annotated[Path, typer.Argument(help="The certificate or release to sign, in place.")],
    key: Annotated[Path, typer.Option(help="Your private key (PEM), which only you can read.")],
    ledger: Annotated[
        str | None,
        typer.Option(help="Take the serial from this ledger, so that a newer one revokes it."),
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="Of a release: its certificate.")] = None,
    earlier: Annotated[
        list[Path] | None,
        typer.Option(
            help="Of a release of all that is left of a part: one before; repeat for all."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Sign a certificate, or a release, with Ed25519; what does not verify is refused."""
    from functools import partial

    from pufferslice._core.files import parsed_json, pretty_json, read_bytes, write_whole
    from pufferslice.certificate import Certificate
    from pufferslice.certificate import sign as sign_certificate
    from pufferslice.certificate.signing import private_key_of
    from pufferslice.releases import Ledger, Release, sign_release
    from pufferslice.releases.release import FORMAT

    private_key = private_key_of(key)
    is_release = False
    with contextlib.suppress(ValueError, AttributeError):
        is_release = parsed_json(read_bytes(file, "document")).get("format") == FORMAT
    if is_release and certificate is None:
        raise ArgumentError("a release is signed with its certificate: give --certificate")
    held = Certificate.load(file if certificate is None else certificate)
    signed: Callable[..., Certificate | Release]
    if is_release:
        before = [Release.load(path) for path in earlier or ()]
        signed = partial(sign_release, Release.load(file), held, private_key, earlier=before)
    else:
        signed = partial(sign_certificate, held, private_key)
    document = signed()  # so that no serial is taken for what does not verify
    if ledger is not None:
        book = Ledger(ledger)
        book.check_there()
        serial = book.record_signed(held.digest)
        document = signed(serial=serial, ledger=book.lineage)
    write_whole(file, pretty_json(document.to_json()))
    check = f"{certificate} --release {file}" if is_release else str(file)
    answer(
        {"certificate": held.digest, "signature": dict(document.signature or {})},
        f"Signed {file}. Check it with: pufferslice verify {check} --key PUBLIC",
        json=json,
    )


def keygen(
    folder: Annotated[Path, typer.Argument(help="Where private.pem and public.pem are written.")],
    json: Json = False,
) -> None:
    """Create a key pair for signing; keep private.pem secret."""
    from pufferslice._core.files import CONFIDENTIAL, OPEN, make_folder, write_all_new
    from pufferslice.certificate import new_key_pair

    private_key, public_key = new_key_pair()
    make_folder(folder)
    private, public = folder / "private.pem", folder / "public.pem"
    write_all_new([(private, private_key, CONFIDENTIAL), (public, public_key, OPEN)])
    answer(
        {"private": str(private), "public": str(public)},
        f"Written: {private} (keep it secret) and {public}",
        json=json,
    )
