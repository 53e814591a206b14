import { describe, expect, it } from "vitest";
import type { ChatTokenDocument } from "./chat_documents";
import { add, begun, changed, given, pace, path, ROOT, versions, sibling, until, type Reply, type Tree } from "./tree";

const reply = (fields: Partial<Reply> = {}): Reply => ({ tokens: [], ended: "stop", fault: "", sampling: "", ...fields });
const texts = (tree: Tree): string[] => path(tree).map((m) => m.text);
// 0 system "", 1 "A", 2 "a", 3 "B", 4 "b"
const line = (): Tree => ["A", "a", "B", "b"].reduce((tree, text, i) => add(tree, i, i % 2 ? "assistant" : "user", text, i % 2 ? reply() : null), begun());

describe("a tree of messages", () => {
  it("shows one conversation", () => {
    expect(texts(line())).toEqual(["", "A", "a", "B", "b"]);
    expect(until(line(), 2).map((m) => m.id)).toEqual([0, 1, 2]);
  });

  it("branches where a message is written again, and keeps what it had", () => {
    const edited = add(line(), 2, "user", "C"), back = sibling(edited, 5, -1);
    expect(texts(edited)).toEqual(["", "A", "a", "C"]);
    expect(versions(edited, 5).map((m) => m.text)).toEqual(["B", "C"]);
    expect(texts(back)).toEqual(["", "A", "a", "B", "b"]);
    expect(texts(sibling(back, 3, 1))).toEqual(["", "A", "a", "C"]);
  });

  it("remembers in each branch which answer was shown", () => {
    let tree = add(line(), 1, "assistant", "x", reply());
    tree = add(tree, 5, "user", "D");
    expect(texts(tree)).toEqual(["", "A", "x", "D"]);
    tree = sibling(tree, 5, -1);
    expect(texts(tree)).toEqual(["", "A", "a", "B", "b"]);
    expect(texts(sibling(tree, 2, 1))).toEqual(["", "A", "x", "D"]);
  });

  it("has no neighbour beyond the ends", () => {
    const tree = line();
    expect([sibling(tree, 1, 1), sibling(tree, 1, -1)]).toEqual([tree, tree]);
  });

  it("begins another conversation beside the first", () => {
    const tree = add(line(), ROOT, "system", "Be brief.");
    expect(texts(tree)).toEqual(["Be brief."]);
    expect(texts(sibling(tree, 5, -1))).toEqual(["", "A", "a", "B", "b"]);
  });

  it("changes one message and no other tree", () => {
    const tree = line(), other = changed(tree, 4, { text: "bb" });
    expect([texts(tree).at(-1), texts(other).at(-1)]).toEqual(["b", "bb"]);
  });

  it("gives no empty system message and no answer that ended before its first token", () => {
    let tree = add(begun(), 0, "user", "A");
    tree = add(tree, 1, "assistant", "", reply({ fault: "gone", ended: "failed" }));
    tree = add(tree, 2, "user", "B");
    expect(given(path(tree))).toEqual([{ role: "user", content: "A" }, { role: "user", content: "B" }]);
    expect(given(path(add(begun(), ROOT, "system", "S")))).toEqual([{ role: "system", content: "S" }]);
  });

  it("counts tokens a second behind the first", () => {
    const at = (seconds: number): ChatTokenDocument => ({ text: "", seconds, reused: 0, answer: { row: -1, picked: { id: 0, text: null, piece: "", logit: null, probability: 1 }, candidates: [] } });
    expect(pace(reply({ tokens: [at(1), at(1.5), at(2)] }))).toBe(2);
    expect([pace(reply({ tokens: [at(1)] })), pace(reply())]).toEqual([NaN, NaN]);
  });
});
