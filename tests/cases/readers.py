"""Every reader of a file that somebody else may have written, each with a file that it takes."""

from __future__ import annotations

import functools
import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from safetensors.torch import load_file, save_file

from sparda_core.bench.decode.store import read_rows
from sparda_core.bench.report import CompareReport
from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.validate.compact import CompactFacts
from sparda_core.bench.validate.folder import read_run, run_text
from sparda_core.bench.validate.record import Measured, Predicted, Record, read_record
from sparda_core.bench.verdict.judged import read_verdict, verdict_csv
from sparda_core.cli.bench import show
from sparda_core.cli.evaluate_tables import show_study
from sparda_core.distill.checkpoint import read_checkpoint
from sparda_core.distill.corpus.archives import read_members
from sparda_core.distill.corpus.folder import read_split, write_folder
from sparda_core.distill.corpus.rdata import read_texts
from sparda_core.distill.prepare import Need, prepare
from sparda_core.distill.sources import Documents
from sparda_core.distill.texts import Document
from sparda_core.evaluate.study.report import read_report
from sparda_core.evaluate.study.store import Rows
from sparda_core.facts import StepFacts, steady_facts
from sparda_core.models.forecast_pt import write_pt
from sparda_core.models.forecast_weights import load_forecast, save_forecast
from sparda_core.models.load import load_model
from sparda_core.models.tiny import random_forecast, random_weights
from sparda_core.plan import StepPlan
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.selectors.recording import Recorder, load
from sparda_core.selectors.replay import Replay
from sparda_core.shapes import BlockSpec
from sparda_core.simulator.gpu_fit.samples import Samples, digest, read_samples, samples_json
from sparda_core.simulator.locality_file import load_locality, locality_toml
from sparda_core.simulator.profile_file import load_profile, profile_toml
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.row import evaluate, to_line
from sparda_core.whatif.scenario import Scenario
from sparda_core.whatif.store import Store, write_study
from tests.distill.archives import deb, lazy_load, tar
from tests.models.gguf_files import SMALL, write_directory, write_gguf

SPEC = BlockSpec(block=8, window=4, stride=2, sink=1, local=1, budget=5)


@attrs.frozen(kw_only=True)
class Reader:
    """One way in.

    write     puts a good file, and what belongs to it, into a folder; gives the file that is to be spoiled
    read      reads it; whatever it holds, a value or one error of ours comes out
    text      of the JSON or TOML document in it, and `put`, which writes another document in its place
    """

    name: str
    write: Callable[[Path], Path]
    read: Callable[[Path], object]
    text: Callable[[Path], str] | None = None
    put: Callable[[Path, str], None] | None = None
    language: str = "json"

    def made(self, folder: Path) -> Path:
        """A good file in `folder`, from the one that was made first."""
        root, file = _made_once(self)
        shutil.copytree(root, folder, dirs_exist_ok=True)
        return folder / file


@functools.cache
def _made_once(reader: Reader) -> tuple[Path, Path]:
    folder = Path(tempfile.mkdtemp(prefix="sparda-reader-"))
    _FOLDERS.append(folder)
    return folder, reader.write(folder).relative_to(folder)


_FOLDERS: list[Path] = []


def clear() -> None:
    """Remove what was made once."""
    _made_once.cache_clear()
    while _FOLDERS:
        shutil.rmtree(_FOLDERS.pop(), ignore_errors=True)


def _plain(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="surrogatepass")


def document(
    name: str, write: Callable[[Path], Path], read: Callable[[Path], object], language: str = "json"
) -> Reader:
    """A file that is one document."""
    return Reader(name=name, write=write, read=read, text=_plain, put=_put, language=language)


def _file(name: str, content: Callable[[], str | bytes]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        made = content()
        (folder / name).write_bytes(made.encode() if isinstance(made, str) else made)
        return folder / name

    return write


# Plans, facts, recordings -----------------------------------------------------------------------------


def _plan() -> str:
    return RUNTIMES.make("offload-prefetch").decode_plan(
        shape=attrs.evolve(SMALL, layers=3), spec=SPEC, selector=SELECTORS.make("forecast")
    ).to_json()  # fmt: skip


def _facts() -> StepFacts:
    return steady_facts(shape=SMALL, spec=SPEC, batch=2, context=40, churn=0.1)


def _recording(folder: Path) -> Path:
    recorder = Recorder(shape=SMALL, spec=SPEC, selector="query")
    for position in (40, 41):
        ids = np.broadcast_to(np.array([0, 1, 2, 4, 5], np.int32), (SMALL.layers, 2, SMALL.kv_heads, 5))
        recorder.add([position, position], ids)
        recorder.add_facts(_facts())
    recorder.recording().save(folder / "run.npz")
    return folder / "run.npz"


def _replay(path: Path) -> object:
    found = load(path)
    found.steps_by_position()
    return Replay(path=path)


def _in_npz(array: str) -> tuple[Callable[[Path], str], Callable[[Path, str], None]]:
    def text(path: Path) -> str:
        with np.load(path) as arrays:
            return bytes(arrays[array].tobytes()).decode()

    def put(path: Path, text: str) -> None:
        with np.load(path) as arrays:
            held = dict(arrays)
        held[array] = np.frombuffer(text.encode(), np.uint8)
        with path.open("wb") as file:
            np.savez(file, **held)

    return text, put


# Machines and localities ------------------------------------------------------------------------------


def _predicted(path: Path) -> object:
    return Scenario(profile=str(path), shape="smollm2-135m", context=4096, batch=2).predict().step_s


def _missed(path: Path) -> object:
    return Scenario(locality=str(path), shape="smollm2-135m", context=4096, batch=1, steps=2).predict().step_s


# Weights ----------------------------------------------------------------------------------------------


def _directory(shards: int) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        write_directory(folder, random_weights(SMALL, seed=0, dtype=torch.float32), shards=shards)
        _put(folder / "generation_config.json", json.dumps({"eos_token_id": [7, 9]}))
        _put(folder / "tokenizer.json", _tokenizer())
        _put(folder / "tokenizer_config.json", json.dumps({"add_bos_token": True, "bos_token": {"content": "<s>"}}))
        return folder / "config.json"

    return write


def _tokenizer() -> str:
    words = {"<s>": 0, "a": 1, "b": 2, "ab": 3}
    added = {
        "id": 0, "content": "<s>", "special": True, "normalized": False, "lstrip": False, "rstrip": False,
        "single_word": False,
    }  # fmt: skip
    model = {"type": "BPE", "vocab": words, "merges": ["a b"]}
    return json.dumps({"version": "1.0", "added_tokens": [added], "model": model})


def _beside(name: str, shards: int = 1) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        return _directory(shards)(folder).parent / name

    return write


def _model(path: Path) -> object:
    found = load_model(path if path.suffix == ".gguf" else path.parent)
    return None if found.tokenizer is None else found.tokenizer.encode("ab 12")


def _gguf(folder: Path) -> Path:
    write_gguf(folder / "small.gguf")
    return folder / "small.gguf"


def _forecast(folder: Path) -> Path:
    made = random_forecast(SMALL, seed=0, dtype=torch.float32)
    save_forecast(folder / "f.safetensors", attrs.evolve(made, metadata={"steps": 3, "lead": 1}))
    return folder / "f.safetensors"


def _pt(folder: Path) -> Path:
    made = random_forecast(SMALL, seed=0, dtype=torch.float32)
    write_pt(folder / "f.pt", made.named(), {"steps": 5, "block_spec": attrs.asdict(SPEC)})
    return folder / "f.pt"


def _metadata(path: Path) -> str:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return str(file.metadata()["sparda"])


def _put_metadata(path: Path, text: str) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt", "sparda": text})


def _pt_text(path: Path) -> str:
    return str(torch.load(path, weights_only=True)["sparda"])


def _put_pt(path: Path, text: str) -> None:
    torch.save({**torch.load(path, weights_only=True), "sparda": text}, path)


# Training ---------------------------------------------------------------------------------------------

_RUN = {"spec": attrs.asdict(SPEC), "objective": "clean", "data_sha256": "0", "base_model": "m"}


def _checkpoint(folder: Path) -> Path:
    tensors = {f"{name}.0": torch.zeros(2, 3) for name in ("weight", "exp_avg", "exp_avg_sq")}
    history = {"steps": [[1, 0.5, 0.1, 1.0, [0.5]]], "evaluations": [[1, 0.5, 0.5]]}
    about = {"format": "sparda-training-1", "run": _RUN, "history": history, "wall_s": 1.5}
    save_file(tensors, folder / "c.safetensors", metadata={"format": "pt", "sparda": json.dumps(about)})
    return folder / "c.safetensors"


def _prepared(folder: Path) -> Path:
    _prepare(folder)
    (found,) = folder.glob("*.json")
    return found


def _prepare(folder: Path) -> object:
    texts = [Document(str(n), "abc" * (n + 5)) for n in range(6)]
    need = Need(tokens=40, encode=lambda text: [ord(c) % 40 for c in text], vocab=41, held_out=0.3, windows=1)
    found = prepare([Documents(texts)], need, folder)
    for corpus in (found.train, found.held):
        for number in range(len(corpus.ends)):
            start = int(corpus.ends[number - 1]) if number else 0
            assert np.asarray(corpus.ids[start : int(corpus.ends[number])]).size
    return found


def _texts(folder: Path) -> Path:
    texts = {"typing.py": "a", "emma": "b", "northangerabbey": "c", "lear": "d"}
    write_folder(folder, {"p": {"version": "1", "licence": "none"}}, texts)
    return folder / "manifest.json"


def _splits(path: Path) -> object:
    return [read_split(path.parent, split) for split in ("train", "tuning", "held-out")]


# Reports and studies ----------------------------------------------------------------------------------


def _report() -> str:
    plain: dict[str, Any] = {f.name: {} for f in attrs.fields(CompareReport)}
    row = {
        "label": "query", "runtime": "offload-sync", "link": "slow", "link_bytes_per_s": 1e9, "step_s": 0.1,
        "hidden_share": 0.5, "hidden_share_rounds": [0.5], "paired_with": "a",
    }  # fmt: skip
    return json.dumps(plain | {"format": 1, "quality": [], "timing": [row], "gpus": [], "notes": []})


def _compared(path: Path) -> object:
    return CompareReport.load(path).hiding


def _decode_rows() -> str:
    from tests.bench.test_decode_rows import rows_at

    return json.dumps({"settings": {}, "provenance": {}, "rows": rows_at(16)})


def _shown(path: Path) -> object:
    rows = read_rows(path)["rows"]
    show(rows)
    return rows


def _figures() -> str:
    flat = {
        "metric": "kl", "method": "query", "budget": 16, "against": "", "form": "mean", "detail": "", "value": 0.1,
        "low": 0.05, "high": 0.2,
    }  # fmt: skip
    method = {
        "method": "query", "what": "w", "lead": 0, "grid": None, "index_bytes_per_token_and_layer": 8,
        "share_of_k": 0.5,
    }  # fmt: skip
    study = {
        "model": "m", "dtype": "float32", "windows": {"w": "0"},
        "config": {"window": 150, "first": 90, "task_tokens": 64},
    }  # fmt: skip
    figures = [flat | {"metric": metric} for metric in ("kl", "recall_query", "perplexity")]
    figures += [flat | {"metric": "misses", "detail": "lru 2"}, flat | {"metric": "task_exact", "detail": "copy"}]
    return json.dumps({
        "study": study, "provenance": {"machine": {"cpu": "c", "cores": 2}}, "methods": [method], "documents": ["a"],
        "chance": {"16": 0.1}, "figures": figures, "layers": {},
    })  # fmt: skip


def _study_report(path: Path) -> object:
    report = read_report(path.parent)
    show_study(report, path.parent)
    return report


def _record() -> Record:
    facts = CompactFacts(
        layers=2, batch=1, kv_heads=2, budget=5, slots=5, lengths=(40, 41), selected=(5, 5), opened=(0, 1),
        misses=((0, 2), (0, 1)),
    )  # fmt: skip
    return Record(
        cell=ValidationCell(selector="forecast", runtime="offload-prefetch", batch=1, context=4096), tier="axis",
        stratum="link", ratio=1.7, groups=("a",), measured=Measured(rounds_s=((0.1, 0.2), (0.1, 0.2)), facts=facts),
        predicted={"drawn": Predicted(step_s=0.1, by_kind={"mlp": 0.05})},
    )  # fmt: skip


def _samples() -> str:
    rows = {"launches": [{"graph_s": 1e-6, "kernels": 4}], "gather": [{"ctas": 2, "bytes_per_s": 5e10}]}
    kept = Samples(identity={"gpu": "g"}, provenance={"date": "d"}, sections=rows, seconds={"launches": 1.5})
    return samples_json(kept)


def _judged() -> str:
    kept = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-30-validation-earlier.json"
    plain = json.loads(kept.read_text(encoding="utf-8"))
    return json.dumps(plain | {"cells": plain["cells"][:2]})


def _verdict(path: Path) -> object:
    found = read_verdict(path)
    return verdict_csv(found), found.measured


_IDENTITY = {"model": "m", "config": {"seed": 0}}
_GRID = Grid(axes={"batch": (1, 2)})


def _rows(folder: Path) -> Path:
    choice = {metric: {"16": [0.5, 0.5]} for metric in ("recall_query", "recall_oracle", "free_mass", "churn")}
    answers = {"kl": 0.1, "agreement": 0.9, "nll": 2.0, "dense_nll": 1.9}
    Rows(folder, _IDENTITY).put("w.1", {
        "window": "w.1", "document": "d", "offset": 0, "forced_mass": [0.5, 0.5], "choice": {"query": choice},
        "path": {"query": {"16": answers}}, "misses": {"query": {"16": {"lru": {"1": 2.0}, "fresh": 3.0, "free": 9.0}}},
    })  # fmt: skip
    return folder / "rows" / "w.1.json"


def _row(path: Path) -> object:
    from sparda_core.evaluate.study.figures import miss_values, window_values
    from sparda_core.evaluate.study.run import _kept

    return _kept(Rows(path.parents[1], _IDENTITY), "w.1", window_values, miss_values)


def _study(folder: Path) -> Path:
    write_study(folder, {"grid": "g", "finished": False})
    rows = evaluate(_GRID, [0])
    (folder / "rows.jsonl").write_text("".join(to_line(row) + "\n" for row in rows))
    return folder / "rows.jsonl"


def _resumed(path: Path) -> object:
    with Store(path.parent, _GRID, {"grid": "g"}, resume=True) as store:
        store.add(evaluate(_GRID, [1]) if 1 not in store.rows else [])
        store.write_table()
        return store.rows


# Archives ---------------------------------------------------------------------------------------------


def _rdata(folder: Path) -> Path:
    index, chunks = lazy_load({"emma": ["a", "b"], "lear": ["c"]})
    (folder / "d.rdx").write_bytes(struct.pack(">I", len(index)) + index + chunks)
    return folder / "d.rdx"


def _read_rdata(path: Path) -> object:
    raw = path.read_bytes()
    size = struct.unpack(">I", raw[:4].ljust(4, b"\0"))[0]
    return read_texts(raw[4 : 4 + size], raw[4 + size :])


def _members(path: Path) -> object:
    return read_members(path, ["*"])


_META, _FACTS = _in_npz("meta"), _in_npz("facts")

#: Files that hold a document, and files whose document lies inside something else.
DOCUMENTS: tuple[Reader, ...] = (
    document("plan", _file("plan.json", _plan), lambda p: StepPlan.from_json(_plain(p))),
    document("facts", _file("facts.json", lambda: _facts().to_json()), lambda p: StepFacts.from_json(_plain(p))),
    document("gpu profile", _file("p.toml", lambda: profile_toml(load_profile("h200"))), _predicted, "toml"),
    document("locality", _file("l.toml", lambda: locality_toml(load_locality("smollm2-query"))), _missed, "toml"),
    document("comparison", _file("report.json", _report), _compared),
    document("record", _file("r.json", lambda: json.dumps(_record().to_plain())), read_record),
    document("validation", _file("v.json", lambda: run_text([_record()], {})), lambda p: read_run(p).records),
    document("samples", _file("p.samples.json", _samples), lambda p: digest(read_samples(p))),
    document("verdict", _file("v.json", _judged), _verdict),
    document("decode rows", _file("decode.json", _decode_rows), _shown),
    document("study report", _file("results.json", _figures), _study_report),
    document("study row", _rows, _row),
    document("study identity", lambda f: _rows(f).parents[1] / "study.json", lambda p: Rows(p.parent, _IDENTITY)),
    Reader(name="what-if journal", write=_study, read=_resumed, text=_plain, put=lambda p, text: _put(p, text + "\n")),
    document("what-if study", lambda f: _study(f).with_name("study.json"), _resumed),
    document("model settings", _directory(1), _model),
    document("model index", _beside("model.safetensors.index.json", 2), _model),
    document("generation settings", _beside("generation_config.json"), _model),
    document("tokenizer", _beside("tokenizer.json"), _model),
    document("tokenizer settings", _beside("tokenizer_config.json"), _model),
    document("texts", _texts, _splits),
    document("prepared texts", _prepared, lambda p: _prepare(p.parent)),
    Reader(name="recording", write=_recording, read=_replay, text=_META[0], put=_META[1]),
    Reader(name="recorded facts", write=_recording, read=_replay, text=_FACTS[0], put=_FACTS[1]),
    Reader(
        name="forecast", write=_forecast, read=lambda p: load_forecast(p, SMALL), text=_metadata, put=_put_metadata
    ),
    Reader(name="forecast .pt", write=_pt, read=lambda p: load_forecast(p, SMALL), text=_pt_text, put=_put_pt),
    Reader(
        name="checkpoint", write=_checkpoint, read=lambda p: read_checkpoint(p, _RUN, [torch.Size((2, 3))]),
        text=_metadata, put=_put_metadata,
    ),
)  # fmt: skip

#: Files of bytes.
BINARY: tuple[Reader, ...] = (
    Reader(name="weights", write=_beside("model.safetensors"), read=_model),
    Reader(name="gguf", write=_gguf, read=_model),
    Reader(name="recording", write=_recording, read=_replay),
    Reader(name="forecast", write=_forecast, read=lambda p: load_forecast(p, SMALL)),
    Reader(name="forecast .pt", write=_pt, read=lambda p: load_forecast(p, SMALL)),
    Reader(name="R data", write=_rdata, read=_read_rdata),
    Reader(name="tar", write=_file("a.tar.gz", lambda: tar({"x.txt": b"text" * 50}, "w:gz")), read=_members),
    Reader(name="xz", write=_file("a.tar.xz", lambda: tar({"x.txt": b"text" * 50}, "w:xz")), read=_members),
    Reader(name="deb", write=_file("a.deb", lambda: deb({"x.txt": b"text" * 50})), read=_members),
)  # fmt: skip
