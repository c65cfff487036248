"""Receipts: an answer says what it cost, where its caller asks for that by the option `receipt`."""

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from deployments.contract.answer import Answer, NodeCost, Receipt
from deployments.contract.batch import Batch
from deployments.contract.cpu_accounting import METER, CpuMeasurement
from deployments.contract.item import Item, Note
from deployments.pipeline.pipeline import Answered, InFlight, Interceptor
from graph.feature import Feature

INGRESS = "ingress"
# The note of a member on another server has this; its CPU time is that of calling the server.
REMOTE = "server.address"
# Digits behind the point: nanoseconds.
DIGITS = 6


class ReceiptInterceptor(Interceptor):
    """Issues receipts."""

    of_members, option = True, "receipt"

    def __init__(self) -> None:
        # While CPU time that the meter has read is to be shared, every batch takes its part.
        self.sees_all = False
        # Keeps the meter on from when a batch leaves the queue, whichever processes its nodes are in.
        self._metered: dict[InFlight, CpuMeasurement] = {}

    def on_request(self, batch: InFlight) -> None:
        """Let the nodes meter the images of which a receipt is asked for."""
        asked = [position for position, item in enumerate(batch.items) if item.options.receipt]
        for position in asked:
            batch.items[position] = replace(batch.items[position], metered=True)
        if asked and (span := METER.begin(True, owner=True)) is not None:
            self._metered[batch], self.sees_all = span, True

    def on_part(self, batch: InFlight, positions: Sequence[int], part: Answered) -> Answered:
        """Add receipts; every image that is done takes its share of the ingress' work, whoever asked."""
        own_ms = METER.take_rest() / 1e6 / len(part.items)
        self.sees_all = METER.is_on
        if batch not in self._metered:
            return part
        images, size = batch.images, len(batch.items)
        answers = list(part.payload)
        for row, place in enumerate(part.live):
            if part.items[place].options.receipt:
                position = positions[place]
                own = NodeCost(INGRESS, round(own_ms, DIGITS), bytes_in=len(images.get(position, b"")))
                receipt = Receipt(size, position, (*costs(part.items[place]), own))
                answer = answers[row]
                classification = replace(answer.classification, receipt=receipt)
                answers[row] = Answer(classification, answer.probabilities)
        return Batch(answers, part.items)

    def on_end(self, batch: InFlight) -> None:
        """Let the meter rest."""
        if (span := self._metered.pop(batch, None)) is not None:
            span.end()


def costs(item: Item) -> list[NodeCost]:
    """Return each node's cost of an image: an equal share of the node's batch."""
    notes: dict[str, list[Note]] = defaultdict(list)
    for step in item.steps:
        notes[step.note.node].append(step.note)
    return [_cost(node, several) for node, several in notes.items()]


def _cost(node: str, notes: Sequence[Note]) -> NodeCost:
    cpu = _share(notes, "ensemble.cpu_ms")
    is_remote = any(REMOTE in note.attributes for note in notes)
    sizes = [None if (size := _share(notes, f"ensemble.bytes_{way}")) is None else round(size) for way in ("in", "out")]
    return NodeCost(node, None if is_remote else cpu, cpu if is_remote else None, *sizes)


def _share(notes: Sequence[Note], name: str) -> float | None:
    """Sum an image's shares of what its node noted, in all its batches; None if one has no such note."""
    shares = [
        float(note.attributes[name]) / int(note.attributes["ensemble.batch.size"])
        for note in notes
        if name in note.attributes
    ]
    return round(sum(shares), DIGITS) if len(shares) == len(notes) else None


class Receipts(Feature):
    """Adds receipts to answers; the ingress' entry gets all time of its process that belongs to no node."""

    order = 70
    always = of_any_shape = True

    def __init__(self, *_: object) -> None:
        self.interceptor = ReceiptInterceptor()
