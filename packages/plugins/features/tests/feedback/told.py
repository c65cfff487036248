"""What takes true labels in place of the processes of the ingress."""

from deployments.contract.errors import UnknownLabel


class Told:
    def __init__(self):
        self.labels = []

    async def __call__(self, request_id, label, place, key):
        if label == "unicorn":
            raise UnknownLabel("unicorn")
        self.labels.append((request_id, label, place, key))
