"""Models on a network share of this machine, which may be away: `model_repository: share:///mnt/models`."""

from pathlib import Path
from urllib.parse import SplitResult

from deployments.repository.errors import SourceError, Unreachable
from ensemble_sources.file_system import FileSystem
from ensemble_sources.mirror import Listing


class Share(FileSystem):
    """`share://`; the server keeps copies, and serves them while the share is away."""

    driver = "fsspec.implementations.local:LocalFileSystem"

    @classmethod
    def check(cls, address: SplitResult) -> None:
        """Refuse an address with a host: `share://` and three slashes begin it."""
        if address.netloc or not address.path:
            raise SourceError(f"{address.geturl()!r} is not share:// and an absolute path")

    def list(self, name: str) -> Listing:
        """List the files of a model."""
        if not Path(self.root).is_dir():
            raise Unreachable(f"{self.location} is not mounted")
        return super().list(name)
