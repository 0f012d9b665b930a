// Numbers as text and as pictures. Every picture says its numbers to screen readers, too.

const kNamespace = 'http://www.w3.org/2000/svg';

export function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; n >= 1024 && unit + 1 < units.length; ++unit) n /= 1024;
  return `${unit === 0 ? n : n.toFixed(n < 10 ? 2 : 1)} ${units[unit]}`;
}

export const count = (n) => n.toLocaleString('en');
export const percent = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : '–');

function shape(name, attributes) {
  const element = document.createElementNS(kNamespace, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// parts: [class, amount] from left to right; together at most `whole`.
export function bar(svg, parts, whole, label) {
  svg.setAttribute('viewBox', '0 0 100 4');
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('aria-label', label);
  svg.replaceChildren(shape('rect', {class: 'rest', width: 100, height: 4}));
  let x = 0;
  for (const [kind, amount] of parts) {
    const width = whole > 0 ? (100 * amount) / whole : 0;
    svg.append(shape('rect', {class: kind, x, width: Math.min(width, 100 - x), height: 4}));
    x += width;
  }
}

// What is kept of each token: positions from left to right; of each, the KV heads' shares by tier, the best kept ones below.
// spans: as /v1/kv tells them.
export function tiers(svg, spans, label) {
  const tokens = spans.at(-1)?.end ?? 0;
  svg.setAttribute('viewBox', `0 0 ${tokens || 1} 1`);
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('aria-label', label);
  svg.replaceChildren();
  for (const {first, end, tiers: shares} of spans) {
    let top = 1;
    for (const [tier, share] of Object.entries(shares)) {
      top -= share;
      svg.append(shape('rect', {class: `tier-${tier}`, x: first, width: end - first, y: Math.max(top, 0), height: share}));
    }
  }
}

// A patch of colour, before the name of what has it.
export function swatch(kind) {
  const patch = document.createElement('span');
  patch.className = `swatch ${kind}`;
  return patch;
}

// The tier that most of a token's KV heads have.
export function tierAt(spans, position) {
  const span = spans.find(({first, end}) => first <= position && position < end);
  if (span === undefined) return '';
  return Object.entries(span.tiers).reduce((best, one) => (one[1] > best[1] ? one : best))[0];
}

// values: one per step of time, oldest first, all in [0, top].
export function curve(svg, values, top, steps) {
  svg.setAttribute('viewBox', '0 0 100 40');
  svg.setAttribute('preserveAspectRatio', 'none');
  const points = values.map((value, i) => {
    const x = 100 - ((values.length - 1 - i) * 100) / (steps - 1);
    return `${x.toFixed(2)},${(39 - (38 * value) / (top || 1)).toFixed(2)}`;
  });
  svg.replaceChildren(shape('polyline', {class: 'curve', points: points.join(' ')}));
}
