"""Methods of a study by name: what scores blocks, with which trained projections, on which grid of entries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import attrs

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.shapes import BlockSpec, ModelShape

#: Kind -> what it scores with. The lead of `forecast` is that of its weights.
KINDS: Mapping[str, str] = {
    "oracle": "exact attention mass of the layer's own query; reads every key, a measuring stick",
    "query": "per-head softmax of the layer's own query over entries, summed over the group (InfLLM-V2)",
    "infinigen-token": "proxy query against every token's key in all dimensions, raw logits summed over the group",
    "infinigen-released": "the same in 32 skewed dimensions of each key, chosen by the text before: as released",
    "infinigen-entry": "proxy query against entries, raw logits summed over the group",
    "infinigen-softmax": "proxy query against entries, per-head softmax, summed over the group",
    "forecast": "one trained projection a KV head of an earlier layer's input, against entries (SparDA)",
    "nosa": "some blocks as `query`, all others by their tokens' learned bias (NOSA)",
    "nosa-forecast": "some blocks as `forecast`, all others by their tokens' learned bias",
    "random": "seeded noise",
    "window": "the newest blocks: a sliding window of equal budget",
}
#: Kinds that hold a query against entries, and so have a grid.
ON_ENTRIES = ("query", "infinigen-entry", "infinigen-softmax", "forecast", "nosa", "nosa-forecast")
#: Kinds that score with a trained Forecast, and so have a label.
LABELLED = ("forecast", "nosa-forecast")
#: Kinds that a model without a token bias cannot have.
BIASED = ("nosa", "nosa-forecast")
#: Kinds that hold a proxy query against tokens' keys.
ON_TOKENS = ("infinigen-token", "infinigen-released")
#: What is measured unless told otherwise, with BIASED where the model has a bias; `forecast` stands for every file.
DEFAULT = tuple(kind for kind in KINDS if kind not in BIASED)
#: Bytes of one value of an index as it is served (bfloat16), and of a bias (float32).
VALUE_BYTES, BIAS_BYTES = 2, 4
#: Dimensions of each key that InfiniGen is released with; all where a head has no more.
CHANNELS = 32

_NAME = re.compile(r"(?P<kind>[a-z-]+)(?::(?P<label>[\w.-]+))?(?:@(?P<window>\d+)/(?P<stride>\d+))?")


@attrs.frozen(kw_only=True)
class Method:
    """One way to rank blocks.

    name    as it was asked for, such as "forecast:fine@8/8"
    kind    one of KINDS
    label   which Forecast file, "" for all other kinds
    window, stride  of the entries that it scores; 0 where it scores none
    channels  skewed dimensions of each key that it scores; 0 where it scores no such ones
    """

    name: str
    kind: str
    label: str = ""
    window: int = 0
    stride: int = 0
    channels: int = 0

    @property
    def grid(self) -> tuple[int, int] | None:
        """Window and stride of the entries; None for a kind that has none."""
        return (self.window, self.stride) if self.stride else None

    def index_bytes_per_token(self, shape: ModelShape) -> float:
        """Bytes that it scores from, a token of one layer, all KV heads, in bfloat16; 0 for a kind without keys."""
        row = VALUE_BYTES * shape.kv_heads * shape.head_dim
        if self.stride:
            means = BIAS_BYTES * shape.kv_heads if self.kind in BIASED else 0
            return (row + means) / self.stride
        if self.channels:
            return row * min(self.channels, shape.head_dim) / shape.head_dim
        return float(row) if self.kind in ("oracle", "infinigen-token") else 0.0

    def share_of_k(self, shape: ModelShape) -> float:
        """Its index as a share of the keys'."""
        return self.index_bytes_per_token(shape) / (VALUE_BYTES * shape.kv_heads * shape.head_dim)


def parse_method(text: str, *, spec: BlockSpec, forecasts: Mapping[str, tuple[int, int]]) -> Method:
    """KIND, KIND:LABEL or either with @WINDOW/STRIDE.

    spec       its window and stride are those of a method that names none
    forecasts  label -> the grid that a Forecast was trained on, which is its own default
    raises     UnknownNameError (kind, label), ConfigError for a grid that the kind has not or the block does not allow
    """
    found = _NAME.fullmatch(text)
    if found is None:
        raise ConfigError(f"method={text!r} must be KIND, KIND:LABEL or KIND@WINDOW/STRIDE, such as query@8/8")
    kind, label = found["kind"], found["label"] or ""
    if kind not in KINDS:
        raise UnknownNameError(what="method", name=kind, known=KINDS)
    if label and kind not in LABELLED:
        raise ConfigError(f"method={text!r}: only a forecast has a label; leave out ':{label}'")
    if kind in LABELLED:
        label = label or next(iter(forecasts), "")
        if not label:
            raise ConfigError(f"method={text!r} needs Forecast weights: give --forecast LABEL=FILE, or leave it out")
        if label not in forecasts:
            raise UnknownNameError(what="forecast", name=label, known=forecasts)
    if kind not in ON_ENTRIES:
        if found["stride"]:
            raise ConfigError(f"method={text!r}: {kind} scores no entries, so it has no grid; leave out the @ part")
        return Method(name=text, kind=kind, channels=CHANNELS if kind == "infinigen-released" else 0)
    default = forecasts[label] if label else (spec.window, spec.stride)
    window, stride = (int(found["window"]), int(found["stride"])) if found["stride"] else default
    try:
        attrs.evolve(spec, window=window, stride=stride)
    except ConfigError as wrong:
        raise ConfigError(f"method={text!r}: {wrong}") from wrong
    return Method(name=text, kind=kind, label=label, window=window, stride=stride)


def parse_methods(
    texts: Iterable[str], *, spec: BlockSpec, forecasts: Mapping[str, tuple[int, int]]
) -> tuple[Method, ...]:
    """Each of `texts`, in order; a plain kind of LABELLED stands for every file given, for none where there is none.

    raises  as parse_method; ConfigError for a name that comes twice, and for none at all
    """
    asked: list[str] = []
    for text in texts:
        kind, at, grid = text.partition("@")
        asked += [f"{kind}:{label}{at}{grid}" for label in forecasts] if kind in LABELLED else [text]
    methods = tuple(parse_method(text, spec=spec, forecasts=forecasts) for text in asked)
    names = [method.name for method in methods]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"methods={sorted(twice)} are named twice; name each once")
    if not methods:
        raise ConfigError("no method is left to measure; name one of " + ", ".join(KINDS))
    return methods
