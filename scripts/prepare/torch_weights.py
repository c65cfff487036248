"""Reads weights in the format that `torch.save` wrote before PyTorch 1.6, without PyTorch, and runs nothing in it."""

from __future__ import annotations

import pickle
import struct
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from deployments.repository.errors import ModelError

# The first two of the five pickles at the start of a file, in torch/serialization.py of PyTorch.
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
# The largest file read, bytes: EfficientNet-Lite4, the largest of its family, has 52 MB.
MAX_BYTES = 2**28

Array = npt.NDArray[Any]


class Storage:
    """The memory of a tensor: its numbers come behind the pickle that names it."""

    def __init__(self, dtype: str, length: int) -> None:
        """Describe a storage of `length` numbers of a NumPy dtype."""
        self.dtype, self.length = np.dtype(dtype), length
        self.numbers: Array = np.empty(0, self.dtype)


class Tensor:
    """A tensor whose storage may not have been read yet."""

    def __init__(
        self, storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_unused: object
    ) -> None:
        """Describe a tensor; `offset` and `strides` count numbers, not bytes."""
        self._storage, self._offset, self._shape, self._strides = storage, offset, shape, strides

    def array(self) -> Array:
        """Return the numbers, in C order; raises ModelError if the tensor reaches beyond its storage."""
        steps = [(extent - 1) * stride for extent, stride in zip(self._shape, self._strides, strict=True)]
        last = self._offset + sum(steps)
        if min([*self._shape, 1]) < 1 or min([*self._strides, self._offset, 0]) < 0 or last >= self._storage.length:
            raise ModelError("a tensor reaches beyond its numbers")
        numbers, size = self._storage.numbers[self._offset :], self._storage.dtype.itemsize
        strided = np.lib.stride_tricks.as_strided(numbers, self._shape, [size * stride for stride in self._strides])
        return np.ascontiguousarray(strided)


# What a global in the pickle stands for.
KNOWN: dict[tuple[str, str], object] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): Tensor,
    ("torch", "FloatStorage"): "<f4",
    ("torch", "LongStorage"): "<i8",
}


class Reader(pickle.Unpickler):
    """An unpickler of tensors alone: four globals are known, and every other one is an error."""

    def __init__(self, file: IO[bytes]) -> None:
        """Read from a file, from its current position on."""
        super().__init__(file)
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return what a known global stands for; raises UnpicklingError for another one."""
        if (found := KNOWN.get((module, name))) is None:
            raise pickle.UnpicklingError(f"{module}.{name} is not a part of weights")
        return found

    def persistent_load(self, reference: Any) -> Storage:
        """Return the storage that a tensor refers to, which is read later."""
        _, dtype, key, _, length, view = reference
        if view is not None or not isinstance(dtype, str) or not 0 <= length * 4 <= MAX_BYTES:
            raise pickle.UnpicklingError(f"storage {key} is not plain numbers")
        return self.storages.setdefault(key, Storage(dtype, length))


def read_weights(path: Path) -> Mapping[str, Array]:
    """Read a state dictionary: arrays, float32 or int64, by name.

    Raises:
        ModelError: the file is no such dictionary, is damaged, or holds anything but tensors.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelError(f"{path} is larger than {MAX_BYTES} bytes")
        with path.open("rb") as file:
            return _read(file)
    except ModelError as err:
        raise ModelError(f"{path}: {err}") from err
    # What a damaged pickle raises may be any of these.
    except (OSError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error) as err:
        raise ModelError(f"{path} is no file of weights that PyTorch before 1.6 wrote: {err!r}") from err
    except pickle.UnpicklingError as err:
        raise ModelError(f"{path} is not read: {err}") from err


def _read(file: IO[bytes]) -> Mapping[str, Array]:
    magic, protocol, system = (Reader(file).load() for _ in range(3))
    if (magic, protocol) != (MAGIC, PROTOCOL) or not system["little_endian"]:
        raise ModelError("it does not begin as such a file does")
    reader = Reader(file)
    tensors = reader.load()
    for key in Reader(file).load():
        storage = reader.storages[key]
        [length] = struct.unpack("<q", file.read(8))
        data = file.read(storage.length * storage.dtype.itemsize)
        if length != storage.length or len(data) != storage.length * storage.dtype.itemsize:
            raise ModelError("it is cut short")
        storage.numbers = np.frombuffer(data, storage.dtype)
    return {str(name): tensor.array() for name, tensor in tensors.items()}
