"""An agent program that knows HTTP alone: it asks, answers every call with the price 42, and scores the last answer."""

import httpx

GET_PRICE = {"type": "function", "function": {"name": "get_price", "parameters": {"type": "object", "properties": {}}}}


def post(base_url, api_key, messages, tools, **more):
    """One request's message."""
    body = {"model": "student", "messages": messages, "tools": tools, **more}
    headers = {"Authorization": f"Bearer {api_key}"}
    answer = httpx.post(f"{base_url}/chat/completions", json=body, headers=headers, timeout=60)
    return answer.raise_for_status().json()["choices"][0]["message"]


async def ask(base_url, api_key, model, row):
    messages = list(row["raw_prompt"])
    while (said := post(base_url, api_key, messages, [GET_PRICE])).get("tool_calls"):
        replies = [{"role": "tool", "content": "42", "tool_call_id": call["id"]} for call in said["tool_calls"]]
        messages += [said, *replies]
    return float("42" in said["content"])
