// The request that a conversation makes, as a program.

const asPython = (value, indent) => {
  const text = JSON.stringify(value, null, 4) ?? "None";
  return text
    .replace(/("(?:[^"\\]|\\.)*")|\b(true|false|null)\b/g, (_, string, word) => string ?? { true: "True", false: "False", null: "None" }[word])
    .replaceAll("\n", `\n${" ".repeat(indent)}`);
};

/** Fields of the openai package; others go into `extra_body`. */
const KNOWN = new Set(["model", "messages", "stream", "stream_options", "temperature", "top_p", "max_tokens", "seed", "stop", "logprobs", "top_logprobs", "tools", "tool_choice", "response_format"]);

/** Texts by language. `body.model` is set. */
export function snippets(body, origin, hasKey) {
  const key = hasKey ? "YOUR_API_KEY" : "none";
  const json = JSON.stringify(body, null, 2);
  const fields = Object.entries(body).filter(([name, value]) => KNOWN.has(name) && value !== undefined);
  const extra = Object.fromEntries(Object.entries(body).filter(([name, value]) => !KNOWN.has(name) && value !== undefined));
  const python = fields.map(([name, value]) => `    ${name}=${asPython(value, 4)},`);
  if (Object.keys(extra).length) python.push(`    extra_body=${asPython(extra, 4)},`);
  return {
    curl: [
      `curl -N ${origin}/v1/chat/completions \\`,
      ...(hasKey ? [`  -H 'Authorization: Bearer ${key}' \\`] : []),
      "  -H 'Content-Type: application/json' \\",
      `  -d '${json.replaceAll("'", "'\\''")}'`,
    ].join("\n"),
    Python: [
      "from openai import OpenAI",
      "",
      `client = OpenAI(base_url="${origin}/v1", api_key="${key}")`,
      "stream = client.chat.completions.create(",
      ...python,
      ")",
      "for chunk in stream:",
      "    if chunk.choices:",
      '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
    ].join("\n"),
    JavaScript: [
      'import OpenAI from "openai";',
      "",
      `const client = new OpenAI({ baseURL: "${origin}/v1", apiKey: "${key}" });`,
      `const stream = await client.chat.completions.create(${json});`,
      "for await (const chunk of stream) {",
      '  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");',
      "}",
    ].join("\n"),
  };
}
