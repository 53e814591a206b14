// Runs tokenizers in node, for the tests that compare them with Python: `tokenizer_driver OUT` reads them and texts from standard input.

import { readFileSync, writeFileSync } from "node:fs";
import { Tokenizer, type Vocabulary } from "./tokenizer";

const { vocabularies, texts, lists } = JSON.parse(readFileSync(0, "utf8")) as { vocabularies: Vocabulary[]; texts: string[]; lists: number[][] };
const all = vocabularies.map((vocabulary) => {
  const own = new Tokenizer(vocabulary), [before, after] = vocabulary.around, count = vocabulary.pieces.length;
  return {
    ids: texts.map((text) => [...before, ...own.encode(text), ...after]),
    words: texts.map((text) => own.words(text)),
    shown: vocabulary.pieces.map((piece, id) => (piece === null ? "" : own.shown(id))),
    decoded: lists.map((ids) => own.decode(ids.map((id) => id % count))),
  };
});
writeFileSync(process.argv[2] ?? "", JSON.stringify(all));
