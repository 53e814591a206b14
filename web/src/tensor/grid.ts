// A matrix of numbers, row by row.

export interface Grid {
  values: ArrayLike<number>;
  rows: number;
  columns: number;
}

const found = new WeakMap<object, number>();

// The greatest finite magnitude; of the same numbers it is looked for once.
export function greatest(values: ArrayLike<number>): number {
  let most = found.get(values) ?? -1;
  if (most >= 0) return most;
  most = 0;
  for (let i = 0; i < values.length; i++) {
    const size = Math.abs(values[i] as number);
    if (size > most && size !== Infinity) most = size;
  }
  found.set(values, most);
  return most;
}
