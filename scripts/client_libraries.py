"""Uses third-party libraries with the server, as their documentation describes. Run by check_clients.py.

Each check takes the server's URL, ending in /v1. The default model is too small for correct answers, so the checks are
about the form: each client has to get what it asks for, parsed and validated by the client itself.
"""

import asyncio
import json
import sys
import time

from pydantic import BaseModel, Field
from servers import DEFAULT_MODEL

QUESTION = [{"role": "user", "content": "How is the weather in Paris today?"}]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city", "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
                   "required": ["city", "days"], "additionalProperties": False}}}


class Person(BaseModel):
    """Somebody."""
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)


def check_openai(url):
    from openai import BadRequestError, OpenAI
    client = OpenAI(base_url=url, api_key="none")
    options = {"model": DEFAULT_MODEL, "messages": QUESTION, "seed": 1, "max_tokens": 60}
    whole = client.chat.completions.create(**options).choices[0].message.content
    stream = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole
    assert chunks[-1].usage.completion_tokens > 0

    person = client.chat.completions.parse(model=DEFAULT_MODEL, messages=[{"role": "user", "content": "Make somebody up."}], seed=1,
                                           response_format=Person, max_tokens=100).choices[0].message.parsed
    assert isinstance(person, Person)

    forced = client.chat.completions.create(**options, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    call = forced.choices[0].message.tool_calls[0]
    assert forced.choices[0].finish_reason == "tool_calls" and json.loads(call.function.arguments)["days"] >= 1
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(
        **options, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, stream=True) if chunk.choices]
    pieces = [delta.tool_calls[0] for delta in deltas if delta.tool_calls]
    assert pieces[0].id and pieces[0].function.name == "get_weather"
    assert "".join(piece.function.arguments or "" for piece in pieces) == call.function.arguments
    history = QUESTION + [forced.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}]
    assert client.chat.completions.create(**{**options, "messages": history}, tools=[WEATHER]).choices[0].finish_reason
    try:
        client.chat.completions.create(**options, response_format={"type": "json_schema", "json_schema": {
            "name": "bad", "schema": {"type": "object", "properties": {"a": {"not": {}}}}}})
        raise AssertionError("an unsupported keyword was taken")
    except BadRequestError as error:
        assert error.param.endswith("properties.a.not"), error.param


def check_responses(url):
    from openai import OpenAI
    client = OpenAI(base_url=url, api_key="none")
    options = {"model": DEFAULT_MODEL, "input": "How is the weather in Paris today?", "max_output_tokens": 40, "store": False, "temperature": 0}
    whole = client.responses.create(**options)
    assert whole.output_text and whole.usage.output_tokens > 0
    events = list(client.responses.create(**options, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[0].type == "response.created" and events[-1].type in ("response.completed", "response.incomplete")
    assert isinstance(client.responses.parse(model=DEFAULT_MODEL, input="Make somebody up.", text_format=Person, store=False,
                                             max_output_tokens=100).output_parsed, Person)
    tool = {"type": "function", **WEATHER["function"]}
    called = client.responses.create(**options, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    call = next(item for item in called.output if item.type == "function_call")
    assert json.loads(call.arguments)["days"] >= 1
    turns = [{"role": "user", "content": options["input"]}, *called.output,
             {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}]
    assert client.responses.create(**{**options, "input": turns}, tools=[tool], instructions="Be brief.").output
    check_stored_responses(client, {**options, "store": True})


def check_stored_responses(client, options):
    from openai import BadRequestError, NotFoundError
    first = client.responses.create(**options)
    assert first.store and client.responses.retrieve(first.id) == first
    follow_up = {**options, "input": "And tomorrow?"}
    continued = client.responses.create(**follow_up, previous_response_id=first.id)
    turns = [{"role": "user", "content": options["input"]}, *first.output, {"role": "user", "content": "And tomorrow?"}]
    assert continued.output_text == client.responses.create(**{**options, "input": turns}).output_text
    assert continued.usage.input_tokens_details.cached_tokens > 0
    items = list(client.responses.input_items.list(continued.id, order="asc", limit=2))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    streamed = list(client.responses.create(**follow_up, previous_response_id=first.id, stream=True))[-1].response
    assert streamed.output_text == continued.output_text and client.responses.retrieve(streamed.id).output_text == streamed.output_text

    waiting = client.responses.create(**options, background=True)
    while waiting.status in ("queued", "in_progress"):
        time.sleep(0.05)
        waiting = client.responses.retrieve(waiting.id)
    assert waiting.output_text == first.output_text
    endless = {**options, "max_output_tokens": 2000, "extra_body": {"ignore_eos": True}}
    long = client.responses.create(**endless, background=True)
    assert client.responses.cancel(long.id).status == "cancelled"
    client.responses.delete(first.id)
    for ask, error in ((lambda: client.responses.retrieve(first.id), NotFoundError),
                       (lambda: client.responses.create(**follow_up, previous_response_id=continued.id), BadRequestError)):
        try:
            ask()
            raise AssertionError("a deleted response was found")
        except error:
            pass


def check_openai_agents(url):
    """An agent with a tool, through the responses API and through chat, whole and streamed."""
    from agents import (
        Agent,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=url, api_key="none")
    cities = []

    @function_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        settings.tool_choice = "none"  # the default model would call it again and again
        return "Sunny, 21 degrees."

    async def use():
        for make in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
            agent = Agent(name="weather", instructions="Answer questions about the weather.", tools=[get_weather], model_settings=settings,
                          reset_tool_choice=False, model=make(model=DEFAULT_MODEL, openai_client=client))
            cities.clear()
            settings.tool_choice = "get_weather"
            result = await Runner.run(agent, QUESTION[0]["content"], max_turns=4)
            assert cities and result.final_output
            if make is OpenAIResponsesModel:
                plain = Agent(name="plain", model_settings=ModelSettings(temperature=0, max_tokens=20), model=agent.model)
                more = await Runner.run(plain, "Thank you.", previous_response_id=result.last_response_id)
                assert more.final_output and more.last_response_id != result.last_response_id
            settings.tool_choice = "get_weather"
            run = Runner.run_streamed(agent, QUESTION[0]["content"], max_turns=4)
            kinds = {event.type async for event in run.stream_events()}
            assert run.final_output and {"raw_response_event", "run_item_stream_event"} <= kinds

    settings = ModelSettings(temperature=0, max_tokens=60)
    asyncio.run(use())


def check_anthropic(url):
    import anthropic
    client = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0)
    options = {"model": DEFAULT_MODEL, "messages": QUESTION, "max_tokens": 40, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**options)
    assert whole.type == "message" and whole.role == "assistant" and whole.id.startswith("msg_")
    assert whole._request_id == "req_" + whole.id[4:]
    assert whole.content[0].text and whole.stop_reason in ("end_turn", "max_tokens")
    assert whole.usage.output_tokens > 0 and whole.usage.model_extra["smartkv"]["kv_cache"]["policy"]
    with client.messages.stream(**options) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text and final.stop_reason == whole.stop_reason
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    cached = client.messages.create(**options, cache_control={"type": "ephemeral", "ttl": "1h"})
    prompt = whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    assert cached.usage.cache_read_input_tokens + cached.usage.cache_creation_input_tokens == prompt and cached.usage.input_tokens == 0
    assert cached.usage.cache_creation.ephemeral_1h_input_tokens == cached.usage.cache_creation_input_tokens

    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    counted = client.messages.count_tokens(model=DEFAULT_MODEL, messages=QUESTION, system=system).input_tokens
    usage = client.messages.create(**options, system=system).usage
    assert counted == usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    headed = client.messages.create(**options, system="x-anthropic-billing-header: cc_version=2.1; cch=1f2;\nBe brief.").usage
    assert headed.model_extra["smartkv"]["prompt_tokens_details"]["changing_lines"] == {"moved": 0, "dropped": 1}
    assert counted == headed.input_tokens + headed.cache_read_input_tokens
    begun = [*QUESTION, {"role": "assistant", "content": "In Paris it is"}]
    assert client.messages.create(**{**options, "messages": begun}).content[0].text
    first = whole.content[0].text.split()[1]
    stopped = client.messages.create(**options, stop_sequences=[first])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == first

    tool = {"name": WEATHER["function"]["name"], "description": WEATHER["function"]["description"], "strict": True,
            "input_schema": WEATHER["function"]["parameters"]}
    called = client.messages.create(**options, tools=[tool], tool_choice={"type": "any", "disable_parallel_tool_use": True})
    call = next(block for block in called.content if block.type == "tool_use")
    assert called.stop_reason == "tool_use" and call.name == "get_weather" and call.input["days"] >= 1
    with client.messages.stream(**options, tools=[tool], tool_choice={"type": "tool", "name": "get_weather"}) as stream:
        streamed = next(block for block in stream.get_final_message().content if block.type == "tool_use")
    assert streamed.input == call.input and streamed.id != call.id
    history = [*QUESTION, {"role": "assistant", "content": called.content},
               {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}]}]
    assert client.messages.create(**{**options, "messages": history}, tools=[tool], tool_choice={"type": "none"}).content
    assert client.messages.count_tokens(model=DEFAULT_MODEL, messages=history, tools=[tool]).input_tokens > counted
    schema = client.messages.create(**{**options, "max_tokens": 100}, output_config={"format": {
        "type": "json_schema", "schema": Person.model_json_schema()}}).content[0].text
    Person.model_validate_json(schema)
    assert [model.id for model in client.models.list()][0] == client.models.retrieve(DEFAULT_MODEL).id

    try:
        client.messages.create(**{**options, "model": "claude"})
        raise AssertionError("an unknown model was taken")
    except anthropic.NotFoundError as error:
        assert error.type == "not_found_error" and error.request_id.startswith("req_")
    for wrong in ({"top_k": -5}, {"no_such_field": 1}):
        try:
            client.messages.create(**{**options, "extra_body": wrong})
            raise AssertionError("a wrong field was taken")
        except anthropic.BadRequestError as error:
            assert error.type == "invalid_request_error" and next(iter(wrong)) in error.message, error.message
    try:
        client.messages.create(**{**options, "messages": [{"role": "user", "content": "word " * 20000}]})
        raise AssertionError("a prompt beyond the context was taken")
    except anthropic.BadRequestError as error:
        assert "prompt is too long" in error.message, error.message


def check_anthropic_thinking(url):
    """The server's template opens each answer with thinking, which the budget ends."""
    import anthropic
    client = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0)
    options = {"model": DEFAULT_MODEL, "messages": QUESTION, "max_tokens": 1060, "extra_body": {"temperature": 0},
               "thinking": {"type": "enabled", "budget_tokens": 1024}}
    whole = client.messages.create(**options)
    assert [block.type for block in whole.content] == ["thinking", "text"], whole.content
    thinking, text = whole.content
    assert thinking.thinking.strip() and thinking.signature and "think>" not in thinking.thinking + text.text
    with client.messages.stream(**options) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_message()
    assert {"thinking", "signature", "text"} <= kinds, kinds
    assert (streamed.content[0].thinking, streamed.content[1].text) == (thinking.thinking, text.text)
    history = [*QUESTION, {"role": "assistant", "content": whole.content}, {"role": "user", "content": "And in Oslo?"}]
    assert client.messages.create(**{**options, "messages": history}).content[0].type == "thinking"
    forged = [{**thinking.model_dump(), "signature": "forged"}, {"type": "text", "text": "Sunny."}]
    history = [*QUESTION, {"role": "assistant", "content": forged}, {"role": "user", "content": "And in Oslo?"}]
    usage = client.messages.create(**{**options, "messages": history}).usage
    assert usage.model_extra["smartkv"]["prompt_tokens_details"]["ignored_thinking"] == 1, usage


def check_pydantic_ai(url):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.output import NativeOutput
    from pydantic_ai.providers.openai import OpenAIProvider
    model = OpenAIChatModel(DEFAULT_MODEL, provider=OpenAIProvider(base_url=url, api_key="none"))
    settings = {"max_tokens": 200, "seed": 1}
    for output in (Person, NativeOutput(Person)):  # with a tool, then with response_format
        agent = Agent(model, output_type=output, model_settings=settings, retries=5)
        assert isinstance(agent.run_sync("Make somebody up.").output, Person)
    agent = Agent(model, output_type=Person, model_settings=settings, retries=5)
    called = []

    @agent.tool_plain
    def today() -> str:
        """The date of today."""
        called.append(True)
        return "2024-05-01"

    assert isinstance(agent.run_sync("Make up somebody who is born today.").output, Person)


def check_instructor(url):
    import instructor
    from instructor.core import IncompleteOutputException, InstructorRetryException
    from openai import OpenAI
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(OpenAI(base_url=url, api_key="none"), mode=mode)
        retries = 3 if mode == instructor.Mode.JSON else 1  # in this mode only the model itself ensures the schema
        try:
            person = client.chat.completions.create(model=DEFAULT_MODEL, response_model=Person, max_retries=retries, max_tokens=100, temperature=1,
                                                    seed=1, messages=[{"role": "user", "content": "Make somebody up: a name and an age."}])
            assert isinstance(person, Person)
        except (InstructorRetryException, IncompleteOutputException):
            if mode != instructor.Mode.JSON:
                raise
            print("  instructor JSON mode: taken, but the small model found no valid person", file=sys.stderr)


def check_langchain(url):
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from openai import LengthFinishReasonError
    model = ChatOpenAI(model=DEFAULT_MODEL, base_url=url, api_key="none", max_tokens=120, seed=1)
    for method in ("function_calling", "json_schema"):
        assert isinstance(model.with_structured_output(Person, method=method).invoke("Make somebody up."), Person)
    try:  # in this mode only the model itself ensures the schema, and that the answer ends
        raw = model.with_structured_output(Person, method="json_mode", include_raw=True).invoke("Make up a person as JSON.")
        assert json.loads(raw["raw"].content) is not None
    except LengthFinishReasonError:
        print("  langchain json_mode: taken, but the small model did not come to an end", file=sys.stderr)

    @tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return city

    answer = model.bind_tools([get_weather], tool_choice="any").invoke("How is the weather in Paris?")
    assert answer.tool_calls[0]["name"] == "get_weather" and "city" in answer.tool_calls[0]["args"]
    assert list(model.stream("Hello"))


def check_litellm(url):
    import litellm
    options = {"model": "openai/" + DEFAULT_MODEL, "api_base": url, "api_key": "none", "max_tokens": 60}
    assert litellm.completion(messages=QUESTION, **options).choices[0].message.content
    forced = litellm.completion(messages=QUESTION, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, **options)
    call = forced.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments)["city"] is not None
    history = QUESTION + [forced.choices[0].message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}]
    assert litellm.completion(messages=history, tools=[WEATHER], **options).choices
    schema = litellm.completion(messages=QUESTION, response_format=Person, **options).choices[0].message.content
    Person.model_validate_json(schema)
    check_litellm_anthropic(litellm, url.removesuffix("/v1"))


def check_litellm_anthropic(litellm, url):
    options = {"model": "anthropic/" + DEFAULT_MODEL, "api_base": url, "api_key": "none", "max_tokens": 60, "temperature": 0}
    whole = litellm.completion(messages=QUESTION, **options)
    assert whole.choices[0].message.content and whole.usage.completion_tokens > 0
    chunks = litellm.completion(messages=QUESTION, stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    forced = litellm.completion(messages=QUESTION, tools=[WEATHER], tool_choice="required", **options)
    call = forced.choices[0].message.tool_calls[0]
    assert forced.choices[0].finish_reason == "tool_calls" and json.loads(call.function.arguments)["city"] is not None
    history = QUESTION + [forced.choices[0].message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}]
    assert litellm.completion(messages=history, tools=[WEATHER], **options).choices
    message = asyncio.run(litellm.anthropic.messages.acreate(messages=QUESTION, **options))
    assert message["content"][0]["text"] == whole.choices[0].message.content


def check_langgraph(url):
    """An agent of langgraph that calls a tool, over chat and over the responses API, with its state kept by langgraph."""
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    @tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return "Sunny in " + city

    for responses in (False, True):
        model = ChatOpenAI(model=DEFAULT_MODEL, base_url=url, api_key="none", max_tokens=60, temperature=0, use_responses_api=responses)
        forced, free = model.bind_tools([get_weather], tool_choice="get_weather"), model.bind_tools([get_weather], tool_choice="none")

        def answer(state):
            called = any(isinstance(message, ToolMessage) for message in state["messages"][-1:])
            return {"messages": [(free if called else forced).invoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", answer)
        graph.add_node("tools", ToolNode([get_weather]))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END, ["tools", END])
        graph.add_edge("tools", "model")
        agent = graph.compile(checkpointer=InMemorySaver())
        thread = {"configurable": {"thread_id": "1"}}
        for turn in (1, 2):
            messages = agent.invoke({"messages": [("user", QUESTION[0]["content"])]}, thread)["messages"]
            assert len(messages) == 4 * turn and messages[-2].content.startswith("Sunny in") and messages[-1].text
