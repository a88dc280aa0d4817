"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const loadTheme = () => { try { return localStorage.getItem("engram-theme"); } catch { return null; } };
  const saveTheme = (theme) => { try { localStorage.setItem("engram-theme", theme); } catch { /* no storage */ } };
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const showLabel = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  const theme = loadTheme();
  if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    saveTheme(root.dataset.theme);
    showLabel();
  });
  system.addEventListener("change", showLabel);
  showLabel();

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
    const headings = [...cases.querySelectorAll("thead th")];
    const filter = cases.querySelector(".filter");
    const order = cases.querySelector(".order");
    const status = cases.querySelector(".shown");
    const texts = new Map();

    const applyFilter = () => {
      const query = filter.value.trim().toLowerCase();
      let count = 0;
      for (const row of rows) {
        if (query && !texts.has(row)) texts.set(row, textOf(row));
        row.hidden = query !== "" && !texts.get(row).includes(query);
        count += row.hidden ? 0 : 1;
      }
      status.textContent = query ? `${count} of ${rows.length} shown` : "";
    };
    const sort = () => {
      const [column, direction] = order.value.split(" ");
      const sorted = [...rows];
      headings.forEach((heading) => heading.removeAttribute("aria-sort"));
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
        headings[Number(column)].setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      }
      body.append(...sorted);
    };

    headings.forEach((heading, column) => {
      if (heading.classList.contains("reading")) return;
      const name = heading.textContent;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      heading.replaceChildren(button);
      const first = heading.classList.contains("number") ? "down" : "up";
      button.addEventListener("click", () => {
        const opposite = first === "up" ? "down" : "up";
        order.value = order.value === `${column} ${first}` ? `${column} ${opposite}` : `${column} ${first}`;
        sort();
      });
    });
    filter.addEventListener("input", applyFilter);
    order.addEventListener("change", sort);
    cases.querySelector(".controls").hidden = false;
  }
})();
