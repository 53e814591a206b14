// What a cut keeps: the first ids of an order, the ids from the likeliest down, of which equal ones may stand in any order.
// It is described by where the order ends, so that a slider writes no number for each of 152,000 tokens.

export class Kept {
  readonly count: number;
  private readonly least: number; // the smallest number that is kept
  private readonly highest: number; // of the ids with that number the highest that is kept: of equal ones the lowest ids stay
  private readonly sure: number; // ids of the order that are kept and have no equal that is cut
  private readonly tied: Uint32Array; // the other ids that are kept
  private sorted: Uint32Array | undefined;

  constructor(readonly numbers: Float64Array, readonly order: Uint32Array, most: number) {
    const count = Math.min(order.length, most), x = (i: number): number | undefined => numbers[order[i] ?? -1], last = x(count - 1) ?? Infinity;
    let from = count, to = count;
    if (count > 0 && count < order.length && x(count) === last) {
      while (from > 0 && x(from - 1) === last) from--;
      while (to < order.length && x(to) === last) to++;
    }
    this.count = count;
    this.sure = from;
    this.tied = order.slice(from, to).sort().subarray(0, count - from);
    this.least = last;
    this.highest = count === 0 ? -1 : (this.tied.at(-1) ?? Infinity);
  }

  has(id: number): boolean {
    const x = this.numbers[id] ?? NaN;
    return x > this.least || (x === this.least && id <= this.highest);
  }

  // The ids that are kept, the lowest first: sums are made in this order, as the engine makes them.
  get ids(): Uint32Array {
    if (this.sorted) return this.sorted;
    const { numbers, least, highest } = this, ids = new Uint32Array(this.count);
    if (16 * this.count < numbers.length) {
      ids.set(this.order.subarray(0, this.sure));
      ids.set(this.tied, this.sure);
      ids.sort();
    } else for (let id = 0, n = 0; n < ids.length && id < numbers.length; id++) {
      const x = numbers[id] ?? NaN;
      if (x > least || (x === least && id <= highest)) ids[n++] = id;
    }
    return (this.sorted = ids);
  }
}

// How many of the first `count` places pass: those up to one place do, and none after it.
export function leading(count: number, passes: (place: number) => boolean): number {
  let low = 0, high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (passes(middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}
