// Writes zod_schemas.json: `npm install zod@4 zod-to-json-schema@3 && node schemas.mjs`.
import { z } from "zod";
import * as z3 from "zod/v3";
import { zodToJsonSchema } from "zod-to-json-schema";
import { readFileSync, writeFileSync } from "fs";
const version = (p) => JSON.parse(readFileSync(`node_modules/${p}/package.json`)).version;
const make = (z) => {
  const Animal = z.discriminatedUnion("kind", [
    z.object({ kind: z.literal("cat"), lives: z.number().int().min(1).max(9) }),
    z.object({ kind: z.literal("dog"), good: z.boolean() }),
  ]);
  const Node = z.object({ value: z.number().int(), children: z.lazy(() => z.array(Node).max(1)) });
  const short = z.string().max(8);
  return {
    record: z.object({ scores: z.record(z.string(), z.number()) }),
    "record of an enum": z.record(z.enum(["red", "green"]), z.number().int().min(0).max(9)),
    "record of a pattern": z.record(z.string().regex(/^[a-c]$/), z.boolean()),
    strict: z.object({ a: z.boolean() }).strict(),
    passthrough: z.object({ a: z.boolean() }).passthrough(),
    catchall: z.object({ a: z.boolean() }).catchall(z.number().int().max(9)),
    tuple: z.tuple([short, z.number().int(), z.boolean()]),
    "tuple with a rest": z.tuple([short]).rest(z.boolean()),
    literal: z.object({ kind: z.literal("x"), version: z.literal(2) }),
    nullable: z.object({ a: short.nullable(), b: z.number().int().nullable() }),
    optional: z.object({ a: short.optional(), b: z.boolean() }),
    default: z.object({ a: z.number().int().default(3), b: z.boolean().default(true) }),
    refine: z.object({ a: z.number().int().refine((n) => n % 2 === 0) }),
    enum: z.enum(["a", "b"]),
    union: z.union([short, z.number().int(), z.null()]),
    intersection: z.intersection(z.object({ a: z.boolean() }).passthrough(), z.object({ b: z.boolean() }).passthrough()),
    "discriminated union": Animal,
    recursive: Node,
    email: z.object({ to: z.string().email() }),
    url: z.object({ to: z.string().url() }),
    uuid: z.object({ id: z.string().uuid() }),
    datetime: z.object({ at: z.string().datetime() }),
    "look-ahead": z.object({ password: z.string().regex(/^(?=.*[0-9])[a-z0-9]{2,8}$/) }),
    emoji: z.object({ mood: z.string().regex(/^\p{Emoji}$/u) }),
    base64: z.object({ data: z.string().base64().max(16) }),
    "number of steps": z.object({ price: z.number().multipleOf(0.01).min(0).max(10) }),
    bigint: z.object({ a: z.number().int().min(-5).max(1e15) }),
    positive: z.object({ a: z.number().positive().lt(5) }),
    "array of a length": z.array(z.boolean()).length(3),
    "array with least": z.array(z.boolean()).nonempty().max(4),
    any: z.object({ a: z.any(), b: z.unknown() }),
    described: z.object({ a: z.boolean().describe("yes or no") }).describe("an answer"),
  };
};
const made = {};
for (const [name, schema] of Object.entries(make(z))) {
  for (const target of ["draft-2020-12", "draft-7", "draft-4", "openapi-3.0"]) {
    try { made[`zod ${target} ${name}`] = z.toJSONSchema(schema, { target }); } catch (e) { console.log("4", target, name, e.message.slice(0, 80)); }
  }
}
for (const [name, schema] of Object.entries({ date: z.date(), set: z.set(z.string()), map: z.map(z.string(), z.number()) })) {
  made[`zod draft-2020-12 ${name}`] = z.toJSONSchema(schema, { unrepresentable: "any" });
}
const v3 = make(z3.z ?? z3);
const zz = z3.z ?? z3;
for (const [name, schema] of Object.entries({ ...v3, date: zz.object({ d: zz.date() }), set: zz.object({ s: zz.set(zz.boolean()) }), map: zz.object({ m: zz.map(zz.enum(["a", "b"]), zz.boolean()) }), "map of records": zz.object({ m: zz.map(zz.string(), zz.boolean()) }) })) {
  for (const target of ["jsonSchema7", "jsonSchema2019-09", "openApi3", "openAi"]) {
    try { made[`zod-to-json-schema ${target} ${name}`] = zodToJsonSchema(schema, { target }); } catch (e) { console.log("3", target, name, e.message.slice(0, 80)); }
  }
}
// The same schema under another name is left out.
const seen = new Set(), kept = {};
for (const [name, schema] of Object.entries(made)) {
  const text = JSON.stringify(schema);
  if (!seen.has(text)) { seen.add(text); kept[name] = JSON.parse(text); }
}
const versions = Object.fromEntries(["zod", "zod-to-json-schema"].map((p) => [p, version(p)]));
writeFileSync(new URL("zod_schemas.json", import.meta.url), JSON.stringify({ versions, schemas: kept }));
console.log(Object.keys(made).length, Object.keys(kept).length, JSON.stringify(kept).length, versions);
