"""An agent program that knows HTTP alone: it asks, answers every call with the price 42, and scores the last answer."""

from typing import Any

import httpx

GET_PRICE = {
    "type": "function",
    "function": {"name": "get_price", "description": "A price.", "parameters": {"type": "object", "properties": {}}},
}


def post(base_url: str, api_key: str, messages: list[Any], tools: list[Any], **more: Any) -> dict[str, Any]:
    """One request's message."""
    body = {"model": "student", "messages": messages, "tools": tools, **more}
    headers = {"Authorization": f"Bearer {api_key}"}
    answer = httpx.post(f"{base_url}/chat/completions", json=body, headers=headers, timeout=60)
    if answer.is_error:
        raise RuntimeError(answer.json()["error"]["message"])
    return answer.json()["choices"][0]["message"]


async def ask(base_url: str, api_key: str, model: str, row: dict[str, Any]) -> float:
    messages = list(row["raw_prompt"])
    while (said := post(base_url, api_key, messages, [GET_PRICE])).get("tool_calls"):
        replies = [{"role": "tool", "content": "42", "tool_call_id": call["id"]} for call in said["tool_calls"]]
        messages += [said, *replies]
    return float("42" in said["content"])
