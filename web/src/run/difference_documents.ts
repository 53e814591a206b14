// Generated: python -m pellucid.documents.generated

export interface AxisDifferenceOfRunsDocument {
  n: number; // its number in the run
  path: string;
  axis: "T" | "H";
  shares: (number | null)[]; // ‖b − a‖ / ‖a‖ at each index; null: a is 0 there and b is not
  cells: number[][]; // the cell of each index that differs most
}

export interface DifferenceDocument {
  n: number; // its number in the run
  other: number; // its number in the other run
  path: string;
  call: number;
  changed: boolean;
  largest: number | null; // difference of a number; null: not compared, or not finite
}

export interface DifferencesDocument {
  schema: 1;
  run: string;
  other: string;
  tensors: DifferenceDocument[];
  along: AxisDifferenceOfRunsDocument[]; // what leaves each block by rows, and its attention by heads
}
