// Vercel's AI SDK: any server with the built-in model will do (NEURONSERVE_URL).
import assert from "node:assert/strict";
import test from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "neuronserve",
  baseURL: `${process.env.NEURONSERVE_URL}/v1`,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const shared = { model: provider("fake"), temperature: 0, maxRetries: 0 };

test("text whole and streamed", async () => {
  const whole = await generateText({ ...shared, prompt: "What is 3 + 4?" });
  assert.match(whole.text, /7/);
  const stream = streamText({ ...shared, prompt: "What is 3 + 4?" });
  let text = "";
  for await (const part of stream.textStream) text += part;
  assert.equal(text, whole.text);
  assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
});

test("tools are called and answered", async () => {
  const asked = [];
  const get_weather = tool({
    description: "Get the current weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: ({ city }) => (asked.push(city), { temperature: 17, condition: "cloudy" }),
  });
  const options = { ...shared, tools: { get_weather }, stopWhen: stepCountIs(3) };
  assert.match((await generateText({ ...options, prompt: "What is the weather in Oslo?" })).text, /cloudy/);
  assert.match(await streamText({ ...options, prompt: "What is the weather in Oslo?" }).text, /cloudy/);
  assert.deepEqual(asked, ["Oslo", "Oslo"]);
});

test("outputs have their type", async () => {
  const schema = z.object({ name: z.string().max(12), age: z.number().int().min(0).max(150) });
  const made = await generateText({
    ...shared,
    prompt: "Ada is 36 years old.",
    output: Output.object({ schema }),
    maxOutputTokens: 200,
  });
  schema.parse(made.output);
});

test("embeddings", async () => {
  const made = await embedMany({ model: provider.embeddingModel("fake"), values: ["a cat", "a dog"], maxRetries: 0 });
  assert.deepEqual(made.embeddings.map((each) => each.length), [256, 256]);
});
