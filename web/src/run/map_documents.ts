// Generated: python -m pellucid.documents.generated

import type { LensLayerDocument } from "./documents";

export interface MapBlockDocument {
  path: string;
  norms: (number | null)[]; // of the residual stream that leaves the block
  attention: (number | null)[]; // norm of what the attention, or what stands in its place, adds, by the norm of the stream to which it is added
  cross: (number | null)[]; // the same of the cross-attention; []: the block has none
  feed: (number | null)[]; // the same of the feed-forward part or the experts; []: the block has none
  edges: MapEdgeDocument[]; // the strongest between different rows, the strongest first
  crossed: MapEdgeDocument[]; // the strongest of the cross-attention
}

export interface MapDocument {
  schema: 1;
  run: string;
  step: number;
  values: boolean; // false: shapes alone, every number is null
  stacks: MapStackDocument[];
  faint: number; // a smaller share is no edge
  left: number; // patterns whose edges were not computed: they are too large
  lens: LensLayerDocument[]; // of the row that the answer stands in, before the first block and after each; []: none
}

export interface MapEdgeDocument {
  query: number; // the row that reads
  key: number; // the row that is read; of a cross-attention a row of the first stack
  share: number;
  head: number; // the head with the largest share
  most: number; // its share
}

export interface MapRowDocument {
  first: number; // its first token
  count: number; // its tokens
  piece: string; // of its last token; empty without a tokenizer
  id: number; // of its last token
  step: number; // that made its last token
}

export interface MapStackDocument {
  name: string; // encoder, decoder, or empty
  rows: MapRowDocument[];
  start: (number | null)[]; // norms of the residual stream that enters the first block
  blocks: MapBlockDocument[];
}
