"use strict";
for (const head of document.querySelectorAll("th[data-by]")) {
  const button = document.createElement("button");
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const column = head.cellIndex, body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[column].dataset.key ?? row.cells[column].textContent;
    const by = head.dataset.by === "number"
      ? (a, b) => (a === "" ? Infinity : +a) - (b === "" ? Infinity : +b)
      : (a, b) => a.localeCompare(b);
    const rows = [...body.rows].sort((a, b) => by(key(a), key(b)));
    body.append(...(down ? rows.reverse() : rows));
  });
}
