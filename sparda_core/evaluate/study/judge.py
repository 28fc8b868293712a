"""One window or one task under every method: what becomes a row of the study. Plain values, ready for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch

from sparda_core.evaluate.study import slots
from sparda_core.evaluate.study.answers import answer, compare
from sparda_core.evaluate.study.config import MULTIPLES, StudyConfig
from sparda_core.evaluate.study.methods import BIASED, Method
from sparda_core.evaluate.study.order import Order
from sparda_core.evaluate.study.path import Dense, run_dense, run_path
from sparda_core.evaluate.study.ranks import Bounds, captured, chance, churn, rank_free, recall
from sparda_core.evaluate.study.scene import Scene
from sparda_core.evaluate.study.scores import Scorer
from sparda_core.evaluate.tasks import Task
from sparda_core.models.decoder import Decoder

_ORACLE = Method(name="oracle", kind="oracle")
#: Kinds whose scores say something about the next step, so that a pool may go by them.
_STEADY = (
    "oracle", "query", "infinigen-token", "infinigen-released", "infinigen-entry", "infinigen-softmax", "forecast",
)  # fmt: skip

Numbers = dict[str, Any]


def judge_choices(
    decoder: Decoder, ids_T: torch.Tensor, methods: Sequence[Method], config: StudyConfig, scorer: Scorer
) -> tuple[Dense, Numbers]:
    """Run a window densely and judge every method's choices from the dense state, layer by layer.

    returns  the dense state, and: chance {budget}, forced_mass [L], by method and metric {budget: [L]} (recall_query
             and recall_oracle of free blocks, free_mass, churn), and misses by method and budget over layers 1 ..
    """
    judge = _Judge(methods, config, scorer, device=ids_T.device)
    dense = run_dense(
        decoder, ids_T, first=config.first, spec=config.spec, consume=judge.saw, channels=channels_of(methods),
        reach=max(scorer.lead(method) for method in methods),
    )  # fmt: skip
    return dense, judge.result()


def channels_of(methods: Sequence[Method]) -> int:
    """Dimensions that InfiniGen is to keep of each key; 0 where no method scores such ones."""
    return max((method.channels for method in methods), default=0)


class _Judge:
    def __init__(
        self, methods: Sequence[Method], config: StudyConfig, scorer: Scorer, *, device: torch.device
    ) -> None:
        self._methods, self._config, self._scorer = methods, config, scorer
        positions = torch.arange(config.first, config.window, device=device)
        spec = config.spec
        self._bounds = Bounds.of(positions, spec.block_count(config.window), spec)
        self._stretch = slots.Stretch.of(
            positions, self._bounds, forced=spec.forced, block=spec.block, budgets=config.slot_budgets,
            multiples=MULTIPLES, warm=config.warm,
        )  # fmt: skip
        metrics = ("recall_query", "recall_oracle", "free_mass", "churn")
        self._table: Numbers = {
            m.name: {name: {str(b): [] for b in config.budgets} for name in metrics} for m in methods
        }
        self._forced_mass: list[float] = []
        # By budget, where the order of blocks depends on it; else under 0.
        self._ranks: dict[str, dict[int, list[torch.Tensor]]] = {
            m.name: {budget: [] for budget in (config.slot_budgets if m.kind in BIASED else (0,))} for m in methods
        }

    def saw(self, scene: Scene) -> None:
        """Judge one layer."""
        spec, bounds = self._config.spec, self._bounds
        query = Method(name="query", kind="query", window=spec.window, stride=spec.stride)
        mass = self._scorer(_ORACLE, scene)
        wanted = {
            "recall_query": self._scorer.order(query, scene, bounds),
            "recall_oracle": Order(score=rank_free(mass, bounds.free), bounds=bounds),
        }
        self._forced_mass.append(captured(mass, bounds.forced.expand_as(mass)))
        for method in self._methods:
            order = self._known(method, wanted, scene)
            if scene.layer and self._config.slot_budgets:
                for budget, ranks in self._ranks[method.name].items():
                    ranks.append(order.at(budget - spec.forced))
            for budget in self._config.budgets:
                free, row, key = budget - spec.forced, self._table[method.name], str(budget)
                chosen = order.chosen(free)
                for name, reference in wanted.items():
                    row[name][key].append(recall(chosen, reference.chosen(free)))
                row["free_mass"][key].append(captured(mass, chosen))
                row["churn"][key].append(churn(chosen, bounds.forced))

    def _known(self, method: Method, wanted: dict[str, Order], scene: Scene) -> Order:
        if method.kind == "oracle":
            return wanted["recall_oracle"]
        if method.kind == "query" and method.grid == (scene.spec.window, scene.spec.stride):
            return wanted["recall_query"]
        return self._scorer.order(method, scene, self._bounds)

    def result(self) -> Numbers:
        """Everything seen."""
        forced = self._config.spec.forced
        return {
            "chance": {str(b): chance(self._bounds.free, b - forced) for b in self._config.budgets},
            "forced_mass": self._forced_mass,
            "choice": self._table,
            "misses": self._misses() if self._config.slot_budgets else {},
        }

    def _misses(self) -> Numbers:
        stretch = self._stretch
        stacked = {
            name: {budget: torch.cat(parts) for budget, parts in by_budget.items() if parts}
            for name, by_budget in self._ranks.items()
        }
        table: Numbers = {name: {} for name, ranks in stacked.items() if ranks}
        for name in table:
            for budget in stretch.budgets:
                rank = stacked[name].get(0, stacked[name].get(budget))
                assert rank is not None
                lru = {str(m): x for m, x in slots.lru_misses(stretch, rank, budget).items()}
                table[name][str(budget)] = {**slots.moved(stretch, rank, budget), "lru": lru}
        for budget, (names, ranks) in self._by_scores(stacked).items():
            judged = attrs.evolve(stretch, budgets=(budget,)) if budget else stretch
            for name, by_budget in zip(names, slots.score_misses(judged, torch.stack(ranks)).tolist(), strict=True):
                for one, by_size in zip(judged.budgets, by_budget, strict=True):
                    sizes = zip(judged.multiples, by_size, strict=True)
                    table[name][str(one)]["score"] = {str(m): x for m, x in sizes}
        return table

    def _by_scores(
        self, stacked: dict[str, dict[int, torch.Tensor]]
    ) -> dict[int, tuple[list[str], list[torch.Tensor]]]:
        """Methods whose scores a pool may go by, and their ranks, by the budget that these hold for; 0: for all."""
        found: dict[int, tuple[list[str], list[torch.Tensor]]] = {}
        for method in self._methods:
            for budget, rank in stacked[method.name].items() if method.kind in (*_STEADY, *BIASED) else ():
                names, ranks = found.setdefault(budget, ([], []))
                names.append(method.name)
                ranks.append(rank)
        return found


def judge_path(
    decoder: Decoder, dense: Dense, method: Method, budget: int, *, config: StudyConfig, scorer: Scorer
) -> Numbers:
    """What comes out of a window when every layer attends to the method's choice: KL, agreement, losses."""
    out = run_path(decoder, dense, method, budget, scorer=scorer, spec=config.spec)
    found = compare(decoder, dense.out[:-1], out[:-1], dense.ids[dense.first + 1 :])
    return attrs.asdict(found)


def judge_task(
    decoder: Decoder, task: Task, methods: Sequence[Method], *, config: StudyConfig, scorer: Scorer,
    device: torch.device,
) -> Numbers:  # fmt: skip
    """One prompt under the dense model and every method and budget: [exact, accuracy, nats per answer token].

    The prompt is read densely up to its question; the question and the answer follow the sparse path.
    """
    ids = torch.tensor(task.tokens[:-1], device=device)
    target = torch.tensor(task.answer, device=device)
    dense = run_dense(
        decoder, ids, first=len(task.prompt) - task.asked, spec=config.spec, channels=channels_of(methods)
    )
    last = slice(task.asked - 1, None)

    def score(out: torch.Tensor) -> list[float]:
        exact, accuracy, nll = answer(decoder, out[last], target)
        return [float(exact), accuracy, nll]

    def under(method: Method, budget: int) -> list[float]:
        return score(run_path(decoder, dense, method, budget, scorer=scorer, spec=config.spec))

    return {
        "dense": score(dense.out),
        "methods": {m.name: {str(b): under(m, b) for b in config.task_budgets} for m in methods},
    }
