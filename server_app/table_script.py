"""The script of report.html that makes tables sortable, filters the clients, and links their rows with their curves.

The sort buttons follow the pattern of the ARIA Authoring Practices: a button in each heading, ``aria-sort`` on the heading.
"""

from __future__ import annotations

TABLE_SCRIPT = r"""
"use strict";
(() => {
const live = document.getElementById("live"), order = new Intl.Collator(undefined, { numeric: true });
const cell = (row, column) => row.cells[column].textContent;
const number = text => parseFloat(text.replace(/,/g, ""));

const sort = (table, column, down) => {
  const rows = [...table.tBodies[0].rows], known = rows.filter(row => !["–", ""].includes(cell(row, column)));
  const numeric = known.every(row => !Number.isNaN(Number(cell(row, column).replace(/[\s%,]/g, ""))));
  const compare = (a, b) => numeric ? number(cell(a, column)) - number(cell(b, column)) : order.compare(cell(a, column), cell(b, column));
  known.sort((a, b) => (down ? -1 : 1) * compare(a, b));
  table.tBodies[0].append(...known, ...rows.filter(row => !known.includes(row)));  // what is not known stays last
};
for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.ariaSort === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      sort(table, column, down);
    });
  });
}

const clients = document.querySelector("table.clients");
window.picked = new Set();
const told = () => {
  for (const row of clients?.tBodies[0].rows ?? []) {
    const on = picked.has(cell(row, 0));
    row.classList.toggle("picked", on);
    row.cells[0].firstChild.setAttribute("aria-pressed", on);
  }
  dispatchEvent(new Event("picked"));
};
window.pick = name => {
  if (!picked.delete(name)) picked.add(name);
  told();
  const row = [...clients?.tBodies[0].rows ?? []].find(each => cell(each, 0) === name), box = clients?.parentElement;
  if (row && picked.has(name)) box.scrollTop = row.offsetTop - box.clientHeight / 2;
};
if (clients) {
  for (const row of clients.tBodies[0].rows) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = cell(row, 0);
    button.addEventListener("click", () => { if (!picked.delete(button.textContent)) picked.add(button.textContent); told(); });
    row.cells[0].replaceChildren(button);
  }
  const tools = document.getElementById("tools").content.cloneNode(true);
  const [search, clear] = [tools.querySelector("input"), tools.querySelector("button")];
  search.addEventListener("input", () => {
    const words = search.value.toLocaleLowerCase().split(/\s+/).filter(Boolean), rows = [...clients.tBodies[0].rows];
    for (const row of rows) {
      const text = [...row.cells].map(each => each.textContent).join(" ").toLocaleLowerCase();
      row.hidden = !words.every(word => text.includes(word));
    }
    live.textContent = rows.filter(row => !row.hidden).length + " of " + rows.length + " clients shown";
  });
  clear.addEventListener("click", () => { picked.clear(); told(); });
  clients.parentElement.before(tools);
  told();
}

// a box that scrolls must be reachable by keyboard
const reachable = () => document.querySelectorAll(".scroll").forEach((box, place) => {
  if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) {
    const heading = box.closest("section, figure, details")?.querySelector("h2, h3, summary")?.textContent ?? "table";
    box.tabIndex = 0; box.setAttribute("role", "region"); box.setAttribute("aria-label", heading + ", table " + (place + 1));
  }
});
reachable();
addEventListener("resize", reachable);
document.addEventListener("toggle", reachable, true);
})();
"""
