// Generated: python -m pellucid.documents.generated

export interface PieceDocument {
  id: number;
  piece: string; // the vocabulary's writing
  text: string; // bytes that are no UTF-8 as U+FFFD
  shown: string; // a space as ·, incomplete UTF-8 in hex
  bytes: string;
  special: boolean;
}

export interface TokensDocument {
  schema: 1;
  model: string; // whose tokenizer
  prompt: string | null; // None where ids were given
  ids: number[];
  tokens: PieceDocument[];
  text: string; // what the ids decode to
  bytes: number; // of the text, without special tokens
  rate: number | null; // bytes for each token that is not special
  vocabulary: number; // the highest id and one
}
