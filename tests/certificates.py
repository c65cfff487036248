"""Certificates that tests make."""

import subprocess
from pathlib import Path


def self_signed(folder, name="server", *addresses):
    """A certificate for this machine, and other addresses, and its key, PEM, both new: (path, path)."""
    certificate, key = Path(folder) / f"{name}.pem", Path(folder) / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    names = ",".join(["DNS:localhost", *(f"IP:{each}" for each in ("127.0.0.1", *addresses))])
    subject = ["-days", "1", "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}"]
    subprocess.run([*command, *subject, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key
