"""What programs import to use a running server: `from ensemble_serving import Client`.

It imports neither Ray nor OpenVINO. The errors that a server answers are classes of `graph.errors`.
"""

from deployments.contract.answer import Classification
from deployments.contract.errors import EnsembleError
from ensemble_serving.client import Client
from ensemble_serving.transports import NoResponse, ResponseTimeout

__all__ = ["Classification", "Client", "EnsembleError", "NoResponse", "ResponseTimeout"]
