// Generated: python -m pellucid.documents.generated

export interface AnswerDocument {
  row: number; // of a blank; -1: after the last row
  picked: CandidateDocument;
  candidates: CandidateDocument[];
}

export interface AttributionDocument {
  schema: 1;
  run: string;
  step: number;
  row: number;
  id: number; // the token
  path: string; // of the value: the logits, or the input of their soft cap
  value: number | null; // that ran
  total: number | null; // the sum of all shares
  parts: ShareDocument[]; // of heads and feed-forward parts
  rest: ShareDocument[]; // of the embedding and of biases
}

export interface BlankDocument {
  row: number;
  next: CandidateDocument | null;
  candidates: CandidateDocument[];
}

export interface BlockDocument {
  path: string;
  parameters: number | null; // null: the model is not here
}

export interface CandidateDocument {
  id: number;
  text: string | null; // null: no piece has this id
  piece: string; // as it is shown, each of its bytes visible
  logit: number | null;
  probability: number | null;
}

export interface CellDocument {
  path: string;
  dims: string;
  index: number[];
  made: string; // its tensor's formula
  settings: Record<string, number | string | boolean | number[] | Record<string, number> | null>; // of the op
  factors: Record<string, (number | null)[]>; // columns whose products are summed
  added: Record<string, number | null>;
  numbers: Record<string, number | null>; // that a template is filled with, by the names of the op
  summands: (number | null)[]; // the products of the factors, and after them what is added
  total: number | null; // of the summands, in float64
  value: number | null; // that the model holds
}

export interface CellPartDocument {
  of: OriginDocument; // of a score, where the query's part comes from
  key: OriginDocument | null; // of a score, where the key's part comes from
  text: string; // both as people read them
  value: number | null;
}

export interface CellPartsDocument {
  schema: 1;
  run: string; // empty: no server keeps the run
  path: string;
  index: number[];
  value: number | null; // that the model has
  total: number | null; // the sum of all parts
  count: number; // all parts
  constant: ("norm" | "pattern" | "gate" | "experts")[]; // what was taken as constant
  notes: string[]; // what was taken as constant, as people read it
  parts: CellPartDocument[]; // the largest, in size
}

export interface CodeDocument {
  schema: 1;
  run: string;
  path: string;
  op: string | null;
  sources: SourceDocument[];
  python: string[]; // that make the cell again; none: the run cannot be made by a few lines
}

export interface GoingRunDocument {
  prompt: number; // tokens of its prompt; 0 before they are known
  tensors: number; // that the step has computed so far
  new: string[]; // pieces of the tokens that it has written
}

export interface LensDocument {
  schema: 1;
  run: string;
  step: number;
  row: number;
  id: number; // the followed token
  layers: LensLayerDocument[];
}

export interface LensLayerDocument {
  path: string;
  rank: number; // of the followed token among all
  followed: CandidateDocument;
  candidates: CandidateDocument[];
}

export interface MaskDocument {
  causal: boolean;
  window: number | null; // the last positions that are seen; null: all
  chunk: number | null; // positions of a chunk, which sees itself alone; null: none
  until: number; // keys before it are seen even by earlier queries
  source: boolean; // the keys are an encoder's
  chosen: number | null; // keys that an indexer leaves at most; null: no indexer
  around: boolean; // the window reaches as far ahead as back
  fill: number | null; // the score of keys that are not seen, so that they count; null: they do not
}

export interface MoveDocument {
  total: number | null;
  gradient: number | null; // by this step's gradient
  momentum: number | null; // by those of earlier steps
  decay: number | null; // by the weight's own decay
  clip: number | null; // the factor by which the step's gradients were clipped
}

export interface OriginDocument {
  path: string;
  row: number | null; // its position in the text
  head: number | null;
  source: number | null; // the position that the head reads
  expert: number | null;
  neuron: number | null;
}

export interface PairDocument {
  channels: [number, number];
  frequency: number; // the query's, in radians a token
  angles: [number, number]; // position times frequency
  before: [[number, number], [number, number]]; // of the query, then of the key
  after: [[number, number], [number, number]]; // of the query, then of the key
  turn: [[number, number], [number, number]]; // cos and sin
  product: number; // of the two turned pairs
}

export interface ProgressDocument {
  schema: 1;
  running: GoingRunDocument | null; // null: it has not begun, or none is waited for
  other: boolean; // another request's run is computed first
}

export interface ReuseDocument {
  schema: 1;
  run: string;
  ids: number[]; // of the other prompt
  pieces: string[];
  same: number; // tokens of the common prefix
  pages: ReusedDocument[];
}

export interface ReusedDocument {
  size: number; // rows of a page
  reused: number;
}

export interface RoutingDocument {
  experts: number;
  chosen: number; // experts of the best groups, for each token
  groups: number;
  groups_chosen: number;
  group_best: number; // experts whose scores a group's score is the sum of
  corrected: boolean; // a correction is added to the scores before the choice
  shared: number; // width of the part that every token visits
}

export interface RunDocument {
  schema: 1;
  run: string; // the id under which the server keeps it; empty: no server does
  model: string;
  switches: string[]; // NAME=VALUE: how the model that ran differs from the one of this name
  family: string | null;
  kind: "decoder" | "prefix" | "encoder" | "encoder-decoder" | null;
  parameters: number | null;
  dtype: string | null;
  values: boolean; // false: shapes and counts alone
  prompt: string | null;
  ids: number[];
  pieces: string[]; // of the ids, as they are shown
  tokens: TokenDocument[];
  blocks: BlockDocument[]; // of the first step, in order
  new: number[];
  new_pieces: string[];
  ended: boolean; // the last new token is one that ends a text
  text: string | null; // of the new tokens
  sampling: SamplingDocument; // how the new tokens were drawn; {}: not known
  forced: Record<string, number>; // new tokens, by step, that were given and not drawn
  edited: string[];
  torn: string[]; // files of a trace that are damaged
  masks: Record<string, MaskDocument>; // of each attention: what its queries may see
  routings: Record<string, RoutingDocument>; // of each mixture of experts: how it chooses
  next: CandidateDocument | null; // of the first step
  candidates: CandidateDocument[]; // of the first step
  blanks?: BlankDocument[]; // of an encoder
  nan?: string; // the first tensor with a NaN, where the last answer is no number
  steps: RunStepDocument[];
  tensors: TensorDocument[]; // of the first step; of all in explain --json
  cell?: CellDocument; // of explain --json --cell
  parts?: CellPartsDocument; // of explain --json --cell --parts
}

export interface RunStepDocument {
  step: number;
  fed: number[]; // ids that its rows stand for
  past: number; // rows that the KV cache held before
  first: number; // number of its first tensor
  count: number; // its tensors
  answers: AnswerDocument[];
  next: CandidateDocument | null; // what was picked in the first of its answers
  candidates: CandidateDocument[]; // of the first of its answers
}

export interface SamplingDocument {
  temperature?: number;
  top_k?: number;
  top_p?: number;
  min_p?: number;
  repetition?: number;
  presence?: number;
  frequency?: number;
  bias?: Record<string, number>;
  seed?: number;
}

export interface ShareDocument {
  path: string;
  head: number | null; // null: the whole part
  value: number | null;
}

export interface SourceDocument {
  what: "op" | "part"; // the op that made the tensor, or the part that it ran in
  name: string;
  file: string; // from the package on: pellucid/ops/linear.py
  first: number; // the number of its first line
  last: number;
  text: string;
}

export interface StatsDocument {
  min: number | null;
  max: number | null;
  mean: number | null;
  std: number | null; // of the population
  absmax: number | null;
  nan: number; // values that are NaN
  inf: number; // values that are infinite
}

export interface StepDocument {
  schema: 1;
  run: string;
  step: number;
  tensors: TensorDocument[];
}

export interface SweepDocument {
  schema: 1;
  model: string;
  metric: string; // name of the number
  base: number | null; // without a change
  clean: number | null; // of the run that values are taken from
  paths: string[]; // tensors, the first axis of the values
  by: string[]; // letters of the other axes
  shape: number[];
  pieces: string[]; // of the changed prompt
  values: (number | null)[]; // row by row
}

export interface SwitchDocument {
  path: string; // * stands for the number of a layer
  values: string[]; // that it has, of layers that differ each
  allowed: string[]; // words, and ranges of numbers
  listed: boolean; // true: allowed has every value, and no range
}

export interface SwitchesDocument {
  schema: 1;
  model: string;
  switches: SwitchDocument[];
}

export interface TensorDocument {
  n: number; // its number within the run
  path: string;
  block: string; // of its path; empty outside of blocks
  name: string; // within its block
  dims: string;
  shape: number[];
  dtype: string;
  step: number;
  call: number; // which call of its module within the step
  source: "executed" | "recomputed" | "reference" | "edited";
  error: number | null; // largest difference of a recomputed tensor from what the kernel gave
  op: string | null;
  result: "embedding" | "product" | "sum" | "rotation" | "scores" | "shares" | "attention" | "gates" | "corrected scores" | "choice" | "expert shares" | "last row" | "norm" | "activation" | null; // what the op's output is to a view; null: an op of which no view asks
  made: string; // its formula
  notes: [string, Record<string, string>][]; // what the signs of the formula mean: a word's key after "formula.", and its values
  put: string; // what a cell's numbers are put into
  settings: Record<string, number | string | boolean | number[] | Record<string, number> | null>; // of the op
  inputs: string[];
  weights: string[];
  bytes: number;
  parameters: number | null; // of weights that no earlier tensor of the step used; null: the model is not here
  flops: number | null; // null: not known
  rows: number[] | null; // of routed rows: which token each is of
  min: number | null; // of all values; null: not finite, or not measured
  mean: number | null;
  max: number | null;
  stats: StatsDocument | null; // null: not measured with the run; the server measures it on request
  kept: boolean; // false: its values are computed again on request
  terms: boolean; // the terms of its cells can be had
}

export interface TokenDocument {
  id: number;
  text: string; // its bytes as text; U+FFFD where they are none
  bytes: string;
}

export interface TurnsDocument {
  schema: 1;
  run: string;
  part: string;
  head: number;
  query: number; // its position
  key: number; // its position
  theta: number;
  scaling: string | null;
  pairs: PairDocument[];
  total: number; // the sum of the products: their part of q · k
}

export interface WeightTileDocument {
  schema: 1;
  step: number;
  path: string;
  lead: number[]; // the indices before the last two
  rows: number[]; // indices; of a vector 0
  columns: number[];
  moved: ((number | null)[])[]; // by the step
  largest: number | null; // move of a cell of the tile, over all recorded steps
}

export interface WhyDocument {
  schema: 1;
  run: string; // its folder
  step: number;
  path: string;
  index: number[];
  weight: number | null; // before the step
  gradient: number | null; // autograd's, before it is clipped
  total: number | null; // the sum over all tokens
  count: number; // all tokens
  rest: number | null; // the sum over those that are not listed
  tokens: WhyTokenDocument[]; // the largest, in size
  documents: WhyTextDocument[];
  uses: WhyUseDocument[]; // tied weights have several
  others: string[]; // tensors whose op reads the weight, but does not say how
  move: MoveDocument;
}

export interface WhyPieceDocument {
  piece: string | null; // null: no piece has this id
  sum: number | null; // of x · δ over all its rows; 0: none counts
}

export interface WhyTextDocument {
  number: number;
  source: string; // where it comes from
  text: string;
  pieces: WhyPieceDocument[]; // its first tokens
}

export interface WhyTokenDocument {
  path: string; // the tensor that the weight's op made
  document: number; // its number
  position: number; // in the document; -1: padding
  id: number; // -1: unknown
  piece: string | null; // null: no piece has this id
  x: (number | null)[]; // the derivative of each dependent number by the weight; of a product, its input
  delta: (number | null)[]; // the loss's derivative by each
  product: number | null;
}

export interface WhyUseDocument {
  path: string;
  sum: number | null;
}
