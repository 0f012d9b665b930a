// The text of one answer in the page, by who wrote it.

// Lines are elements, in blocks, and a piece of text has a bound: laying out what comes next hardly depends on the answer's length.
const kMostCharacters = 2048;
const kMostLines = 64;

export class Answer {
  constructor(body) {
    this.body = body;  // of the message that it is shown in
    this.text = '';
    this.line = null;
    this.block = null;  // of lines
    this.length = 0;  // of the last piece
  }

  // `pieces`: a chunk's `drafts`.
  add(pieces) {
    for (const {origin, text} of pieces) {
      if (origin === 'rejected') {
        this.append(origin, text.replaceAll('\n', '↵'));
        continue;
      }
      this.text += text;
      for (const line of text.split(/(?<=\n)/)) {
        this.append(origin, line);
        if (line.endsWith('\n')) this.line = null;
      }
    }
  }

  append(origin, text) {
    if (this.line === null) {
      this.line = document.createElement('span');
      this.line.className = 'line';
      if (this.block === null || this.block.childElementCount === kMostLines) {
        this.block = document.createElement('span');
        this.block.className = 'lines';
        this.body.append(this.block);
      }
      this.block.append(this.line);
    }
    const last = this.line.lastElementChild;
    if (last?.className === origin && this.length < kMostCharacters) {
      last.firstChild.appendData(text);
      this.length += text.length;
    } else {
      this.line.append(part(origin, text));
      this.length = text.length;
    }
  }

  // Says below the answer why it ends where it does.
  note(text) {
    const note = document.createElement('span');
    note.className = 'note';
    note.textContent = text;
    this.body.append(note);
  }

  // Marks the text from its n-th character on.
  markFrom(n) {
    let begin = 0;
    for (const one of this.body.querySelectorAll('.line > span')) {
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
