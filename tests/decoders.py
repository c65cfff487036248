"""Decoders that hang and crash, for decoding processes: a picture says by its text which of it its decoder is to do."""

from tests import pictures

# Python imports it when a process starts. What hangs and what crashes is native code that holds the interpreter's lock.
SITE = """
import sys

if "deployments.transformer.isolation.process" in sys.orig_argv:
    import ctypes
    import cv2

    real = cv2.imdecode

    def imdecode(data, flags):
        encoded = data.tobytes()
        if b"hang" in encoded:
            ctypes.PyDLL(None).pause()
        if b"crash" in encoded:
            ctypes.PyDLL(None).abort()
        if b"fill" in encoded:
            bytearray(2**40)
        return real(data, flags)

    cv2.imdecode = imdecode
"""


def install(folder):
    """The folder, for PYTHONPATH, of what makes decoders hang and crash."""
    (folder / "sitecustomize.py").write_text(SITE)
    return folder


def that(does, pixels=None):
    """A whole PNG whose decoder is to do this."""
    whole = pictures.encode(pictures.grey(80) if pixels is None else pixels, ".png")
    return whole + does.encode()
