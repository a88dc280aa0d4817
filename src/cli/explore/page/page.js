// What all parts of the page share.

export const at = (id) => document.getElementById(id);

export function make(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** The address whose failure is shown. */
let failing = null;

/** The JSON of an address; what went wrong is told on the page, and gives null. */
export async function ask(address, body) {
  const options = body === undefined ? {} : {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  };
  try {
    const response = await fetch(address, options);
    const read = await response.json();
    if (!response.ok) throw new Error(read.error ?? response.statusText);
    // That something else went well does not mend it.
    if (failing === pathOf(address)) forget();
    return read;
  } catch (error) {
    tell(error, address);
    return null;
  }
}

/** The bytes of an address; what went wrong is told on the page, and gives null. */
export async function load(address) {
  try {
    const response = await fetch(address);
    if (!response.ok) throw new Error((await response.json()).error ?? response.statusText);
    return await response.blob();
  } catch (error) {
    tell(error, address);
    return null;
  }
}

const pathOf = (address) => address.split("?")[0];

function forget() {
  failing = null;
  at("failure").hidden = true;
}

// What went wrong is shown until something else is wanted.
for (const event of ["change", "submit", "click"]) document.addEventListener(event, forget, true);

function tell(error, address) {
  failing = pathOf(address);
  const gone = error instanceof TypeError ? "the program is not there: is `engram explore` still on?" : error.message;
  at("failure").textContent = gone;
  at("failure").hidden = false;
}

/** Does what replaces parts of the page; the control that had the focus has it again, by its `data-control`. */
export function keepingFocus(work) {
  const control = document.activeElement?.dataset?.control;
  work();
  const again = [...document.querySelectorAll("[data-control]")].find((one) => one.dataset.control === control);
  if (control !== undefined) again?.focus();
}

/** Fills a list to choose from: `[value, text]` each. */
export function fill(select, choices) {
  select.replaceChildren(...choices.map(([value, textContent]) => make("option", { value, textContent })));
}

/** Marks the part of the page that waits for an answer. */
export async function waiting(part, work) {
  part.setAttribute("aria-busy", "true");
  try {
    return await work();
  } finally {
    part.removeAttribute("aria-busy");
  }
}

/**
 * A place for a picture: a file is chosen or dropped on it, `changed` is told. `bytes()` is the file in base64, empty
 * without one.
 */
export function pictureField(place, changed) {
  let base64 = "";
  const input = make("input", { type: "file", accept: "image/*" });
  const preview = make("img", { alt: "The picture that is asked about", hidden: true });
  const without = make("button", { type: "button", hidden: true }, "Without it");
  place.classList.add("drop");
  place.append(make("label", {}, "Picture ", input), make("span", {}, "or drop one here"), preview, without);

  async function take(file) {
    const bytes = new Uint8Array(await file.arrayBuffer());
    let text = "";
    for (let start = 0; start < bytes.length; start += 0x8000) {
      text += String.fromCharCode(...bytes.subarray(start, start + 0x8000));
    }
    base64 = btoa(text);
    URL.revokeObjectURL(preview.src);
    preview.src = URL.createObjectURL(file);
    preview.hidden = without.hidden = false;
  }

  input.addEventListener("change", async () => {
    if (input.files.length === 0) return;
    await take(input.files[0]);
    changed();
  });
  without.addEventListener("click", () => {
    base64 = "";
    input.value = "";
    preview.hidden = without.hidden = true;
    changed();
  });
  for (const event of ["dragover", "dragleave", "drop"]) {
    place.addEventListener(event, async (happened) => {
      happened.preventDefault();
      place.classList.toggle("over", event === "dragover");
      if (event !== "drop" || happened.dataTransfer.files.length === 0) return;
      await take(happened.dataTransfer.files[0]);
      changed();
    });
  }
  return { bytes: () => base64, take };
}

// A picture that is dropped beside its place must not replace the page.
for (const event of ["dragover", "drop"]) document.addEventListener(event, (happened) => happened.preventDefault());
