"use strict";
// A click on a head sorts a table, and a button copies it as CSV. A click on a token shows its words: a phone has no pointer.

(() => {
  const UNITS = { min: 60, h: 3600, d: 86400 };
  const words = (cell) => cell.innerText.trim();

  function number(text) {
    const found = /^([-+]?[\d.]+(?:e[-+]?\d+)?)(?:\s*([A-Za-z]+))?/i.exec(text);
    return found ? Number(found[1]) * (UNITS[found[2]] || 1) : NaN;
  }

  // Numbers come before other texts; equal numbers, such as parts of a date, are compared as texts.
  function compare(a, b) {
    const [x, y] = [a, b].map(number);
    return Number(isNaN(x)) - Number(isNaN(y)) || x - y || a.localeCompare(b, undefined, { numeric: true });
  }

  function button(parent, text, onClick) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.addEventListener("click", () => onClick(made));
    parent.append(made);
    return made;
  }

  async function copy(text, made) {
    made.textContent = await navigator.clipboard?.writeText(text).then(() => "copied", String) ?? "no clipboard over http";
  }

  for (const table of document.querySelectorAll(".scroll > table")) {
    const [head, ...rows] = table.rows;
    [...head.cells].forEach((cell, place) => {
      const title = cell.textContent;
      for (const row of rows) row.cells[place].dataset.head = title;
      cell.textContent = "";
      button(cell, title, () => {
        const sign = cell.ariaSort === "ascending" ? -1 : 1;
        for (const other of head.cells) other.ariaSort = null;
        cell.ariaSort = sign > 0 ? "ascending" : "descending";
        rows.sort((a, b) => sign * compare(words(a.cells[place]), words(b.cells[place])));
        rows.forEach((row) => row.parentNode.append(row));
      });
    });
    table.className = "stacks"; // on a phone
    const bar = document.createElement("div");
    bar.className = "copy";
    table.parentNode.before(bar);
    button(bar, "copy as CSV", (made) => {
      const quoted = (cell) => `"${cell.textContent.replaceAll('"', '""')}"`;
      copy([head, ...rows].map((row) => [...row.cells].map(quoted).join(",")).join("\r\n"), made);
    });
  }
  for (const row of document.querySelectorAll(".tokens")) {
    row.addEventListener("click", (event) => {
      if (event.target === row) return;
      row.querySelector(".chosen")?.classList.remove("chosen");
      event.target.classList.add("chosen");
      row.nextElementSibling.textContent = event.target.title;
    });
  }
})();
