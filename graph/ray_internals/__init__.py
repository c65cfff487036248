"""Everything that is used of Ray and not part of its public interface; no other package imports it.

Each module was read in the version below. A test fails where another version is installed or a name has changed.
"""

RAY_VERSION = "2.60"
