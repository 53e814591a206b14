// The terms of a sum in the order in which they are drawn, and the sum so far after each.

export interface Drawn { term: number; value: number; from: number; to: number }

const size = (x: number | null | undefined): number => Math.abs(x ?? 0);

// The largest first, or as they stand.
export function ordered(summands: readonly (number | null)[], sorted: boolean): number[] {
  const all = summands.map((_, i) => i);
  return sorted ? all.sort((a, b) => size(summands[b]) - size(summands[a]) || a - b) : all;
}

// The first `most` terms of an order, each from the sum before it to the sum after it.
export function running(summands: readonly (number | null)[], order: readonly number[], most: number): Drawn[] {
  let sum = 0;
  return order.slice(0, most).map((term) => {
    const value = summands[term] ?? NaN, from = sum;
    sum += value;
    return { term, value, from, to: sum };
  });
}

// The range that holds 0 and every sum on the way.
export function range(drawn: readonly Drawn[], total: number): { low: number; high: number } {
  const all = [0, total, ...drawn.map((d) => d.to)].filter(Number.isFinite), low = Math.min(...all), high = Math.max(...all);
  return low < high ? { low, high } : { low: low - 1, high: high + 1 };
}
