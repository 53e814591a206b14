import { describe, expect, it } from "vitest";
import { closed, cut, inert, packed, pooled, unpacked } from "../run/recorded";
import { decode, half, rounded } from "./decode";
import { flat, parts, put as filled, symbols, type Sum } from "./formula";
import { greatest } from "./grid";
import amounts from "./amounts.json";
import { amount, bytes, count, exact, figures, flops, number, seconds } from "./number";
import { parse, type Stored } from "./safetensors";
import { layout, level, matrix } from "./view";

function file(entries: Record<string, { dtype: string; shape: number[]; bytes: number[] }>, metadata?: Record<string, string>): ArrayBuffer {
  const head: Record<string, unknown> = metadata ? { __metadata__: metadata } : {}, body: number[] = [];
  for (const [name, { dtype, shape, bytes: own }] of Object.entries(entries)) {
    head[name] = { dtype, shape, data_offsets: [body.length, body.length + own.length] };
    body.push(...own);
  }
  const text = new TextEncoder().encode(JSON.stringify(head)), out = new Uint8Array(8 + text.length + body.length);
  new DataView(out.buffer).setBigUint64(0, BigInt(text.length), true);
  out.set(text, 8);
  out.set(body, 8 + text.length);
  return out.buffer;
}

const numbers = (sum: Sum, more: (count: number) => string): string => flat(parts(sum, more));
const put = (...how: Parameters<typeof filled>): string => flat(filled(...how));
const little = (array: ArrayBufferView): number[] => [...new Uint8Array(array.buffer)];
const x = (dtype: string, own: number[], shape: number[]): number[] => Array.from(decode(parse(file({ x: { dtype, shape, bytes: own } })).tensors.get("x") as Stored));

describe("safetensors", () => {
  it("gives every dtype its numbers", () => {
    expect(x("F32", little(Float32Array.of(1.5, -0, Infinity)), [3])).toEqual([1.5, -0, Infinity]);
    expect(x("F64", little(Float64Array.of(Math.PI)), [1])).toEqual([Math.PI]);
    expect(x("F16", little(Uint16Array.of(0x3c00, 0xc000, 0x0001, 0x7bff, 0xfc00)), [5])).toEqual([1, -2, 2 ** -24, 65504, -Infinity]);
    expect(x("BF16", little(Uint16Array.of(0x3f80, 0xc040, 0x0001, 0x7f80)), [2, 2])).toEqual([1, -3, 2 ** -133, Infinity]);
    expect(x("I64", little(BigInt64Array.of(-3n, 2n ** 40n)), [2])).toEqual([-3, 2 ** 40]);
    expect(x("BOOL", [1, 0], [2])).toEqual([1, 0]);
  });

  it("reads where the header ends at an odd byte", () => expect(x("F32", little(Float32Array.of(7)), [1, 1, 1])).toEqual([7]));

  it("keeps the metadata and the very bytes", () => {
    const { tensors, metadata } = parse(file({ x: { dtype: "U8", shape: [3], bytes: [1, 2, 255] } }, { sha256: "ab" }));
    expect(metadata).toEqual({ sha256: "ab" });
    expect([...(tensors.get("x")?.bytes ?? [])]).toEqual([1, 2, 255]);
  });

  it("refuses a tensor whose bytes are not its shape's, and a file that ends early", () => {
    expect(() => parse(file({ x: { dtype: "F32", shape: [2], bytes: [0, 0, 0, 0] } }))).toThrow(/needs 8/);
    expect(() => parse(file({ x: { dtype: "F8_E4M3", shape: [1], bytes: [0] } }))).toThrow();
    expect(() => parse(file({ x: { dtype: "F32", shape: [1], bytes: [0, 0, 0, 0] } }).slice(0, -1))).toThrow();
    expect(() => parse(new ArrayBuffer(7))).toThrow();
  });

  it("half and bfloat16 round as the machine does", () => {
    expect(Number.isNaN(half(0x7e00))).toBe(true);
    expect([1.00390625, 1.01171875, -2.5].map((n) => rounded(n, "bfloat16"))).toEqual([1, 1.015625, -2.5]); // ties go to even
    expect(rounded(0.1, "float32")).toBe(Math.fround(0.1));
  });
});

describe("numbers", () => {
  it("look as the command line's", () => {
    expect([-2.1139, 12.339, 0.0000123, 0, 999.95, 99999.5, 123456789, 0.0005, NaN, -Infinity].map(number))
      .toEqual(["-2.114", "12.34", "1.2e-5", "0", "1000", "1.000e5", "1.235e8", "0.001", "NaN", "-∞"]);
    expect([count(16512), amount(1374976), bytes(1280)]).toEqual(["16,512", "1.375 M", "1.28 KB"]);
  });

  it.each(Object.entries({ bytes, flops, amount, seconds, figures }))("%s are the terminal's", (name, text) => {
    const all = amounts[name as keyof typeof amounts] as [number, string][];
    expect(all.length).toBeGreaterThan(30);
    expect(all.map(([n]) => text(n))).toEqual(all.map(([, shown]) => shown));
  });

  it("exact ones give back the very bits", () => {
    for (const n of [0.1, 1 / 3, -7.25e-12, 3.4028234e38, 1e-45].map(Math.fround)) expect(Math.fround(Number(exact(n, "float32")))).toBe(n);
    expect([exact(Math.fround(0.1), "float32"), exact(0.1, "float64"), exact(-0, "float32"), exact(5, "int64")]).toEqual(["0.1", "0.1", "-0", "5"]);
  });
});

describe("views", () => {
  const values = Array.from({ length: 24 }, (_, i) => i); // [2, 3, 4]

  it("put any two axes on rows and columns", () => {
    expect(Array.from(matrix(values, [2, 3, 4], 1, 2, [1, 0, 0]).values)).toEqual([12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]);
    expect(Array.from(matrix(values, [2, 3, 4], 2, 0, [0, 1, 0]).values)).toEqual([4, 16, 5, 17, 6, 18, 7, 19]);
    expect(Array.from(matrix(values, [2, 3, 4], -1, 2, [1, 2, 0]).values)).toEqual([20, 21, 22, 23]);
  });

  it("find the head axis, rows and columns by the letters", () => {
    expect(layout(["B", "T", "H", "K"])).toEqual({ heads: 2, rows: 1, columns: 3 });
    expect(layout(["B", "H", "T", "S"])).toEqual({ heads: 1, rows: 2, columns: 3 });
    expect(layout(["N", "F"])).toEqual({ heads: -1, rows: 0, columns: 1 });
    expect(layout(["V"])).toEqual({ heads: -1, rows: -1, columns: 0 });
  });

  it("take the least level that is small enough", () => expect([level(100, 100, 10_000), level(101, 100, 10_000), level(4096, 4096, 1 << 14)]).toEqual([0, 1, 5]));
});

describe("formulas", () => {
  const scores = { factors: { q: [0.25, -0.5, 1, 2, 3, 4], k: [1, 2, 3, 4, 5, 6], scale: Array<number>(6).fill(1 / Math.sqrt(32)) }, added: {}, summands: [0, 0, 0, 0, 0, 0] };

  it("put what is the same in every summand outside", () => {
    expect(symbols(scores)).toBe("Σ q·k · scale");
    expect(numbers(scores, (n) => `${n} more`)).toBe("(0.250·1.000 − 0.500·2.000 + 1.000·3.000 + … 3 more) / √32");
  });

  it("write out few summands, and a single one plainly", () => {
    expect(numbers({ factors: { summand: [1, 2] }, added: {}, summands: [1, 2] }, String)).toBe("1.000 + 2.000");
    expect(symbols({ factors: { share: [0.3], down: [0.5] }, added: {}, summands: [0.15] })).toBe("share·down");
    expect(numbers({ factors: { a: [2, 2], b: [1, 3] }, added: {}, summands: [2, 6] }, String)).toBe("(1.000 + 3.000) · 2.000");
  });

  it("name what is added, with its sign", () => {
    const biased = { factors: { x: [1, 2], W_q: [3, 4] }, added: { b_q: -0.5 }, summands: [3, 8, -0.5] }, sum = { factors: {}, added: { mid: 1, ffn: -2 }, summands: [1, -2] };
    expect([symbols(biased), numbers(biased, String)]).toEqual(["Σ x·W_q + b_q", "1.000·3.000 + 2.000·4.000 − 0.500"]);
    expect([symbols(sum), numbers(sum, String)]).toEqual(["mid + ffn", "1.000 − 2.000"]);
    expect(symbols({ factors: { q: [1, 2], k: [1, 2] }, added: { "− m[h] · |t − s|": -1 }, summands: [1, 4, -1] })).toBe("Σ q·k − m[h] · |t − s|");
  });

  it("are filled with a cell's numbers", () => {
    const sentence = (key: string, values: Record<string, string>) => `${key} ${Object.values(values).join()}`, softmax = "e^({x} − {top}) / Σ e^… = {e} / {sum}";
    expect(put(softmax, { x: 3.139, top: 3.139, e: 1, sum: 1.101 }, sentence)).toBe("e^(3.139 − 3.139) / Σ e^… = 1.000 / 1.101");
    expect(put(softmax, { x: null, top: 3.139, e: 0, sum: 1.101 }, sentence)).toBe("formula.hidden ");
    expect(put("({x} − {mean}) · {weight} + {bias}", { x: 1, mean: -2, weight: 3, bias: -4 }, sentence)).toBe("(1.000 + 2.000) · 3.000 − 4.000");
    expect(put("formula.expert", { expert: 4, score: 0.5 }, sentence)).toBe("formula.expert 4,0.500");
  });
});

it("a part of a recorded tensor is its bytes in order", () => {
  const of = (at: string) => { const part = cut({ dtype: "I16", shape: [2, 2, 3], bytes: new Uint8Array(Int16Array.from({ length: 12 }, (_, i) => i).buffer) }, at); return [part.shape, [...new Int16Array(part.bytes.slice().buffer)]]; };
  expect(of("1,0,2")).toEqual([[], [8]]);
  expect(of("0,:,1:")).toEqual([[2, 2], [1, 2, 4, 5]]);
  expect(of(":,1,:2")).toEqual([[2, 2], [3, 4, 9, 10]]);
});

it("pooling takes what is farthest from 0, and NaN", () => {
  expect(pooled([1, -5, 2, 3, 4, 0], [2, 3], 1)).toEqual({ values: Float32Array.from([-5, 2]), shape: [1, 2] });
  expect(pooled([1, NaN, -7, 2], [1, 4], 1)).toEqual({ values: Float32Array.from([NaN, -7]), shape: [1, 2] });
});

it("bytes survive a file of text, and no text ends its element", () => {
  const bytes = Uint8Array.from({ length: 70_000 }, (_, i) => i % 251);
  expect(unpacked(packed(bytes))).toEqual(bytes);
  const evil = "</script><!-- & \u2028";
  expect(inert({ evil })).not.toMatch(/[<>&\u2028]/);
  expect(JSON.parse(inert({ evil }))).toEqual({ evil });
  expect(closed('a("</SCRIPT>", `<!--`)')).toBe('a("<\\/SCRIPT>", `<\\!--`)');
});

it("the greatest magnitude is finite", () => {
  const values = Float32Array.from([1, -5, NaN, -Infinity]);
  expect([greatest(values), greatest(values), greatest([])]).toEqual([5, 5, 0]);
});
