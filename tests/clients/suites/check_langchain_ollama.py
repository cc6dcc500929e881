"""LangChain's `ChatOllama` and `OllamaEmbeddings`, which take the server for Ollama."""

from __future__ import annotations

from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM


def test_chats_streams_and_tools(url: str) -> None:
    model = ChatOllama(model="fake", base_url=url, temperature=0, num_predict=200, validate_model_on_init=True)
    whole = model.invoke("What is 3 + 4?")
    assert "7" in str(whole.content)
    assert "".join(str(chunk.content) for chunk in model.stream("What is 3 + 4?")) == whole.content

    def get_weather(city: str) -> str:
        """Get the current weather in a city"""
        return city

    (call,) = model.bind_tools([get_weather]).invoke("What is the weather in Oslo?").tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Oslo"})


def test_texts_and_vectors(url: str) -> None:
    assert OllamaLLM(model="fake", base_url=url, temperature=0, num_predict=8).invoke("Once upon a time")
    one, two = OllamaEmbeddings(model="fake", base_url=url).embed_documents(["a cat", "a dog"])
    assert len(one) == len(two)
    assert one != two
