"""The fitted weights of a run: what training leaves behind and transfer applies without any change."""

import json
from dataclasses import dataclass

import pandas as pd
import safetensors
import safetensors.torch
import torch

from icrl.config import KernelName
from icrl.errors import InputError
from icrl.storage import Folder
from icrl.tables import WEIGHTS


@dataclass(frozen=True, eq=False)
class FittedWeights:
    """δ and α of every kernel's model on every source domain; the rest of the weights is fixed by the theory.

    Attributes:
        kernels: names of the K kernels.
        sources: names of the S source domains.
        temperature: ``[K, S]`` float32, δ; NaN for a kernel that has none.
        step_fraction: ``[K, S, L]`` float32, α_k of each layer as a fraction of the stability bound.
    """

    kernels: tuple[KernelName, ...]
    sources: tuple[str, ...]
    temperature: torch.Tensor
    step_fraction: torch.Tensor

    def save(self, folder: Folder, name: str) -> None:
        """Write a safetensors file."""
        tensors = {"temperature": self.temperature, "step_fraction": self.step_fraction}
        names = {"kernels": json.dumps(self.kernels), "sources": json.dumps(self.sources)}
        folder.write(name, safetensors.torch.save({key: t.contiguous() for key, t in tensors.items()}, names))

    @classmethod
    def load(cls, folder: Folder, name: str) -> "FittedWeights":
        """Read what `save` wrote.

        Raises:
            InputError: the file is damaged.
        """
        content = folder.read(name)
        try:
            tensors = safetensors.torch.load(content)
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
            kernels, sources = json.loads(header["kernels"]), json.loads(header["sources"])
            return cls(tuple(kernels), tuple(sources), tensors["temperature"], tensors["step_fraction"])
        except (safetensors.SafetensorError, ValueError, KeyError) as error:
            raise InputError(f"{folder / name} is damaged ({error}); run `icrl train` again") from None

    def table(self) -> pd.DataFrame:
        """One row a kernel and source, columns as in `icrl.tables.WEIGHTS`."""
        rows = [
            (kernel, source, float(self.temperature[k, s]), self.step_fraction[k, s].tolist())
            for k, kernel in enumerate(self.kernels)
            for s, source in enumerate(self.sources)
        ]
        return pd.DataFrame(rows, columns=list(WEIGHTS))
