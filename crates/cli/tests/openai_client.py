"""Uses a running engine through the official client: `openai_client.py http://127.0.0.1:PORT/v1`.

The language model has random weights, so that its words mean nothing; the forms of its answers count.
"""

import base64
import json
import sys

from openai import APIStatusError, NotFoundError, OpenAI, UnprocessableEntityError

client = OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0)
QUESTION = [{"role": "user", "content": "Name a fruit."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["apple", "pear"]}, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"enum": ["Graz", "Linz"]}},
            "required": ["town"],
        },
    },
}


def models():
    ids = [model.id for model in client.models.list()]
    assert {"tiny", "vectors", "inline/demo"} <= set(ids), ids


def chat():
    options = dict(model="tiny", messages=QUESTION, seed=5, max_completion_tokens=20)
    whole = client.chat.completions.create(**options, logprobs=True, top_logprobs=3)
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and choice.message.content, whole
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in choice.logprobs.content)
    said, usage, reason = "", None, None
    for chunk in client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for piece in chunk.choices:
            said += piece.delta.content or ""
            reason = piece.finish_reason or reason
    assert (said, usage, reason) == (choice.message.content, whole.usage, choice.finish_reason), (said, whole)
    several = client.chat.completions.create(**options, n=2)
    assert [c.index for c in several.choices] == [0, 1] and several.choices[0].message == choice.message
    with client.chat.completions.with_raw_response.create(**options, stream=True).parse() as stream:
        next(iter(stream))  # and goes away in mid-stream


def tools():
    options = dict(model="tiny", messages=QUESTION, seed=1, max_tokens=200, tools=[TOOL], tool_choice="required")
    choice = client.chat.completions.create(**options).choices[0]
    call = choice.message.tool_calls[0]
    assert choice.finish_reason == "tool_calls" and call.function.name == "get_weather", choice
    assert json.loads(call.function.arguments)["town"] in ("Graz", "Linz"), call
    streamed = ""
    for chunk in client.chat.completions.create(**options, stream=True):
        for delta in (piece.delta for piece in chunk.choices):
            streamed += "".join(part.function.arguments or "" for part in delta.tool_calls or [])
    assert streamed == call.function.arguments
    answer = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    messages = QUESTION + [choice.message.model_dump(exclude_none=True), answer]
    assert client.chat.completions.create(model="tiny", messages=messages, tools=[TOOL], max_tokens=8).choices


def json_schema():
    form = {"type": "json_schema", "json_schema": {"name": "fruit", "strict": True, "schema": SCHEMA}}
    for seed in range(3):
        options = dict(model="tiny", messages=QUESTION, seed=seed, max_tokens=200, response_format=form)
        # A random model would open thoughts and never close them.
        made = client.chat.completions.create(**options, extra_body={"thinking": False})
        fruit = json.loads(made.choices[0].message.content)
        assert set(fruit) == {"name", "count"} and fruit["name"] in ("apple", "pear") and 1 <= fruit["count"] <= 9


def completions():
    one = client.completions.create(model="tiny", prompt="a red", max_tokens=12, seed=3, logprobs=2)
    tokens = one.choices[0].logprobs.tokens
    assert one.choices[0].text and 0 < len(tokens) <= one.usage.completion_tokens
    pieces = client.completions.create(model="tiny", prompt="a red", max_tokens=12, seed=3, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == one.choices[0].text
    several = client.completions.create(model="tiny", prompt=["a red", "a green"], max_tokens=4, echo=True)
    assert [c.text.startswith(p) for c, p in zip(several.choices, ["a red", "a green"])] == [True, True]


def embeddings():
    # The client asks for base64 by itself and turns it back into numbers.
    coded = client.embeddings.create(model="vectors", input=["a red apple", "a green pear"])
    plain = client.embeddings.create(model="vectors", input="a red apple", encoding_format="float")
    first = coded.data[0].embedding
    assert len(coded.data) == 2 and first != coded.data[1].embedding
    assert max(abs(a - b) for a, b in zip(first, plain.data[0].embedding)) < 1e-6


def images():
    options = dict(model="inline/demo", prompt="a red apple", size="64x64", response_format="b64_json")
    made = client.images.generate(**options, extra_body={"seed": 1, "steps": 2})
    assert base64.b64decode(made.data[0].b64_json).startswith(b"\x89PNG\r\n")


def refusals():
    def refused(kind, **changed):
        try:
            client.chat.completions.create(**{"model": "tiny", "messages": QUESTION, "max_tokens": 4, **changed})
        except kind as error:
            assert isinstance(error, APIStatusError) and error.message, error
            return error.param
        raise AssertionError(f"{changed} was not refused")

    assert refused(NotFoundError, model="gpt-4o") == "model"
    assert refused(UnprocessableEntityError, max_tokens=0) == "max_tokens"
    assert refused(UnprocessableEntityError, logit_bias={"1": 1}) == "logit_bias"
    assert refused(UnprocessableEntityError, messages=[{"role": "user", "content": "word " * 5000}]) == "messages"


for check in (models, chat, tools, json_schema, completions, embeddings, images, refusals):
    check()
    print(f"{check.__name__}: as it should be")
