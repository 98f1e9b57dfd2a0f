"""The travel tools: `TOOLS` is the set that the model is offered, in the order of its prompt."""

from opd.agent.toolset import Tool
from opd.envs.travel.database import open_database
from opd.envs.travel.manifest import verify_folder as verify_database
from opd.envs.travel.tools.budget import ADD_COSTS
from opd.envs.travel.tools.lookup import GET_OPENING_HOURS, GET_PRICE
from opd.envs.travel.tools.maps import CITY_DISTANCE, PLACE_DISTANCE
from opd.envs.travel.tools.search import SEARCH_ATTRACTIONS, SEARCH_HOTELS, SEARCH_RESTAURANTS
from opd.envs.travel.tools.transport import SEARCH_FLIGHTS, SEARCH_TRAINS

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

__all__ = ["TOOLS", "open_database", "verify_database"]
