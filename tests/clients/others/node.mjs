// openai-node: texts, streams, chats, tools, embeddings, responses, errors, and a stream that is left.
import assert from "node:assert";
import { copyFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0 });
const prompt = "The capital of France is";
const messages = [{ role: "user", content: prompt }];

const names = [];
for await (const model of client.models.list()) names.push(model.id);
assert.deepStrictEqual(names.sort(), ["capitals", "encoder", "long", "qwen"]);

const text = await client.completions.create({ model: "capitals", prompt, max_tokens: 2, temperature: 0 });
assert.strictEqual(text.choices[0].text, " Paris.");
const plain = await client.chat.completions.create({ model: "qwen", messages, max_tokens: 16, temperature: 0 });
let joined = "";
const stream = await client.chat.completions.create({ model: "qwen", messages, max_tokens: 16, temperature: 0, stream: true });
for await (const chunk of stream) joined += chunk.choices[0]?.delta.content ?? "";
assert.strictEqual(joined, plain.choices[0].message.content);

const parameters = { type: "object", properties: { city: { enum: ["Paris", "Tokyo"] } }, required: ["city"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const called = await client.chat.completions.create({ model: "qwen", messages, tools, tool_choice: "required", parallel_tool_calls: false, max_tokens: 300, temperature: 0 });
assert.ok(["Paris", "Tokyo"].includes(JSON.parse(called.choices[0].message.tool_calls[0].function.arguments).city));

const vectors = await client.embeddings.create({ model: "encoder", input: [prompt, "Tokyo"] });
assert.ok(vectors.data.length === 2 && vectors.data[0].embedding.length > 8);
const response = await client.responses.create({ model: "qwen", input: prompt, max_output_tokens: 16, temperature: 0 });
assert.strictEqual(response.object, "response");
await assert.rejects(client.chat.completions.create({ model: "missing", messages }), OpenAI.NotFoundError);
await assert.rejects(client.completions.create({ model: "capitals", prompt, temperature: 9 }), OpenAI.BadRequestError);
await assert.rejects(new OpenAI({ apiKey: "sk-wrong", maxRetries: 0 }).models.list(), OpenAI.AuthenticationError);

const long = await client.completions.create({ model: "long", prompt: "a", max_tokens: 20000, stream: true, ignore_eos: true });
for await (const _ of long) break;
const own = fileURLToPath(new URL("page.mjs", import.meta.url)); // the lines of docs/serve.md
copyFileSync(`${process.env.SERVED}/page.mjs`, own);
const log = console.log;
const printed = [];
console.log = (line) => printed.push(line);
await import(own);
console.log = log;
assert.deepStrictEqual(printed, [" Paris"]);
console.log("openai-node: texts, streams, chats, tools, embeddings, responses, errors, a stream that was left");
