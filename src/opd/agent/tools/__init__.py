"""The travel tools: `TOOLS` is the set that the model is offered, in the order of its prompt."""

from opd.agent.tools.budget import ADD_COSTS
from opd.agent.tools.lookup import GET_OPENING_HOURS, GET_PRICE
from opd.agent.tools.maps import CITY_DISTANCE, PLACE_DISTANCE
from opd.agent.tools.registry import (
    DEFAULT_TOOLSET,
    BadArguments,
    Tool,
    load_toolset,
    render,
    tool_schemas,
)
from opd.agent.tools.search import SEARCH_ATTRACTIONS, SEARCH_HOTELS, SEARCH_RESTAURANTS
from opd.agent.tools.transport import SEARCH_FLIGHTS, SEARCH_TRAINS

TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        SEARCH_FLIGHTS,
        SEARCH_TRAINS,
        SEARCH_HOTELS,
        SEARCH_RESTAURANTS,
        SEARCH_ATTRACTIONS,
        GET_PRICE,
        GET_OPENING_HOURS,
        CITY_DISTANCE,
        PLACE_DISTANCE,
        ADD_COSTS,
    )
}

__all__ = ["DEFAULT_TOOLSET", "TOOLS", "BadArguments", "Tool", "load_toolset", "render", "tool_schemas"]
