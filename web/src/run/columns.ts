// The terms of cells that travel with a run: which columns each is the product of, and its sum. A column that many cells share is there once.

import { decode, type Values } from "../tensor/decode";
import { parse, type File } from "../tensor/safetensors";
import type { Terms } from "./types";

type Numbers = (number | null)[];
const finite = (x: number): number | null => (Number.isFinite(x) ? x : null);

// cellOf([2, 5, 3], [1, 4, 2]) is 29: the place of a cell in the tensor's numbers.
export const cellOf = (shape: readonly number[], cell: readonly number[]): number => shape.reduce((at, size, i) => at * size + (cell[i] ?? 0), 0);

export class Columns {
  private readonly found = new Map<string, Values>();
  private readonly cells = new Map<string, Map<number, { name: string; row: number }>>();

  constructor(private readonly file: File) {}

  static of(bytes: Uint8Array): Columns {
    return new Columns(parse(bytes.slice().buffer));
  }

  private values(name: string): Values {
    const known = this.found.get(name), stored = this.file.tensors.get(name);
    if (known) return known;
    if (!stored) throw new RangeError(`columns: no ${name}`);
    const read = decode(stored);
    this.found.set(name, read);
    return read;
  }

  // The table and row of each cell of a tensor; "7.0.x\nweight" is the first table of tensor 7.
  private of(n: number): Map<number, { name: string; row: number }> {
    const known = this.cells.get(String(n));
    if (known) return known;
    const all = new Map<number, { name: string; row: number }>();
    for (const name of this.file.tensors.keys()) {
      if (!new RegExp(`^${n}\\.\\d+\\.`).test(name)) continue;
      const rows = this.values(name), width = names(name).length + 1;
      for (let row = 0; row * width < rows.length; row++) all.set(rows[row * width] ?? -1, { name, row });
    }
    this.cells.set(String(n), all);
    return all;
  }

  private column(i: number): Values {
    const [pool = 0, from = 0, to = 0] = this.values("spans").subarray(3 * i, 3 * i + 3);
    return this.values(pool === 0 ? "short" : "long").subarray(from, to);
  }

  // The cells of a tensor whose terms were recorded, by their places in its numbers.
  carried = (n: number): number[] => [...this.of(n).keys()];

  // The terms of a cell, if they were recorded.
  terms(n: number, cell: number): Terms | undefined {
    const entry = this.of(n).get(cell);
    if (!entry) return undefined;
    const own = names(entry.name), rows = this.values(entry.name), width = own.length + 1, start = entry.row * width + 1;
    const columns = own.map((_, i) => this.column(rows[start + i] ?? -1)), plain = own.flatMap((name, i) => (/^[+?]/.test(name) ? [] : [i]));
    const count = columns[plain[0] ?? -1]?.length ?? 0;
    const products: Numbers = Array.from({ length: count }, (_, n) => finite(plain.reduce((product, i) => product * (columns[i]?.[n] ?? NaN), 1)));
    const factors = Object.fromEntries(plain.map((i) => [own[i] ?? "", Array.from(columns[i] ?? [], finite)]));
    const single = (sign: string): Record<string, number | null> =>
      Object.fromEntries(own.flatMap((name, i) => (name.startsWith(sign) ? [[name.slice(1), finite(columns[i]?.[0] ?? NaN)]] : [])));
    const added = single("+"), summands = [...products, ...Object.values(added)];
    const total = this.values(entry.name.split(".").slice(0, 2).join("."))[entry.row] ?? NaN;
    return { factors, added, numbers: single("?"), summands, total: finite(total), count: summands.length };
  }
}

// The names of a table's columns, a line each: factors, "+" what is added, "?" the numbers of a template.
const names = (table: string): string[] => table.split(".").slice(2).join(".").split("\n");
