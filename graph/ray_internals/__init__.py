"""What is Ray's and not its public interface: the only package that imports `ray._private`.

Each module was read in the version below; a test fails where another one is installed or a name has changed.
"""

RAY_VERSION = "2.60"
