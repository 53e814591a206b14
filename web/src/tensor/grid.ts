// A matrix of numbers, row by row.

export interface Grid {
  values: ArrayLike<number>;
  rows: number;
  columns: number;
}

// Below one another, of one width.
export function stacked(grids: readonly Grid[]): Grid {
  const columns = grids[0]?.columns ?? 0, rows = grids.reduce((n, g) => n + g.rows, 0), wide = grids.some((g) => g.values instanceof Float64Array);
  const values = wide ? new Float64Array(rows * columns) : new Float32Array(rows * columns);
  let at = 0;
  for (const g of grids) { values.set(Array.from(g.values), at); at += g.values.length; }
  return { values, rows, columns };
}

const magnitudes = new WeakMap<object, number>();

// The greatest finite magnitude; of the same numbers it is looked for once.
export function greatest(values: ArrayLike<number>): number {
  let most = magnitudes.get(values) ?? -1;
  if (most >= 0) return most;
  most = 0;
  for (let i = 0; i < values.length; i++) {
    const size = Math.abs(values[i] as number);
    if (size > most && size !== Infinity) most = size;
  }
  magnitudes.set(values, most);
  return most;
}
