"""Writes the manifest of a model repository that a website serves, and prints how to name it in a configuration.

    ensemble manifest models/

Every model of the folder is first compared with the SHA-256 in its `metadata.json`. Put the folder on the website as it
is, `manifest.json` last; `model_repository` is its address with the manifest's SHA-256.
"""

from __future__ import annotations

from pathlib import Path

from deployments.repository.sources.manifest import MANIFEST, write
from scripts.errors import errors_in_one_line
from scripts.flags import described


def main() -> None:
    """Parse the command line and write the manifest."""
    parser = described(__doc__)
    parser.add_argument("folder", type=Path, help="the repository, <name>/<version>/")
    args = parser.parse_args()
    with errors_in_one_line():
        digest = write(args.folder)
        print(f"wrote {args.folder / MANIFEST}; in the configuration, with the folder's address:")
        print(f"  model_repository: https://...#sha256={digest}")


if __name__ == "__main__":
    main()
