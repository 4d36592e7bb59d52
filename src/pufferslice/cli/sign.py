# SPDX-License-Identifier: Apache-2.0
"""`pufferslice sign` and `pufferslice keygen`: Ed25519 signatures of certificates."""

from pathlib import Path
from typing import Annotated

import typer

from pufferslice.cli.output import Json, answer


def sign(
    certificate: Annotated[Path, typer.Argument(help="The certificate to sign, in place.")],
    key: Annotated[Path, typer.Option(help="Your private key (PEM).")],
    json: Json = False,
) -> None:
    """Sign the whole statement of a certificate with Ed25519."""
    from pufferslice._core.files import read_bytes
    from pufferslice.certificate import Certificate
    from pufferslice.certificate import sign as signed_by

    signed = signed_by(Certificate.load(certificate), read_bytes(key, "key"))
    signed.save_statement(certificate)
    answer(
        {"certificate": signed.digest, "signature": dict(signed.signature or {})},
        f"Signed {certificate}. Check it with: pufferslice verify {certificate} --key PUBLIC",
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
