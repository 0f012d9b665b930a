// The text of one answer in the page, by who wrote it.

export class Answer {
  constructor(body) {
    this.body = body;  // of the message that it is shown in
    this.text = '';
  }

  // `pieces`: a chunk's `drafts`.
  add(pieces) {
    for (const {origin, text} of pieces) {
      const rejected = origin === 'rejected';
      const shown = rejected ? text.replaceAll('\n', '↵') : text;
      if (!rejected) this.text += text;
      const last = this.body.lastElementChild;
      if (last?.className === origin) {
        last.textContent += shown;
      } else {
        this.body.append(part(origin, shown));
      }
    }
  }

  // Marks the text from its n-th character on.
  markFrom(n) {
    let begin = 0;
    for (const one of [...this.body.children]) {
      if (one.className === 'rejected') continue;
      const text = one.textContent;
      const same = Math.max(0, n - begin);
      begin += text.length;
      if (same >= text.length) continue;
      if (same > 0) one.before(part(one.className, text.slice(0, same)));
      one.textContent = text.slice(same);
      one.classList.add('differs');
    }
  }
}

function part(origin, text) {
  const element = document.createElement('span');
  element.className = origin;
  element.textContent = text;
  if (origin === 'rejected') element.setAttribute('aria-hidden', 'true');  // no part of what was said
  return element;
}
