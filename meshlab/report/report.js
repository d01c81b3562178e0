// Sort a table by one of its columns. Without JavaScript the headings are plain text.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const headings = table.tHead.rows[table.tHead.rows.length - 1].cells;
  const first = [...body.rows];
  [...headings].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const was = heading.getAttribute("aria-sort");
      for (const other of headings) other.removeAttribute("aria-sort");
      let rows = [...first];
      if (was !== "descending") {
        const next = was === "ascending" ? "descending" : "ascending";
        const sign = next === "ascending" ? 1 : -1;
        heading.setAttribute("aria-sort", next);
        const key = (row) => row.cells[column].dataset.v ?? "";
        const text = (row) => row.cells[column].textContent;
        // Cells without a number stay at the end in both directions.
        const compare = (a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x !== "" && y !== "") return sign * (Number(x) - Number(y));
          if (x !== "" || y !== "") return x !== "" ? -1 : 1;
          return sign * text(a).localeCompare(text(b), undefined, { numeric: true });
        };
        rows = rows.sort(compare);
      }
      body.append(...rows);
    });
  });
}
