"""How a page looks and reacts: its style and its few lines of script."""

from __future__ import annotations

from popdist.report.drawing import COLORS

STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5d6778; --line: #d9dee6;
  --ground: #fff; --box: #f5f7fa; --computing: #2f6fde; --waiting: #e0a03a; --bad: #b3261e;
  --good: #22794a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7ebf2; --soft: #9aa5b6; --line: #333c4a;
  --ground: #12161d; --box: #1a2029; --bad: #ff8a80; --good: #6fd19b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground);
  margin: 0 auto; max-width: 1000px; padding: 24px; }
h1 { font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 32px 0 8px; }
p { margin: 6px 0; } .soft { color: var(--soft); }
.bad { color: var(--bad); } .good { color: var(--good); }
table { border-collapse: collapse; width: 100%; } th, td { text-align: right; padding: 3px 10px;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 500; } th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin: 16px 0; }
.card { background: var(--box); border-radius: 8px; padding: 10px 16px; min-width: 110px; }
.card b { display: block; font-size: 20px; font-weight: 600; }
.hosts { display: flex; flex-wrap: wrap; gap: 12px; }
.host { border: 1px solid var(--line); border-radius: 8px; padding: 8px 12px; }
.instance { background: var(--box); border-radius: 6px; padding: 4px 8px; margin-top: 6px; }
.instance i { display: inline-block; background: var(--computing); color: #fff; border-radius: 4px;
  font-style: normal; font-size: 12px; padding: 0 6px; margin-left: 4px; }
.failed { outline: 2px solid var(--bad); }
svg { width: 100%; height: auto; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
svg .grid { stroke: var(--line); fill: none; } svg .s { fill: none; stroke-width: 1.5; }
svg .computing { fill: var(--computing); } svg .waiting { fill: var(--waiting); }
svg .memory { fill: #2a8f5b; }
.legend button { font: inherit; font-size: 13px; border: 1px solid var(--line); background: none;
  color: inherit; border-radius: 6px; margin: 2px; padding: 1px 8px; cursor: pointer; }
.legend button.off { opacity: .35; } .legend span { font-size: 13px; margin-right: 14px; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 5px; }
ul { padding-left: 20px; } pre { background: var(--box); border-radius: 6px; padding: 10px;
  overflow-x: auto; font-size: 12px; }
"""

SCRIPT = """
document.querySelectorAll(".legend button").forEach(function (button) {
  button.addEventListener("click", function () {
    button.classList.toggle("off");
    var lines = button.closest("section").querySelectorAll("." + button.dataset.series);
    lines.forEach(function (line) {
      line.style.display = button.classList.contains("off") ? "none" : "";
    });
  });
});
"""

SWATCHES = "".join(f".c{place} {{ background: {code}; }}\n" for place, code in enumerate(COLORS))
"""A class for each colour of a series."""
