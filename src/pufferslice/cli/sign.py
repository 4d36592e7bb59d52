# SPDX-License-Identifier: Apache-2.0
"""`pufferslice sign` and `pufferslice keygen`: Ed25519 signatures of certificates."""

from pathlib import Path
from typing import Annotated

import typer

from pufferslice.cli.output import print_json, say


def sign(
    certificate: Annotated[Path, typer.Argument(help="The certificate to sign, in place.")],
    key: Annotated[Path, typer.Option(help="Your private key (PEM).")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Sign the whole statement of a certificate with Ed25519."""
    from pufferslice._core.files import read_bytes
    from pufferslice.certificate import Certificate
    from pufferslice.certificate import sign as signed_by

    signed = signed_by(Certificate.load(certificate), read_bytes(key, "key"))
    signed.save_statement(certificate)
    if json:
        print_json({"certificate": signed.digest, "signature": dict(signed.signature or {})})
        return
    say(f"Signed {certificate}. Check it with: pufferslice verify {certificate} --key PUBLIC")


def keygen(
    folder: Annotated[Path, typer.Argument(help="Where private.pem and public.pem are written.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Create a key pair for signing; keep private.pem secret."""
    from pufferslice._core.files import CONFIDENTIAL, check_new, make_folder, write_new
    from pufferslice.certificate import new_key_pair

    private, public = new_key_pair()
    make_folder(folder)
    for name in ("private.pem", "public.pem"):
        check_new(folder / name)
    write_new(folder / "private.pem", private, CONFIDENTIAL)
    write_new(folder / "public.pem", public)
    if json:
        print_json({"private": str(folder / "private.pem"), "public": str(folder / "public.pem")})
        return
    say(f"Written: {folder / 'private.pem'} (keep it secret) and {folder / 'public.pem'}")
