// The kernels in a browser: the C++ sources of ops/native as WebAssembly. They describe themselves, as their libraries do to Python.

interface Exports {
  memory: WebAssembly.Memory;
  _initialize(): void;
  room(bytes: bigint): number;
  kernels(): number;
  run(words: number, count: bigint, threads: bigint): void;
}

// code: of float32, bf16's is one more.  letters: p for a pointer, q for an integer, d for a double.
interface Op { code: number; letters: string; fields: string[] }

// A pointer is a region of the plan and an offset in it.
export type Word = number | [number, number] | null;
export interface PlannedCall { op: string; half: number; words: Record<string, Word> }

const HEAD = 3; // words of a call before its own: the op, how many follow, the calls it waits for

export class Kernels {
  readonly ops = new Map<string, Op>();
  private constructor(private readonly exports: Exports) {
    exports._initialize();
    this.described(exports.kernels()).split("\n").filter(Boolean).forEach((line, i) => {
      const [name = "", letters = "", ...fields] = line.split(" ");
      this.ops.set(name, { code: 2 * i, letters, fields: fields.map((f) => f.replace(",", "")) });
    });
  }

  static async of(bytes: BufferSource): Promise<Kernels> {
    const { instance } = await WebAssembly.instantiate(bytes, {});
    return new Kernels(instance.exports as unknown as Exports);
  }

  // The whole memory. It is another object after the memory has grown, so it is not kept.
  get memory(): ArrayBuffer {
    return this.exports.memory.buffer;
  }

  private described(at: number): string {
    const bytes = new Uint8Array(this.memory, at);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }

  // Memory that stays, filled with zeros.
  room(bytes: number): number {
    const at = this.exports.room(BigInt(Math.max(64, bytes))) >>> 0;
    if (at === 0) throw new RangeError(`WebAssembly: no memory for ${bytes} bytes`);
    new Uint8Array(this.memory, at, bytes).fill(0);
    return at;
  }

  // Calls as words in memory, each pointer as an address: the address of each call, and last of their end. A struct is laid out as C++ lays it
  // out here: a pointer has four bytes.
  packed(calls: readonly PlannedCall[], address: readonly number[]): number[] {
    const parts = calls.map((call) => this.words(call, address)), places = [this.room(parts.reduce((n, p) => n + p.byteLength, 0))];
    for (const part of parts) {
      const at = places.at(-1) ?? 0;
      new Uint8Array(this.memory).set(part, at);
      places.push(at + part.byteLength);
    }
    return places;
  }

  private words({ op: name, half, words }: PlannedCall, address: readonly number[]): Uint8Array {
    const op = this.ops.get(name);
    if (!op || op.fields.some((f) => !(f in words))) throw new RangeError(`${name}(${Object.keys(words).join(", ")}) is no kernel of this build`);
    const view = new DataView(new ArrayBuffer(8 * (HEAD + op.fields.length))), places = this.places(op);
    op.fields.forEach((field, i) => {
      const word = words[field] ?? null, letter = op.letters[i], at = places[i] ?? 0;
      if (letter === "p") view.setUint32(at, Array.isArray(word) ? (address[word[0]] ?? 0) + word[1] : 0, true);
      else if (letter === "d") view.setFloat64(at, word as number, true);
      else view.setBigInt64(at, BigInt(word as number), true);
    });
    const many = Math.ceil((places.at(-1) ?? 0) / 8);
    [op.code + half, many - HEAD, 0].forEach((n, i) => { view.setBigInt64(8 * i, BigInt(n), true); });
    return new Uint8Array(view.buffer, 0, 8 * many);
  }

  // Where each word of a call lies, in bytes from its start, and last the end.
  private places(op: Op): number[] {
    let at = 8 * HEAD;
    const starts = Array.from(op.letters.slice(0, op.fields.length), (letter) => {
      const size = letter === "p" ? 4 : 8, start = Math.ceil(at / size) * size;
      at = start + size;
      return start;
    });
    return [...starts, at];
  }

  // Set an integer word of a packed call.
  set(call: number, name: string, field: string, value: number): void {
    const op = this.ops.get(name), at = op && this.places(op)[op.fields.indexOf(field)];
    if (at !== undefined) new BigInt64Array(this.memory, call + at, 1)[0] = BigInt(value);
  }

  // Run calls of a packed list, from one number up to another.
  run(list: readonly number[], from = 0, to = list.length - 1): void {
    if (to > from) this.exports.run(list[from] ?? 0, BigInt(to - from), 1n);
  }
}
