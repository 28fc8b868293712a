"""What a study measures: every number that decides its result. Torch-free."""

from __future__ import annotations

from typing import Any, Self

import attrs

from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec, check_integer

BUDGETS = (8, 12, 16, 24, 32)
TASKS = ("passkey", "keys", "copy", "variables")
#: Slots of a device pool, in selections.
MULTIPLES = (1, 2, 4)


@attrs.frozen(kw_only=True)
class StudyConfig:
    """One study.

    spec         the cut; its window and stride are the entries of methods that name none, its budget is not used
    budgets      total blocks a KV head, forced ones included
    window       tokens of a window of text
    first        first position that is judged; every one from here on is, and the sparse path starts here
    path_budgets budgets of the sparse path (KL, agreement, perplexity)
    slot_budgets budgets whose misses are counted
    task_budgets budgets of the tasks
    samples      prompts of each task; 0 for none
    task_tokens  tokens of a prompt
    seed         of `random`, the tasks and the bootstrap
    select_blocks  blocks beside sink and local that `nosa` and `nosa-forecast` take by score, the query's own among
                 them; 0: of the free blocks of each budget, the share that go by score at NOSA-8B's 96 (23 of 78)
    """

    spec: BlockSpec = attrs.field(factory=BlockSpec)
    budgets: tuple[int, ...] = BUDGETS
    window: int = 8192
    first: int = 4096
    path_budgets: tuple[int, ...] = BUDGETS
    slot_budgets: tuple[int, ...] = (8, 16, 32)
    task_budgets: tuple[int, ...] = (8, 16, 32)
    tasks: tuple[str, ...] = TASKS
    samples: int = 24
    task_tokens: int = 4096
    seed: int = 0
    select_blocks: int = 0

    def __attrs_post_init__(self) -> None:
        least = {"window": 2, "first": 1, "samples": 0, "task_tokens": 64, "seed": 0, "select_blocks": 0}
        for name, bound in least.items():
            check_integer(name, getattr(self, name), bound)
        if self.first > self.window - 2:
            raise ConfigError(f"first={self.first} must be <= window - 2 = {self.window - 2}: judge two positions")
        if not self.budgets:
            raise ConfigError("budgets are none; name at least one")
        for name in ("budgets", "path_budgets", "slot_budgets", "task_budgets"):
            self._check_budgets(name)
        unknown = sorted(set(self.tasks) - set(TASKS))
        if unknown:
            raise ConfigError(f"tasks={unknown} are unknown; known: {', '.join(TASKS)}")

    def _check_budgets(self, name: str) -> None:
        budgets = getattr(self, name)
        if list(budgets) != sorted(set(budgets)):
            raise ConfigError(f"{name}={budgets} must rise, each named once")
        for budget in budgets:
            if self.spec.with_budget(budget).free < 1:
                raise ConfigError(f"{name}: {budget} must be > forced={self.spec.forced}: nothing is free to choose")
            least = self.spec.sink + self.spec.local + self.select_blocks
            if budget < least:
                raise ConfigError(
                    f"{name}: {budget} must be >= {least} = sink + local + select_blocks={self.select_blocks}: raise "
                    "the budget, or lower --select-blocks"
                )

    @property
    def positions(self) -> int:
        """Positions judged in a window."""
        return self.window - self.first

    @property
    def warm(self) -> int:
        """Steps at the start of a window whose misses are not counted: the slots still fill."""
        return max(1, self.positions // 4)

    @classmethod
    def quick(cls, **changes: Any) -> Self:
        """A study that two cores finish in minutes: the last 256 positions of short windows, few budgets and prompts.

        Windows of half the length take a quarter of the attention; prompts are as long as in the whole study.
        """
        small: dict[str, Any] = {
            "window": 4096, "first": 3840, "budgets": (8, 16, 32), "path_budgets": (8, 16, 32), "slot_budgets": (16,),
            "task_budgets": (16,), "samples": 2,
        }  # fmt: skip
        return cls(**(small | changes))
