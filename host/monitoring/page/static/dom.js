// Elements, made and changed with as little work as will do. Text is only ever set as text.

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** A new element with attributes and children; a child that is null is left out. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Set the text of an element, if it is another. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A table: columns are [heading, cell of a row, whether it is a number, whether narrow pages leave it out]. */
export function makeTable(caption, columns, rows) {
  const names = ([, , number, wide]) => [number ? "n" : "", wide ? "wide" : ""].join(" ").trim() || null;
  const head = columns.map((column) => make("th", { scope: "col", class: names(column) }, column[0]));
  const body = rows.map((row) =>
    make("tr", {}, ...columns.map((column, index) =>
      make(index ? "td" : "th", { scope: index ? null : "row", class: names(column) }, column[1](row)))));
  return make("table", {}, make("caption", { class: "hidden" }, caption),
    make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}

/** Replace a table inside a container, and keep where it is scrolled to. */
export function replaceContent(container, ...children) {
  const { scrollTop, scrollLeft } = container;
  container.replaceChildren(...children);
  Object.assign(container, { scrollTop, scrollLeft });
}
