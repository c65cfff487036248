"""Certificates that tests make."""

import subprocess
from pathlib import Path


def self_signed(folder, name="server"):
    """A certificate for this machine and its key, PEM, both new: (path, path)."""
    certificate, key = Path(folder) / f"{name}.pem", Path(folder) / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subject = ["-days", "1", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, *subject, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key
