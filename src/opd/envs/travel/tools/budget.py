"""Budget arithmetic: what a list of prices comes to, and what is left of a budget."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from opd.agent.toolset import Arguments, Tool
from opd.envs.travel.database import Database
from opd.envs.travel.tools.common import Price

Quantity = Annotated[int, Field(ge=0, le=10_000)]
_MAX_ITEMS = 100


class CostList(Arguments):
    """Arguments of `add_costs`."""

    prices: list[Price] = Field(max_length=_MAX_ITEMS, description="Prices to add.")
    quantities: list[Quantity] | None = Field(
        default=None, max_length=_MAX_ITEMS, description="How often each price is paid, in the same order; default 1."
    )
    budget: Price | None = Field(default=None, description="Budget to compare with.")

    @model_validator(mode="after")
    def _same_length(self) -> "CostList":
        if self.quantities is not None and len(self.quantities) != len(self.prices):
            raise ValueError(
                f"quantities has {len(self.quantities)} entries and prices {len(self.prices)}: give one for each price"
            )
        return self


def _add_costs(_: Database, arguments: CostList) -> dict[str, Any]:
    quantities = arguments.quantities or [1] * len(arguments.prices)
    total = sum(price * quantity for price, quantity in zip(arguments.prices, quantities, strict=True))
    reply: dict[str, Any] = {"total": total}
    if arguments.budget is not None:
        reply["left"] = arguments.budget - total
    return reply


ADD_COSTS = Tool("add_costs", "Total of prices times quantities, and what is left of a budget.", CostList, _add_costs)
