"""A page that runs its model, in a real Chromium without a network: rows of `capitals` a second, and the seconds to a cell's sum.

    python benchmarks/live_page.py [--runs 7] [--out FILE]

A prompt of 60 tokens is read row by row, as a text is written: each row is replayed with every tensor, its candidates and the tables of
attention kept, and the answer is drawn. The time goes from Enter to the answer on the screen. A cell's time goes from its address to its
sum, with the 50 ms that the page waits for a pointer to rest. Bounds: 200 rows a second, 0.1 s. Writes benchmarks/results/live_page.json.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))  # a browser, as the tests have it

import pellucid  # noqa: E402
from browser import chromium, open_file, open_offline_tab  # noqa: E402
from pellucid.html.live import live_page  # noqa: E402

TOKENS, ROWS, SUM = 60, 200, 0.1  # of a prompt; the bounds
ANSWERED = """([prompt, count]) => new Promise(done => {
  const from = performance.now(), box = document.querySelector("#prompt");
  const look = () => [...document.querySelectorAll(".token .id")].some(e => e.textContent === prompt.match(/\\d+/)[0])
    && document.querySelectorAll(".token .id").length === count && document.querySelector("main").getAttribute("aria-busy") === "false";
  const watch = new MutationObserver(() => { if (look()) { watch.disconnect(); done((performance.now() - from) / 1000); } });
  watch.observe(document.body, { subtree: true, childList: true, attributes: true });
  box.value = prompt;
  box.dispatchEvent(new Event("input", { bubbles: true }));
  box.form.requestSubmit();
})"""
SUMMED = """cell => new Promise(done => {
  const from = performance.now(), watch = new MutationObserver(() => {
    const reading = document.querySelector(`#reading[data-cell="${cell}"]`);
    if (reading && document.querySelector("[data-sum]")) { watch.disconnect(); done((performance.now() - from) / 1000); }
  });
  watch.observe(document.body, { subtree: true, childList: true, attributes: true });
  const place = new URLSearchParams(location.hash.slice(1));
  place.set("cell", cell);
  history.pushState(null, "", `#${place}`);
  dispatchEvent(new PopStateEvent("popstate"));
})"""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    asked.add_argument("--runs", type=int, default=7)
    asked.add_argument("--out", type=Path, default=HERE / "results" / "live_page.json")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        file = Path(folder) / "capitals.html"
        file.write_text(live_page(pellucid.load("pellucid/capitals", dtype="float32")), encoding="utf-8")
        with open_offline_tab(browser, file) as tab:
            open_file(tab, file, "[data-answer]")
            prompts = ["#" + " ".join(str(1000 + run + i) for i in range(TOKENS)) for run in range(given.runs + 1)]
            answers = [tab.page.evaluate(ANSWERED, [prompt, TOKENS + 1]) for prompt in prompts][1:]  # the first compiles
            open_file(tab, file, '#reading[data-cell="0,4,7"]', prompt="The capital of France is", tensor="layers.2.ffn", cell="0,4,7")
            tab.page.wait_for_selector("[data-sum]")
            sums = [tab.page.evaluate(SUMMED, f"0,3,{20 + i}") for i in range(given.runs)]
    rows, seconds = TOKENS / statistics.median(answers), statistics.median(sums)
    found = {"rows_a_second": rows, "answers": answers, "sum_seconds": seconds, "sums": sums, "bounds": {"rows": ROWS, "sum": SUM}}
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{rows:.0f} rows a second (bound {ROWS}), a cell's sum in {seconds:.3f} s (bound {SUM})")


if __name__ == "__main__":
    main()
