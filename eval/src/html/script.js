"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("engram-theme"); } catch { return null; } };
  const store = (theme) => { try { localStorage.setItem("engram-theme", theme); } catch { /* no storage */ } };
  const dark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const show = () => { button.textContent = dark() ? "Light" : "Dark"; };
  const theme = stored();
  if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    store(root.dataset.theme);
    show();
  });
  system.addEventListener("change", show);
  show();

  // Collapsed tables are opened for printing.
  let collapsed = [];
  addEventListener("beforeprint", () => {
    collapsed = [...document.querySelectorAll("details:not([open])")];
    collapsed.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => collapsed.forEach((details) => { details.open = false; }));

  const words = (cells) => [...cells].map((cell) => cell.textContent).join(" ");
  const textOf = (row) => {
    const lines = [...row.querySelectorAll(".alignment")].flatMap((alignment) => {
      const separator = alignment.classList.contains("chars") ? "" : " ";
      return [1, 2].map((line) =>
        [...alignment.querySelectorAll(`.c > :nth-child(${line})`)]
          .map((cell) => cell.textContent).filter(Boolean).join(separator));
    });
    return [...lines, words(row.cells)].join("\n").toLowerCase();
  };

  for (const cases of document.querySelectorAll(".cases")) {
    const body = cases.querySelector("tbody");
    const rows = [...body.rows];
    const heads = [...cases.querySelectorAll("thead th")];
    const filter = cases.querySelector(".filter");
    const order = cases.querySelector(".order");
    const shown = cases.querySelector(".shown");
    const texts = new Map();

    const apply = () => {
      const query = filter.value.trim().toLowerCase();
      let count = 0;
      for (const row of rows) {
        if (query && !texts.has(row)) texts.set(row, textOf(row));
        row.hidden = query !== "" && !texts.get(row).includes(query);
        count += row.hidden ? 0 : 1;
      }
      shown.textContent = query ? `${count} of ${rows.length} shown` : "";
    };
    const sort = () => {
      const [column, direction] = order.value.split(" ");
      const sorted = [...rows];
      heads.forEach((head) => head.removeAttribute("aria-sort"));
      if (column !== "") {
        const sign = direction === "up" ? 1 : -1;
        const cell = (row) => row.cells[Number(column)];
        const value = (row) => cell(row).dataset.value;
        sorted.sort((a, b) => {
          const [x, y] = [value(a), value(b)];
          if (x === undefined || y === undefined) {
            return sign * cell(a).textContent.localeCompare(cell(b).textContent, "en", { numeric: true });
          }
          // Rows without a number stay at the end.
          if (x === "" || y === "") return (x === "") - (y === "");
          return sign * (Number(x) - Number(y));
        });
        heads[Number(column)].setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      }
      body.append(...sorted);
    };

    heads.forEach((head, column) => {
      if (head.classList.contains("reading")) return;
      const name = head.textContent;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      head.replaceChildren(button);
      const first = head.classList.contains("number") ? "down" : "up";
      button.addEventListener("click", () => {
        const other = first === "up" ? "down" : "up";
        order.value = order.value === `${column} ${first}` ? `${column} ${other}` : `${column} ${first}`;
        sort();
      });
    });
    filter.addEventListener("input", apply);
    order.addEventListener("change", sort);
    cases.querySelector(".controls").hidden = false;
  }
})();
