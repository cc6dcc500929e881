// Vercel's AI SDK with the providers of OpenAI and Anthropic: any server with the built-in model (NEURONSERVE_URL).
import assert from "node:assert/strict";
import test from "node:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const options = { baseURL: `${process.env.NEURONSERVE_URL}/v1`, apiKey: "any" };
const openai = createOpenAI(options);
const models = { responses: openai("fake"), chat: openai.chat("fake"), anthropic: createAnthropic(options)("fake") };

for (const [name, model] of Object.entries(models)) {
  const shared = { model, temperature: 0, maxRetries: 0 };

  test(`${name}: text whole and streamed`, async () => {
    const whole = await generateText({ ...shared, prompt: "What is 3 + 4?" });
    assert.match(whole.text, /7/);
    const stream = streamText({ ...shared, prompt: "What is 3 + 4?" });
    let text = "";
    for await (const part of stream.textStream) text += part;
    assert.equal(text, whole.text);
    assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
  });

  test(`${name}: tools are called and answered`, async () => {
    const asked = [];
    const get_weather = tool({
      description: "Get the current weather in a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: ({ city }) => (asked.push(city), { temperature: 17, condition: "cloudy" }),
    });
    const agent = { ...shared, tools: { get_weather }, stopWhen: stepCountIs(3) };
    const whole = await generateText({ ...agent, prompt: "What is the weather in Oslo?" });
    assert.match(whole.text, /cloudy/);
    assert.equal(whole.steps.length, 2);
    assert.match(await streamText({ ...agent, prompt: "What is the weather in Oslo?" }).text, /cloudy/);
    assert.deepEqual(asked, ["Oslo", "Oslo"]);
  });

  test(`${name}: a conversation goes on with its messages`, async () => {
    const messages = [{ role: "user", content: "What is 3 + 4?" }];
    const first = await generateText({ ...shared, messages });
    messages.push(...first.response.messages, { role: "user", content: "What is 2 + 2?" });
    const second = await generateText({ ...shared, messages });
    assert.ok(second.usage.inputTokens > first.usage.inputTokens);
  });

  test(`${name}: outputs have their type`, async () => {
    const schema = z.object({ name: z.string().max(12), age: z.number().int().min(0).max(150) });
    const output = Output.object({ schema });
    const made = await generateText({ ...shared, prompt: "Ada is 36 years old.", output, maxOutputTokens: 200 });
    schema.parse(made.output);
  });
}
