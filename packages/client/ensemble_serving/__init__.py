"""What programs import to use a running server: `from ensemble_serving import Client`, or `BlockingClient`.

It imports neither Ray nor OpenVINO. The errors that a server answers are classes of `ensemble_serving.errors`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ensemble_serving.answer import Classification
    from ensemble_serving.blocking import BlockingClient
    from ensemble_serving.client import Client
    from ensemble_serving.errors import EnsembleError
    from ensemble_serving.transports import NoResponse, ResponseTimeout

__all__ = ["BlockingClient", "Classification", "Client", "EnsembleError", "NoResponse", "ResponseTimeout"]
_MODULES = {"BlockingClient": "blocking", "Classification": "answer", "Client": "client", "EnsembleError": "errors"}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: a process of the server that needs the errors alone starts sooner."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'transports')}"), name)


def __dir__() -> list[str]:
    """List the public names, which are imported at their first use."""
    return sorted({*globals(), *__all__})
