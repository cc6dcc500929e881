// OpenAI's client for Node, with its helpers: any server with the built-in model will do (NEURONSERVE_URL).
import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: `${process.env.NEURONSERVE_URL}/v1`, apiKey: "any", maxRetries: 0 });
const model = "fake";
const sum = [{ role: "user", content: "What is 3 + 4?" }];
const weather = [{ role: "user", content: "What is the weather in Oslo?" }];
const Person = z.object({ name: z.string().max(12), age: z.number().int().min(0).max(150) });
const City = z.object({ city: z.string().max(20) });
const cloudy = { temperature: 17, condition: "cloudy" }; // as the built-in model was taught
const description = "Get the current weather in a city.";

test("chats whole and streamed", async () => {
  const whole = await client.chat.completions.create({ model, messages: sum, temperature: 0 });
  const stream = await client.chat.completions.create({ model, messages: sum, temperature: 0, stream: true });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0].delta.content ?? "";
  assert.match(text, /7/);
  assert.equal(text, whole.choices[0].message.content);
  const helper = client.chat.completions.stream({ model, messages: sum, temperature: 0 });
  assert.equal(await helper.finalContent(), text);
  assert.equal((await helper.finalChatCompletion()).choices[0].finish_reason, "stop");
});

test("chats parse into types", async () => {
  const response_format = zodResponseFormat(Person, "person");
  const made = await client.chat.completions.parse({ model, messages: sum, response_format, max_tokens: 200 });
  Person.parse(made.choices[0].message.parsed);
  const stream = client.chat.completions.stream({ model, messages: sum, response_format, max_tokens: 200 });
  Person.parse((await stream.finalChatCompletion()).choices[0].message.parsed);
});

test("tools are run by the helper", async () => {
  const asked = [];
  const tool = zodFunction({
    name: "get_weather",
    description,
    parameters: City,
    function: ({ city }) => (asked.push(city), cloudy),
  });
  for (const stream of [false, true]) {
    const runner = client.chat.completions.runTools({ model, messages: weather, tools: [tool], temperature: 0, stream });
    assert.match(await runner.finalContent(), /cloudy/);
  }
  assert.deepEqual(asked, ["Oslo", "Oslo"]);
});

test("responses whole, streamed and parsed", async () => {
  const whole = await client.responses.create({ model, input: "What is 3 + 4?", temperature: 0 });
  assert.match(whole.output_text, /7/);
  const stream = client.responses.stream({ model, input: "What is 3 + 4?", temperature: 0 });
  const kinds = [];
  for await (const event of stream) kinds.push(event.type);
  assert.equal(kinds.at(-1), "response.completed");
  assert.equal((await stream.finalResponse()).output_text, whole.output_text);
  const text = { format: zodTextFormat(Person, "person") };
  const parsed = await client.responses.parse({ model, input: "Who?", text, max_output_tokens: 200 });
  Person.parse(parsed.output_parsed);
  const next = { model, input: "Thank you.", previous_response_id: whole.id };
  assert.ok((await client.responses.create(next)).usage.input_tokens > whole.usage.input_tokens);
});

test("completions, embeddings and models", async () => {
  const options = { model, prompt: "Once upon a time", max_tokens: 8, temperature: 0 };
  const whole = await client.completions.create(options);
  let text = "";
  for await (const chunk of await client.completions.create({ ...options, stream: true })) text += chunk.choices[0].text;
  assert.equal(text, whole.choices[0].text);
  const packed = await client.embeddings.create({ model, input: ["a cat", "a dog"] }); // base64 on the wire
  const plain = await client.embeddings.create({ model, input: "a cat", encoding_format: "float" });
  assert.equal(packed.data[1].embedding.length, 256);
  packed.data[0].embedding.forEach((value, i) => assert.ok(Math.abs(value - plain.data[0].embedding[i]) < 1e-5));
  const names = [];
  for await (const each of client.models.list()) names.push(each.id);
  assert.deepEqual(names, [model]);
});

test("batches", async () => {
  const body = { model, messages: sum, max_tokens: 8 };
  const line = { custom_id: "a", method: "POST", url: "/v1/chat/completions", body };
  const file = await client.files.create({
    file: await OpenAI.toFile(Buffer.from(JSON.stringify(line)), "in.jsonl"),
    purpose: "batch",
  });
  let batch = await client.batches.create({
    input_file_id: file.id,
    endpoint: line.url,
    completion_window: "24h",
  });
  while (!["completed", "failed"].includes(batch.status)) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    batch = await client.batches.retrieve(batch.id);
  }
  assert.equal(batch.request_counts.completed, 1);
  const answer = JSON.parse(await (await client.files.content(batch.output_file_id)).text());
  assert.equal(answer.response.status_code, 200);
});

test("errors have their classes and fields", async () => {
  const bad = client.chat.completions.create({ model, messages: sum, temperature: 9 });
  await assert.rejects(bad, (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
  await assert.rejects(client.moderations.create({ input: "a" }), { status: 404, code: "not_supported" });
  const stream = client.chat.completions.stream({ model, messages: sum, n: 999 });
  await assert.rejects(stream.finalContent(), { status: 400, param: "n" });
});

test("a stream that its reader leaves is over", async () => {
  const stream = await client.chat.completions.create({ model, messages: sum, stream: true, max_tokens: 900 });
  for await (const _ of stream) break;
  assert.ok(stream.controller.signal.aborted);
});
