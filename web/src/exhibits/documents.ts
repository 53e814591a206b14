// Generated: python -m pellucid.documents.generated

import type { CandidateDocument } from "../run/documents";

export interface AnswerPanelDocument {
  kind: "answers";
  title: string;
  sides: SideDocument[];
}

export interface BarDocument {
  name: string;
  value: number | null;
}

export interface BarPanelDocument {
  kind: "bars";
  title: string;
  bars: BarDocument[];
  unit: string;
  most: number | null; // of a full bar; null: the largest
}

export interface BoxDocument {
  name: string;
  note: string;
  depth: number; // how deep it lies
  marked: boolean;
}

export interface ClaimDocument {
  key: string;
  text: string;
  numbers: Record<string, string | number | null>;
  holds: boolean;
}

export interface ControlDocument {
  name: string;
  title: string;
  value: string | number;
  options: (string | number)[]; // all that it may be; none: any
}

export interface CubePanelDocument {
  kind: "cube";
  title: string;
  axes: string[]; // names of the three axes
  values: (((number | null)[])[])[];
  path: string | null; // of the tensor
}

export interface DiagramPanelDocument {
  kind: "diagram";
  title: string;
  stacks: StackDocument[];
}

export interface ExhibitDocument {
  schema: 1;
  head: ExhibitHeadDocument;
  model: string; // "": it takes none
  dtype: string; // that the model computed in; "": it takes none
  panels: (AnswerPanelDocument | TablePanelDocument | BarPanelDocument | LinePanelDocument | MatrixPanelDocument | CubePanelDocument | PlanePanelDocument | DiagramPanelDocument | NetworkPanelDocument | TextPanelDocument)[];
  claims: ClaimDocument[];
  runs: ExhibitRunDocument[];
  python: string[]; // lines that make the runs again
}

export interface ExhibitHeadDocument {
  name: string;
  chapter: string;
  title: string;
  said: string; // what is often said
  true: string; // what is so
  model: string; // its specimen; "": it takes no model
  controls: ControlDocument[];
}

export interface ExhibitListDocument {
  schema: 1;
  chapters: Record<string, string>; // titles
  exhibits: ExhibitHeadDocument[];
}

export interface ExhibitRunDocument {
  model: string;
  prompt: string;
  switches: string[];
  changes: string[];
  steps: number;
  dtype: string;
}

export interface LinePanelDocument {
  kind: "lines";
  title: string;
  across: string;
  at: (string | number)[];
  series: SeriesDocument[];
  marked: number | null; // a value of the axis that the panels beside it show
}

export interface MatrixPanelDocument {
  kind: "matrix";
  title: string;
  rows: string[];
  columns: string[];
  values: ((number | null)[])[]; // null: hidden
  path: string | null; // of the tensor; null: of several
  scale: "share" | "signed" | "size";
  cell: (number | "row" | "column")[]; // a number's index in the tensor; none: it is of no cell
  run: number; // of the exhibit's runs
  axes: string[]; // what the rows are, and what the columns; none: their names say it
}

export interface NetworkPanelDocument {
  kind: "network";
  title: string;
  columns: NodeColumnDocument[];
  weights: (((number | null)[])[])[]; // of each column but the last: a row for each node, a number for each of the next
}

export interface NodeColumnDocument {
  about: string;
  nodes: NodeDocument[];
}

export interface NodeDocument {
  name: string;
  value: number | null;
}

export interface PlanePanelDocument {
  kind: "plane";
  title: string;
  across: string;
  up: string;
  points: PointDocument[];
}

export interface PointDocument {
  name: string;
  x: number | null;
  y: number | null;
  moved: number[] | null; // where an arrow from it ends
}

export interface SeriesDocument {
  name: string;
  values: (number | null)[];
}

export interface SideDocument {
  about: string;
  candidates: CandidateDocument[];
}

export interface StackDocument {
  about: string;
  boxes: BoxDocument[];
}

export interface TablePanelDocument {
  kind: "table";
  title: string;
  columns: string[];
  rows: ((string | number | null)[])[];
  marked: number | null; // the row that the title speaks of
  exhibits: number | null; // the column whose cells name exhibits
  tinted: number[]; // columns whose numbers are coloured on one scale
  places: TensorPlaceDocument[]; // of cells that speak of a tensor
}

export interface TensorPlaceDocument {
  row: number;
  column: number;
  path: string;
  cell: number[]; // its index in the tensor; none: the whole tensor
  run: number; // of the exhibit's runs
}

export interface TextPanelDocument {
  kind: "text";
  title: string;
  lines: string[];
}

export interface TrainingDocument {
  schema: 1;
  name: string;
  folder: string;
  steps: number; // of the recipe
  taken: number; // that are logged
  watched: number[]; // recorded steps
  step: number | null; // the recorded step that is shown; null: none is recorded
  parameters: string[]; // whose cells can be explained
  shapes: Record<string, number[]>;
  panels: (AnswerPanelDocument | TablePanelDocument | BarPanelDocument | LinePanelDocument | MatrixPanelDocument | CubePanelDocument | PlanePanelDocument | DiagramPanelDocument | NetworkPanelDocument | TextPanelDocument)[];
}
