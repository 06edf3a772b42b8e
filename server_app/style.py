"""The look of report.html: one column on a phone, two on a desk; light, dark, and ink on paper.

Text has a contrast of 4.5 to 1 or more with what it stands on, marks of charts 3 to 1.
"""

_LIGHT = """--page: #fbfaf8; --card: #ffffff; --ink: #1d1f23; --muted: #5f636a;
  --rule: #dcdad5; --calm: #2a72b8; --tail: #b4560f; --worst: #b8304f; --quiet: #8b8f96; --many: #2f80d0; --less: #d9772b;"""
_CLUSTERS = """--part0: #2f80d0; --part1: #d9772b; --part2: #3a9a5b; --part3: #b45fc4; --part4: #b08a12; --part5: #d2476a; --part6: #1f9696;
  --part7: #8a7f76;"""

CSS = f"""
:root {{ color-scheme: light dark; {_LIGHT}
  {_CLUSTERS} }}
@media (prefers-color-scheme: dark) {{
  :root {{ --page: #15171a; --card: #1d2024; --ink: #e8e6e1; --muted: #a6aab2; --rule: #3a3e44;
    --calm: #63a6e6; --tail: #f0964a; --worst: #f0708c; --quiet: #7f848c; }} }}
:root.paper {{ color-scheme: light; {_LIGHT} }}
""" + """
* { box-sizing: border-box; }
html { scroll-padding-top: 3.2rem; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 1.2rem 1rem 3rem; }
:focus-visible { outline: 3px solid var(--calm); outline-offset: 2px; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2rem 0 .7rem; }
h3 { font-size: 1rem; margin: 0 0 .5rem; }
.facts, figcaption, .note, .nojs { color: var(--muted); font-size: .875rem; margin: .4rem 0 0; overflow-wrap: anywhere; }
.note { border-left: 3px solid var(--tail); padding-left: .6rem; }
.lead { font-size: 1.2rem; line-height: 1.45; max-width: 62ch; margin: 1.2rem 0; overflow-wrap: anywhere; }
nav { position: sticky; top: 0; z-index: 2; background: var(--page); border-bottom: 1px solid var(--rule); }
nav ul { max-width: 1180px; margin: 0 auto; padding: .3rem 1rem; display: flex; gap: 0 1.1rem; list-style: none; overflow-x: auto; }
nav a { color: var(--ink); text-decoration: none; font-size: .875rem; display: block; padding: .35rem 0; white-space: nowrap; }
nav a:hover { text-decoration: underline; }
.cards { display: grid; grid-template-columns: repeat(4, 1fr); gap: .75rem; margin: 0 0 1rem; }
.cards > div, figure, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: 1rem; }
.cards > div { padding: .7rem .9rem; }
.cards dt { color: var(--muted); font-size: .8rem; }
.cards dd { margin: 0; font-size: 1.6rem; font-weight: 600; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.cards .worst dd { color: var(--worst); }
.cards .bottom20 dd { color: var(--tail); } .cards .mean dd { color: var(--calm); }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1rem; align-items: start; }
.pair > :only-child { grid-column: 1 / -1; }
#result .pair > :first-child:not(:only-child) { grid-row: span 2; }
figure, .card { margin: 0; min-width: 0; }
.part > :not(h2) { margin-bottom: 1rem; }
.chart { display: none; position: relative; }
.scripted .chart { display: block; } .scripted .nojs { display: none; }
.tail { color: var(--tail); } .calm { color: var(--calm); } .worst { color: var(--worst); } .quiet { color: var(--quiet); }
.many { color: var(--many); } .less { color: var(--less); }
.scroll { overflow: auto; } .scroll:has(> .sortable, > .tall), .data .scroll { max-height: 30rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--rule); text-align: right;
  vertical-align: bottom; }
th { font-weight: 500; }
thead th { color: var(--muted); font-size: .8rem; max-width: 11rem; position: sticky; top: 0; z-index: 1; background: var(--card); }
th:first-child { text-align: left; min-width: 6.5rem; } td { white-space: nowrap; }
tbody th { overflow-wrap: anywhere; max-width: 18rem; }
table.facts-table :is(td, th) { text-align: left; vertical-align: top;
  white-space: normal; overflow-wrap: anywhere; }
table button { font: inherit; color: inherit; background: none; border: 0; padding: .1rem 0; text-align: inherit; cursor: pointer; }
thead button::after { content: " ↕"; } [aria-sort=ascending] button::after { content: " ↑"; }
[aria-sort=descending] button::after { content: " ↓"; }
tbody th button { text-decoration: underline dotted; text-underline-offset: 3px; }
tr.picked > * { background: color-mix(in srgb, var(--worst) 14%, var(--card)); }
.tools { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: center; margin-bottom: .6rem; font-size: .9rem; }
.tools :is(input, button) { font: inherit; color: var(--ink); background: var(--page); border: 1px solid var(--quiet); border-radius: 6px;
  padding: .3rem .6rem; max-width: 100%; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--page); border: 1px solid var(--rule);
  border-radius: 6px; padding: .7rem; font-size: .85rem; margin: 0 0 .8rem; }
summary { cursor: pointer; } details[open] > summary { margin-bottom: .5rem; }
details.data { margin-top: .5rem; font-size: .875rem; }
.card p { margin: .3rem 0 .7rem; max-width: 75ch; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
@media (max-width: 760px) {
  th, td { padding-right: .55rem; } th:first-child { min-width: 6.5rem; }
  main { padding: 1rem .6rem 2rem; } .pair { display: block; } .pair > * { margin-bottom: 1rem; } .cards { grid-template-columns: 1fr 1fr; }
  .cards > div, figure, .card { padding: .7rem; } nav ul { padding: .3rem .6rem; }
  .lead { font-size: 1.08rem; } .cards dd { font-size: 1.35rem; } 
  .scroll:has(> .sortable, > .tall), .data .scroll { max-height: 22rem; } }
@page { margin: 12mm; }
@media print {
  :root { color-scheme: light; --page: #fff; --card: #fff; --ink: #000; --muted: #444; --rule: #bbb;
    --calm: #2a72b8; --tail: #b4560f; --worst: #b8304f; }
  main { max-width: none; padding: 0; } nav, .tools, .data { display: none; } .scroll { max-height: none !important; overflow: visible; }
  .cards > div, figure { break-inside: avoid; } h2, h3 { break-after: avoid; } thead th { position: static; }
  #clients .pair { display: block; } thead button::after { content: none !important; }
  .chart { height: auto !important; } canvas { max-width: 100% !important; height: auto !important; }
  details::details-content { content-visibility: visible; height: auto; } }
"""
