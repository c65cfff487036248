"""Members that OpenVINO runs on this machine; the kind of a member whose entry has no `kind`."""

from typing import Literal

from pydantic import Field

from deployments.contract.member import MemberInterface, Signature, class_order, preprocessing_fields
from deployments.members.local import LoadedModel
from deployments.members.openvino_config import OpenVinoConfig
from deployments.repository.address import RepositoryAddress
from deployments.repository.repository import Model


class OpenVino(OpenVinoConfig):
    """One model of the repository that OpenVINO can read."""

    kind: Literal["openvino"] = Field("openvino", description="OpenVINO on this machine")

    def describe(self, model: Model) -> Signature:
        """See `LocalMember.describe`."""
        # Imported where it runs: OpenVINO takes time and memory that a process without a member need not spend.
        from deployments.repository.network import class_count, input_size, load

        network = load(model)
        return Signature(
            classes=class_count(network),
            version=model.version,
            labels=model.labels,
            size=input_size(network),
            **preprocessing_fields(model.input),
        )

    def identity(self, repository: RepositoryAddress) -> str:
        """Describe the model's files and the precision; see `MemberConfig.identity`."""
        return f"{self.name} {self.inference_precision} {self.file_digests(repository)}"

    def load(self, model: Model, interface: MemberInterface, max_batch_size: int) -> LoadedModel:
        """See `LocalMember.load`."""
        from deployments.members.predictor import Predictor

        order = class_order(model.labels, interface.labels)
        return Predictor(self, model, interface.size, max_batch_size, order)
