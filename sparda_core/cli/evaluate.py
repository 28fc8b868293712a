"""`sparda evaluate`: quality of methods and budgets on held-out windows of real text, with intervals. Resumable."""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparda_core import __version__
from sparda_core.blocks import settled
from sparda_core.cli.options import NOT_NEGATIVE, POSITIVE, SEED, add_json, add_other_blocks
from sparda_core.cli.parser import number
from sparda_core.cli.running import progress
from sparda_core.cli.screen import show_json
from sparda_core.cli.unused import refuse_unused
from sparda_core.errors import ConfigError
from sparda_core.evaluate.study.config import BUDGETS, TASKS, StudyConfig
from sparda_core.evaluate.study.methods import BIASED, DEFAULT, KINDS, LABELLED, Method, parse_methods
from sparda_core.evaluate.study.store import check_ours
from sparda_core.files import check_folder
from sparda_core.shapes import BlockSpec

if TYPE_CHECKING:
    from sparda_core.distill.texts import Document
    from sparda_core.evaluate.study.report import Report
    from sparda_core.evaluate.study.run import Study
    from sparda_core.models.forecast_weights import ForecastWeights
    from sparda_core.models.model import Model

#: Label of the Forecast that comes with smollm2.
SHIPPED = "shipped"
#: Tokens of other text that tasks hide things in.
FILLER = 60_000
#: Fields of StudyConfig that have an option each; None: as the full or the quick study has them.
_SET = (
    "window", "first", "budgets", "path_budgets", "slot_budgets", "task_budgets", "samples", "task_tokens", "tasks",
    "select_blocks",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda evaluate`."""
    parser.add_argument(
        "--out", type=Path, default=Path("sparda-results") / "evaluate", metavar="DIR",
        help="folder for rows, results.json, results.csv and figures; the same command goes on from its rows",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true",
        help="2 windows of 4,096 tokens, the last 256 positions of each, budgets 8, 16, 32, two prompts a task: "
        "minutes on two cores",
    )  # fmt: skip
    parser.add_argument(
        "--show", type=Path, metavar="DIR", help="measure nothing: tables and figures of the results in this folder"
    )
    parser.add_argument(
        "--share", type=_share, default="1/1", metavar="I/N",
        help="measure the I-th of N shares and tell nothing: N processes, one share each, fill one folder together; "
        "then the same command without --share collects them",
    )  # fmt: skip
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--methods", nargs="+", metavar="NAME",
        help="KIND, forecast:LABEL, either with @WINDOW/STRIDE of its entries (default: all that the model allows); "
        f"kinds: {', '.join(KINDS)}",
    )  # fmt: skip
    what.add_argument(
        "--forecast", action="append", default=[], metavar="LABEL=FILE",
        help="Forecast weights; again for more. Labels that end in .s0, .s1 are training seeds of one Forecast, and "
        f"their mean is told too (default: the one that smollm2 comes with, as {SHIPPED!r})",
    )
    _add_sizes(what)
    model = parser.add_argument_group("model and text")
    model.add_argument("--model", default="smollm2", metavar="NAME|PATH", help="smollm2, a GGUF file or a directory")
    model.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the model runs")
    model.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="of the model (default: float32 on a CPU, bfloat16 on a GPU)"
    )
    model.add_argument("--threads", type=number(int, least=1, most=4096), metavar="CORES", help="of a CPU")
    model.add_argument(
        "--texts", type=Path, metavar="DIR", help="folder of `sparda texts fetch` (default: Python's own sources)"
    )
    model.add_argument("--split", choices=("held-out", "tuning"), default="held-out", help="documents of --texts")
    model.add_argument("--text", type=Path, nargs="+", metavar="FILE", help="these UTF-8 files instead")
    model.add_argument("--windows", type=NOT_NEGATIVE, metavar="N", help="of text (default: at most 16; quick: 2)")
    model.add_argument("--seed", type=SEED, default=0, metavar="N", help="of `random`, tasks and intervals")
    parser.add_argument(
        "--plot", action=argparse.BooleanOptionalAction, default=True, help="draw figures (needs matplotlib)"
    )
    add_json(parser)


def _share(word: str) -> tuple[int, int]:
    """`2/4` as (1, 4)."""
    found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", word)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{word!r} must be I/N with 1 <= I <= N, such as 2/4")
    return int(found[1]) - 1, int(found[2])


def _add_sizes(group: argparse._ArgumentGroup) -> None:
    def budgets(name: str, what: str, default: tuple[int, ...]) -> None:
        words = " ".join(map(str, default))
        group.add_argument(
            name, type=POSITIVE, nargs="*", metavar="BLOCKS", help=f"{what}, forced blocks included (default: {words})"
        )

    full = StudyConfig()
    budgets("--budgets", "blocks a KV head", BUDGETS)
    budgets("--path-budgets", "budgets of the sparse path (KL, agreement, perplexity)", full.path_budgets)
    budgets("--slot-budgets", "budgets whose misses are counted", full.slot_budgets)
    budgets("--task-budgets", "budgets of the tasks", full.task_budgets)
    group.add_argument(
        "--window", type=POSITIVE, metavar="TOKENS", help=f"of a window (default: {full.window}; quick: 4096)"
    )
    group.add_argument(
        "--first", type=POSITIVE, metavar="TOKEN", help=f"first position judged (default: {full.first}; quick: 3840)"
    )
    group.add_argument("--tasks", nargs="*", metavar="NAME", help=f"of {', '.join(TASKS)} (default: all)")
    group.add_argument(
        "--select-blocks", type=POSITIVE, metavar="BLOCKS",
        help="of nosa and nosa-forecast: blocks beside sink and local that go by the score (default: in proportion to "
        "the budget, as 23 of the 78 free ones at NOSA-8B's)",
    )  # fmt: skip
    group.add_argument(
        "--samples", type=NOT_NEGATIVE, metavar="N", help=f"prompts a task (default: {full.samples}; quick: 2)"
    )
    group.add_argument(
        "--task-tokens", type=POSITIVE, metavar="TOKENS", help=f"of a prompt (default: {full.task_tokens})"
    )
    spec = BlockSpec()
    for name, default, what in (
        ("--block", spec.block, "tokens in a block"),
        ("--entry-window", spec.window, "tokens averaged into one entry, of methods that name no grid"),
        ("--entry-stride", spec.stride, "tokens between starts of two entries"),
        ("--sink", spec.sink, "first blocks, always attended"),
        ("--local", spec.local, "blocks before the current one, always attended"),
    ):
        told = f"{what} (default: the checkpoint's own, or {default})"
        group.add_argument(name, type=NOT_NEGATIVE, metavar="N", help=told)
    add_other_blocks(group)


def config_of(args: argparse.Namespace) -> StudyConfig:
    """The study that the options ask for; raises ConfigError where they do not fit together."""
    spec = _spec_of(args)
    given = {name: getattr(args, name) for name in _SET if getattr(args, name) is not None}
    sizes: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in given.items()}
    make = StudyConfig.quick if args.quick else StudyConfig
    usual = make(spec=BlockSpec())
    more = spec.forced - usual.spec.forced
    for name in ("budgets", "path_budgets", "slot_budgets", "task_budgets"):  # as many free blocks as usual
        sizes.setdefault(name, tuple(budget + more for budget in getattr(usual, name)))
    return make(spec=spec, seed=args.seed, **sizes)


def _spec_of(args: argparse.Namespace) -> BlockSpec:
    """The cut that options and checkpoint name; its budget is not used."""
    said = {
        "block": args.block, "window": args.entry_window, "stride": args.entry_stride, "sink": args.sink,
        "local": args.local,
    }  # fmt: skip
    own = None
    if Path(args.model).is_dir():
        from sparda_core.models.own_blocks import own_blocks

        own = own_blocks(args.model).spec
    usual = own or BlockSpec()
    forced = sum(getattr(usual, n) if said[n] is None else said[n] for n in ("sink", "local"))
    options = {"window": "--entry-window", "stride": "--entry-stride"}
    return settled(
        {**said, "budget": max(usual.budget, forced + 2)}, own, usual, other=args.other_blocks, options=options
    )


def run(args: argparse.Namespace) -> int:
    """Measure what the folder does not hold yet, then report; an interruption keeps what is finished."""
    if args.show is not None:
        refuse_unused(args, add_arguments, ("show", "plot"), where="--show")
    if args.plot:
        from sparda_core.bench.plots import require_matplotlib

        require_matplotlib()
    folder = args.out if args.show is None else args.show
    if args.show is None:
        report = _measured(args)
        if report is None:
            return 0
    else:
        from sparda_core.evaluate.study.report import read_report

        report = read_report(folder)
    if args.plot:
        from sparda_core.bench.study_plots import plot_study

        plot_study(report, folder)
    if args.json:
        from sparda_core.evaluate.study.report import as_document

        show_json(as_document(report))
    else:
        from sparda_core.cli.evaluate_tables import show_study

        show_study(report, folder)
    return 0


def _measured(args: argparse.Namespace) -> Report | None:
    config = config_of(args)
    parse_methods(  # refused now rather than after the model is loaded; labels are told apart below
        [name for name in args.methods or () if not name.startswith(LABELLED)] or ["query"], spec=config.spec,
        forecasts={},
    )  # fmt: skip
    check_folder(args.out)
    check_ours(args.out)
    return measure(args, config)


def measure(args: argparse.Namespace, config: StudyConfig) -> Report | None:
    """Load, run and write the folder's results; None where a share alone was asked for, which tells nothing."""
    from sparda_core.bench.provenance import provenance
    from sparda_core.evaluate.study.report import describe_methods, make_report, write_report
    from sparda_core.evaluate.study.run import identity, run_study
    from sparda_core.evaluate.study.store import Rows

    study, model, digests = prepare(args, config)
    known = identity(study, model=model.name, forecasts=digests, extra={"sparda": __version__})
    rows = Rows(args.out, known)
    try:
        with progress() as report:
            windows, tasks = run_study(study, rows, share=args.share, progress=report)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; finished parts are kept in {args.out}: the same command goes on from there"
        ) from None
    if args.share[1] > 1:
        return None
    leads = {method.name: study.scorer.lead(method) for method in study.methods}
    found = make_report(
        windows, tasks, study=known, provenance={**provenance(), "gpu": _gpu(args.device)}, seed=config.seed,
        methods=describe_methods(study.methods, leads, model.shape),
    )  # fmt: skip
    write_report(args.out, found)
    return found


def prepare(args: argparse.Namespace, config: StudyConfig) -> tuple[Study, Model, dict[str, str]]:
    """The study of parsed options, its model, and the digests of its Forecasts by label."""
    import torch

    from sparda_core.cli.running import tokenizer_of
    from sparda_core.evaluate.study.run import Study
    from sparda_core.evaluate.study.scores import Scorer
    from sparda_core.evaluate.study.windows import cut_windows
    from sparda_core.models.load import load_model

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    dtype = args.dtype or ("float32" if args.device == "cpu" else "bfloat16")
    model = load_model(args.model, dtype=getattr(torch, dtype), device=args.device)
    forecasts, digests, grids = _forecasts(args, model, config.spec)
    methods = _methods(args, model, config.spec, grids)
    encode = tokenizer_of(model).encode
    documents = _documents(args)
    count = args.windows if args.windows is not None else (2 if args.quick else 16)
    least = 1 if args.windows is None else None
    windows = cut_windows(documents, encode, tokens=config.window, count=count, least=least) if count else ()
    study = Study(
        decoder=model.decoder.with_forecast(None), methods=methods, config=config, windows=windows,
        scorer=Scorer(forecasts=forecasts, seed=config.seed, select_blocks=config.select_blocks),
        encoder=tokenizer_of(model),
        filler=_filler(documents, encode) if config.samples else (),
    )  # fmt: skip
    return study, model, digests


def _methods(
    args: argparse.Namespace, model: Model, spec: BlockSpec, grids: Mapping[str, tuple[int, int]]
) -> tuple[Method, ...]:
    """Those asked for, or all that the model allows; raises ConfigError where one needs a bias that it has not."""
    biased = model.shape.token_bias
    if args.methods is None:
        return parse_methods((*DEFAULT, *(BIASED if biased else ())), spec=spec, forecasts=grids)
    methods = parse_methods(args.methods, spec=spec, forecasts=grids)
    without = [method.name for method in methods if method.kind in BIASED and not biased]
    if without:
        raise ConfigError(
            f"methods={without} choose by a token bias, and model={model.name!r} has none: name a NOSA model with "
            "--model, or leave them out"
        )
    return methods


def _forecasts(
    args: argparse.Namespace, model: Model, spec: BlockSpec
) -> tuple[dict[str, ForecastWeights], dict[str, str], dict[str, tuple[int, int]]]:
    """Weights, digests and training grids by label."""
    from sparda_core.models.forecast_weights import load_forecast
    from sparda_core.models.load import SHIPPED_FORECAST, SMOLLM2

    files = dict(_labelled(word) for word in args.forecast)
    if len(files) < len(args.forecast):
        raise ConfigError("--forecast: a label comes twice; give every file one of its own, as LABEL=FILE")
    if not files and args.model == SMOLLM2:
        files = {SHIPPED: SHIPPED_FORECAST}
    weights = {label: load_forecast(path, model.shape) for label, path in files.items()}
    digests = {label: hashlib.sha256(path.read_bytes()).hexdigest() for label, path in files.items()}
    return weights, digests, {label: _grid(w.metadata, spec) for label, w in weights.items()}


def _labelled(word: str) -> tuple[str, Path]:
    label, separator, path = word.partition("=")
    return (label, Path(path)) if separator else (Path(word).stem, Path(word))


def _grid(metadata: Mapping[str, Any], spec: BlockSpec) -> tuple[int, int]:
    trained = metadata.get("block_spec")
    if not isinstance(trained, Mapping):
        return spec.window, spec.stride
    return int(trained.get("window", spec.window)), int(trained.get("stride", spec.stride))


def _documents(args: argparse.Namespace) -> list[Document]:
    from sparda_core.distill.texts import held_out_documents, read_documents

    if args.text and args.texts:
        raise ConfigError("--text and --texts name different documents; give one of them")
    if args.text:
        return read_documents(args.text)
    if args.texts:
        from sparda_core.distill.corpus.folder import read_split

        return read_split(args.texts, args.split)
    return held_out_documents()


def _filler(documents: list[Document], encode: Any) -> tuple[int, ...]:
    """The first tokens of all documents together, an equal part of each."""
    each = max(1, FILLER // len(documents))
    return tuple(token for d in documents for token in encode(d.text[: 8 * each])[:each])


def _gpu(device: str) -> str | None:
    if device == "cpu":
        return None
    import torch

    return str(torch.cuda.get_device_name(device))
