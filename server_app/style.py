"""The look of report.html: one column on a phone, two on a desk; light, dark, and ink on paper."""

CSS = """
:root { color-scheme: light dark; --page: #fbfaf8; --card: #ffffff; --ink: #1d1f23; --muted: #6b6f76;
  --rule: #dcdad5; --calm: #2a72b8; --tail: #cf6a1c; --worst: #b8304f; --many: #2f80d0; --less: #d9772b; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15171a; --card: #1d2024; --ink: #e8e6e1; --muted: #9a9ea6; --rule: #3a3e44;
    --calm: #63a6e6; --tail: #f0964a; --worst: #f0708c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 0 0 .5rem; }
.facts, figcaption, .note { color: var(--muted); font-size: .875rem; margin: .4rem 0 0; }
.note { border-left: 3px solid var(--tail); padding-left: .6rem; }
.lead { font-size: 1.2rem; line-height: 1.45; max-width: 62ch; margin: 1.2rem 0; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(4, 1fr); gap: .75rem; margin: 0 0 1rem; }
.cards div, figure, section { background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: 1rem; }
.cards div { padding: .7rem .9rem; }
.cards dt { color: var(--muted); font-size: .8rem; }
.cards dd { margin: 0; font-size: 1.6rem; font-weight: 600; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.cards .worst dd { color: var(--worst); } 
.cards .bottom20 dd { color: var(--tail); } .cards .mean dd { color: var(--calm); }
.grid { columns: 2; column-gap: 1rem; margin: 1rem 0; }
figure { break-inside: avoid; margin: 0 0 1rem; }
section { margin: 0 0 1rem; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit !important; }
svg image { image-rendering: pixelated; }
.tail { color: var(--tail); } .calm { color: var(--calm); }
.many { color: var(--many); } .less { color: var(--less); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--rule); text-align: right;
  vertical-align: bottom; }
th { font-weight: 500; } thead th { color: var(--muted); font-size: .8rem; max-width: 11rem; }
th:first-child { text-align: left; min-width: 6.5rem; } td { white-space: nowrap; }
table.facts-table :is(td, th) { text-align: left; vertical-align: top;
  white-space: normal; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--page); border: 1px solid var(--rule);
  border-radius: 6px; padding: .7rem; font-size: .85rem; margin: 0 0 .8rem; }
summary { cursor: pointer; } details[open] summary { margin-bottom: .5rem; }
section p { margin: .3rem 0 .7rem; max-width: 75ch; }
@media (max-width: 720px) {
  th, td { padding-right: .55rem; } th:first-child { min-width: 5.5rem; }
  main { padding: 1rem .6rem 2rem; } .grid { columns: 1; } .cards { grid-template-columns: 1fr 1fr; }
  .cards div, figure, section { padding: .7rem; }
  .lead { font-size: 1.08rem; } .cards dd { font-size: 1.35rem; } }
@media print {
  :root { color-scheme: light; --page: #fff; --card: #fff; --ink: #000; --muted: #444; --rule: #bbb;
    --calm: #2a72b8; --tail: #cf6a1c; --worst: #b8304f; }
  main { max-width: none; padding: 0; } .cards div, figure, section { break-inside: avoid; }
  details::details-content { content-visibility: visible; height: auto; } }
"""
