"""Records the images that clients send, with their times and answers, for `ensemble mirror`."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from pydantic import Field, field_validator

from deployments.contract.errors import ConfigurationError
from deployments.contract.item import Item
from deployments.contract.sections import Section
from deployments.folder_permissions import changeable_by_others, is_private
from deployments.pipeline.pipeline import Answered, InFlight, Interceptor
from graph.feature import Feature, Site

logger = logging.getLogger("ray.serve")
SUFFIX, MB = ".jsonl", 1_000_000
# Images that wait for a slow disk; more of them are left out.
MOST_WAITING_BYTES = 32 * MB


class Recorded(msgspec.Struct, frozen=True, omit_defaults=True):
    """An image that a client sent, and its answer. Nothing else of the request is here: no header, key or address.

    Attributes:
        at_s: when the server queued the image, seconds since the epoch.
        options: the options of the request that differ from the defaults.
        label: of the answer; empty if the image failed.
        took_ms: from the queue to the end of the last node's work.
        error: the code of the error; empty if there is a label.
    """

    at_s: float
    image: bytes
    options: dict[str, Any] = {}
    label: str = ""
    took_ms: float = 0.0
    error: str = ""

    @classmethod
    def of(cls, image: bytes, sent: Item, done: Item, label: str) -> Recorded:
        """Make the record of an image, by its item before and after the graph."""
        ended_ns = max((step.note.end_ns for step in done.steps), default=sent.queued_ns)
        error = "" if done.error is None else done.error.code
        return cls(sent.queued_ns / 1e9, image, sent.options.chosen(), label, (ended_ns - sent.queued_ns) / 1e6, error)


class RecordingSettings(Section):
    """The entry in `features`."""

    folder: Path = Field(description="absolute path of a folder that only the server's user can enter")
    max_mb: int = Field(256, ge=1, description="megabytes, older files included, where a replica stops recording")

    @field_validator("folder")
    @classmethod
    def _is_absolute(cls, folder: Path) -> Path:
        if not folder.is_absolute():
            raise ValueError(f"{str(folder)!r} is no absolute path")
        return folder


class Recording(Feature, Interceptor):
    """Writes what clients send into a file of this replica, which only the server's user can read."""

    of_any_shape = True
    sections = (RecordingSettings,)

    def __init__(self, _config: object, _agreed: object, site: Site) -> None:
        assert isinstance(site.settings, RecordingSettings)
        folder, self.interceptor = site.settings.folder, self
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(folder) or changeable_by_others(folder):
            raise ConfigurationError(f"features: others can enter or replace {folder}; run `chmod 700 {folder}`")
        self._left = site.settings.max_mb * MB - sum(file.stat().st_size for file in folder.iterdir())
        file = os.open(folder / f"{site.replica}{SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(file, "ab")
        # A disk may be slow, an image takes long to encode, and the loop answers other clients.
        self._writer = ThreadPoolExecutor(1, "recording")
        # Bytes of images: the loop alone changes the first number, the writer the second one.
        self._accepted, self._finished, self._leaves_out = 0, 0, False
        self._warn_if_full()

    def on_part(self, batch: InFlight, positions: Sequence[int], part: Answered) -> Answered:
        """Record the images of a part on their way to the clients; warm-up images are left out."""
        images, answers = batch.images, dict(zip(part.live, part.payload, strict=True))
        for place, position in enumerate(positions):
            if position in images and self._left > 0 and self._has_room(len(images[position])):
                label = answers[place].classification.label if place in answers else ""
                image, sent = bytes(images[position]), batch.sent.items[position]
                self._accepted += len(image)
                self._writer.submit(self._write, image, sent, part.items[place], label)
        return part

    def _has_room(self, size: int) -> bool:
        """Tell whether an image may wait for the writer; warn at the first image that may not."""
        waiting = self._accepted - self._finished
        has_room = not waiting or waiting + size <= MOST_WAITING_BYTES
        if not has_room and not self._leaves_out:
            self._leaves_out = True
            logger.warning("images are left out of the recording: the disk is slower than the clients")
        return has_room

    def _warn_if_full(self) -> None:
        if self._left <= 0:
            logger.warning("nothing more is recorded: the folder has the megabytes of max_mb")

    def _write(self, image: bytes, sent: Item, done: Item, label: str) -> None:
        try:
            if self._left > 0:
                line = msgspec.json.encode(Recorded.of(image, sent, done, label)) + b"\n"
                self._file.write(line)
                self._file.flush()
                self._left -= len(line)
                self._warn_if_full()
        except OSError:
            self._left = 0
            logger.exception("nothing more is recorded")
        finally:
            self._finished += len(image)
