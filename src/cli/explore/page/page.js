// Functions shared by all tabs.

/** Returns the element with an id. */
export const byId = (id) => document.getElementById(id);

/** Creates an HTML element with properties and children; null and undefined children are skipped. */
export function make(name, properties, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** The path of the request whose error is shown; null if no error is shown. */
let failedPath = null;

/** Requests JSON from an address. On failure, shows the error on the page and returns null. */
export async function ask(address, body) {
  const options = body === undefined ? {} : {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  };
  try {
    const response = await fetch(address, options);
    const data = await response.json();
    if (!response.ok) throw new Error(data.error ?? response.statusText);
    // A successful request hides only an error of a request to the same address.
    if (failedPath === pathOf(address)) hideError();
    return data;
  } catch (error) {
    showError(error, address);
    return null;
  }
}

/** Requests bytes from an address. On failure, shows the error on the page and returns null. */
export async function load(address) {
  try {
    const response = await fetch(address);
    if (!response.ok) throw new Error((await response.json()).error ?? response.statusText);
    return await response.blob();
  } catch (error) {
    showError(error, address);
    return null;
  }
}

const pathOf = (address) => address.split("?")[0];

function hideError() {
  failedPath = null;
  byId("failure").hidden = true;
}

// The next user action hides the error.
for (const event of ["change", "submit", "click"]) document.addEventListener(event, hideError, true);

function showError(error, address) {
  failedPath = pathOf(address);
  const message = error instanceof TypeError ? "the program does not respond: is `engram explore` still running?" : error.message;
  byId("failure").textContent = message;
  byId("failure").hidden = false;
}

/** Runs `work`, which replaces parts of the page, and restores the focus by `data-control`. */
export function keepingFocus(work) {
  const control = document.activeElement?.dataset?.control;
  work();
  const restored = [...document.querySelectorAll("[data-control]")].find((element) => element.dataset.control === control);
  if (control !== undefined) restored?.focus();
}

/** Marks an answer or a transcript as right or wrong. */
export const verdict = (isRight, text) =>
  make("span", { className: `verdict ${isRight ? "right" : "wrong"}` }, `${isRight ? "✓" : "✗"} ${text}`);

/** Whether the page has one column. */
export const narrow = matchMedia("(max-width: 48rem)");

/** Fills a `select` element with options `[value, text]`. */
export function fill(select, choices) {
  select.replaceChildren(...choices.map(([value, textContent]) => make("option", { value, textContent })));
}

/** Marks a part of the page as busy while `work` runs. */
export async function waiting(part, work) {
  part.setAttribute("aria-busy", "true");
  try {
    return await work();
  } finally {
    part.removeAttribute("aria-busy");
  }
}

/**
 * A field for an image: the user selects a file or drops one. Calls `onChange` after each change. `asBase64()` returns
 * the file, or an empty string if none is selected; `address()` returns an address of the image for `img`.
 */
export function imageField(container, onChange) {
  let base64 = "";
  const input = make("input", { type: "file", accept: "image/*" });
  const preview = make("img", { alt: "The selected image", hidden: true });
  const removeButton = make("button", { type: "button", hidden: true }, "Remove");
  container.classList.add("drop");
  container.append(make("label", {}, "Image ", input), make("span", { className: "hint" }, "or drop one here"), preview, removeButton);

  async function setFile(file) {
    const bytes = new Uint8Array(await file.arrayBuffer());
    let binary = "";
    for (let start = 0; start < bytes.length; start += 0x8000) {
      binary += String.fromCharCode(...bytes.subarray(start, start + 0x8000));
    }
    base64 = btoa(binary);
    URL.revokeObjectURL(preview.src);
    preview.src = URL.createObjectURL(file);
    preview.hidden = removeButton.hidden = false;
  }

  input.addEventListener("change", async () => {
    if (input.files.length === 0) return;
    await setFile(input.files[0]);
    onChange();
  });
  removeButton.addEventListener("click", () => {
    base64 = "";
    input.value = "";
    preview.hidden = removeButton.hidden = true;
    onChange();
  });
  for (const type of ["dragover", "dragleave", "drop"]) {
    container.addEventListener(type, async (event) => {
      event.preventDefault();
      container.classList.toggle("over", type === "dragover");
      if (type !== "drop" || event.dataTransfer.files.length === 0) return;
      await setFile(event.dataTransfer.files[0]);
      onChange();
    });
  }
  return { asBase64: () => base64, address: () => (base64 ? preview.src : ""), setFile };
}

// An image dropped outside the field must not replace the page.
for (const type of ["dragover", "drop"]) document.addEventListener(type, (event) => event.preventDefault());
