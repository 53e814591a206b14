// A matrix of numbers, row by row.

export interface Grid {
  values: ArrayLike<number>;
  rows: number;
  columns: number;
}
