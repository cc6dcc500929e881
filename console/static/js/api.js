// Requests to the server, with the key that the user gave. The key is kept for this tab alone.

const KEY = "neuronserve-key";
const ADMIN_KEY = "neuronserve-admin-key";

export const keys = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
  getAdmin: () => sessionStorage.getItem(ADMIN_KEY) ?? "",
  setAdmin: (value) => sessionStorage.setItem(ADMIN_KEY, value),
};

/** An error answer of the server, or none at all (status 0). */
export class ApiError extends Error {
  constructor(status, message, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/** Whether the key is none of the server's, or does not open what was asked for. */
export const isKeyRefused = (status) => status === 401 || status === 403;

/** The answer to a request that succeeded. Throws ApiError; a wrong key is also reported to `onKeyNeeded`. */
export async function ask(path, { body, text = body && JSON.stringify(body), headers = {}, signal, isAdmin = false } = {}) {
  const key = (isAdmin && keys.getAdmin()) || keys.get();
  const init = { method: text === undefined ? "GET" : "POST", headers: { ...headers }, signal, cache: "no-store" };
  if (key) init.headers.Authorization = `Bearer ${key}`;
  if (text !== undefined) {
    init.headers["Content-Type"] = "application/json";
    init.body = text;
  }
  let answer;
  try {
    answer = await fetch(path, init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (answer.ok) return answer;
  const found = await answer.json().catch(() => ({}));
  if (isKeyRefused(answer.status) && !isAdmin) keyNeeded.listeners.forEach((listener) => listener());
  throw new ApiError(answer.status, found.error?.message ?? `HTTP status ${answer.status}`, found.error?.param);
}

/** Who is told that the server wants a key. */
export const keyNeeded = { listeners: new Set() };

/** The JSON payloads of an event stream, one after the other; `comment` is called with the lines of comments between. */
export async function* eventsOf(answer, comment = () => {}) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith(":")) comment(line);
        if (!line.startsWith("data: ")) continue;
        const data = line.slice(6);
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(500, event.error.message);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
