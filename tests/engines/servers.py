# SPDX-License-Identifier: Apache-2.0
"""Servers of this machine that hold files: one behind https://, and one that speaks S3."""

import contextlib
import datetime as dt
import http.server
import ipaddress
import ssl
import threading
from email.utils import formatdate
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Files(http.server.BaseHTTPRequestHandler):
    """Answers for a dictionary of files, by path; parts of a file on request."""

    def log_message(self, *_):
        """Say nothing."""

    def do_HEAD(self):
        self.answer(with_content=False)

    def do_GET(self):
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if "list-type" in query:
            self.list_of(unquote(url.path).strip("/"), query.get("prefix", [""])[0])
        elif url.path.startswith("/away/"):
            self.send_response(302)
            self.send_header("Location", unquote(url.path[len("/away/") :]))
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self.answer()

    def answer(self, *, with_content=True):
        name = unquote(urlsplit(self.path).path).lstrip("/")
        content = self.files.get(name)
        self.asked.append((name, self.headers.get("Range")))
        if content is None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        part, total = self.headers.get("Range"), len(content)
        if part and self.gives_parts:
            first, _, last = part.removeprefix("bytes=").partition("-")
            end = min(total - 1, int(last or total - 1))
            content = content[int(first) : end + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{end}/{total}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Last-Modified", formatdate(usegmt=True))
        self.send_header("ETag", '"e"')
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def list_of(self, bucket, prefix):
        found = [
            f"<Contents><Key>{escape(name.removeprefix(bucket + '/'))}</Key><Size>{len(content)}"
            "</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for name, content in sorted(self.files.items())
            if name.startswith(f"{bucket}/{prefix}")
        ]
        text = (
            f"<ListBucketResult><Name>{bucket}</Name><KeyCount>{len(found)}</KeyCount>"
            f"<IsTruncated>false</IsTruncated>{''.join(found)}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextlib.contextmanager
def serving(files, *, context=None, gives_parts=True):
    """Serve files; gives the port, and the list of what was asked for."""
    handler = type("Handler", (Files,), {"files": files, "asked": [], "gives_parts": gives_parts})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1], handler.asked
        finally:
            server.shutdown()
            thread.join()


def certificate_of_this_machine(folder):
    """A TLS context for 127.0.0.1, and the file of its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / "public.pem", folder / "private.pem"
    public.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    return context, public
