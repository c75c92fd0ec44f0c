// Elements from data. Text goes in as text nodes only: a run's name is untrusted, and markup in it must stay text.

// element('p', {class: 'note', hidden: false}, 'text', child, ...)
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    node.setAttribute(name, value === true ? '' : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ''));
  return node;
}

export const byId = (id) => document.getElementById(id);

// Sets text only where it changed: screen readers and selections are not disturbed by a refresh that says the same.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Shapes differ as much as colours do, so that a verdict is readable without colour.
const ICON_PATHS = {
  CONTINUE: ['circle', 'M7.5 12.5l3 3 6-7'],
  WATCH: ['triangle', 'M12 9.5v4.5M12 16.6v.6'],
  RESTART: ['circle', 'M8.6 9.2a4.5 4.5 0 1 1-1 4.4M8.2 6.4v3.2h3.2'],
  HALT: ['octagon', 'M8.5 12h7'],
  UNKNOWN: ['dashed', 'M9.6 9.8a2.5 2.5 0 1 1 3.4 2.4c-.8.4-1 .8-1 1.7M12 16.5v.6'],
};
const OUTLINES = {
  circle: 'M12 2.5a9.5 9.5 0 1 1 0 19 9.5 9.5 0 0 1 0-19z',
  dashed: 'M12 2.5a9.5 9.5 0 1 1 0 19 9.5 9.5 0 0 1 0-19z',
  triangle: 'M12 2.8 22 20.5H2z',
  octagon: 'M8.2 2.5h7.6l5.7 5.7v7.6l-5.7 5.7H8.2l-5.7-5.7V8.2z',
};
const SVG = 'http://www.w3.org/2000/svg';

export function verdictIcon(action) {
  const [outline, sign] = ICON_PATHS[action] ?? ICON_PATHS.UNKNOWN;
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('class', `icon icon-${outline}`);
  svg.setAttribute('aria-hidden', 'true');
  for (const path of [OUTLINES[outline], sign]) {
    const shape = document.createElementNS(SVG, 'path');
    shape.setAttribute('d', path);
    svg.append(shape);
  }
  return svg;
}
