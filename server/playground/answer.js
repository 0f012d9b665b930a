// The text of one answer in the page: formatted as Markdown, or plain with who wrote which part of it.

import {Markdown} from './markdown.js';

// Lines are elements, in blocks, and a piece of text has a bound: laying out what comes next hardly depends on the answer's length.
const kMostCharacters = 2048;
const kMostLines = 64;

export class Answer {
  // `view`: formatted or plain.
  constructor(body, view) {
    this.body = body;  // of the message that it is shown in
    this.text = '';
    this.runs = [];    // [origin, text], neighbours of one origin together
    this.finished = false;
    this.show(view);
  }

  // `pieces`: a chunk's `drafts`.
  add(pieces) {
    let text = '';
    for (const {origin, text: piece} of pieces) {
      if (origin !== 'rejected') text += piece;
      const last = this.runs.at(-1);
      if (last?.[0] === origin) {
        last[1] += piece;
      } else {
        this.runs.push([origin, piece]);
      }
    }
    this.text += text;
    if (this.view === 'plain') {
      this.shown.add(pieces);
    } else if (text !== '') {
      this.shown.add(text);
    }
  }

  // No more text comes.
  finish() {
    this.finished = true;
    if (this.view !== 'plain') this.shown.finish();
  }

  show(view) {
    if (view === this.view) return;
    this.view = view;
    this.body.replaceChildren();
    this.body.className = `body ${view}`;
    if (view === 'plain') {
      this.shown = new Plain(this.body);
      this.shown.add(this.runs.map(([origin, text]) => ({origin, text})));
    } else {
      this.shown = new Markdown(this.body);
      if (this.text !== '') this.shown.add(this.text);
      if (this.finished) this.shown.finish();
    }
  }

  // Marks what is no longer the same as in `other`, which is shown the same way.
  markFrom(other) {
    const [mine, theirs] = [this.said(), other.said().map((node) => node.data).join('')];
    const text = mine.map((node) => node.data).join('');
    let same = 0;
    while (same < text.length && text[same] === theirs[same]) ++same;
    let begin = 0;
    for (const node of mine) {
      const end = begin + node.length;
      if (end > same) {
        const rest = same > begin ? node.splitText(same - begin) : node;
        const mark = document.createElement('span');
        mark.className = 'differs';
        rest.replaceWith(mark);
        mark.append(rest);
      }
      begin = end;
    }
  }

  // Takes the marks away.
  unmark() {
    for (const mark of this.body.querySelectorAll('.differs')) mark.replaceWith(...mark.childNodes);
  }

  // The text nodes of what the model said.
  said() {
    const walker = document.createTreeWalker(this.body, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT, (node) => {
      if (node.nodeType === Node.TEXT_NODE) return NodeFilter.FILTER_ACCEPT;
      return node.matches('.rejected, .code-head') ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_SKIP;
    });
    const nodes = [];
    while (walker.nextNode()) nodes.push(walker.currentNode);
    return nodes;
  }
}

// The text as it came, rejected drafts before what was said instead.
class Plain {
  constructor(body) {
    this.body = body;
    this.line = null;
    this.block = null;  // of lines
    this.length = 0;    // of the last piece
  }

  add(pieces) {
    for (const {origin, text} of pieces) {
      if (origin === 'rejected') {
        this.append(origin, text.replaceAll('\n', '↵'));
        continue;
      }
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
}

function part(origin, text) {
  const element = document.createElement('span');
  element.className = origin;
  element.textContent = text;
  if (origin === 'rejected') element.setAttribute('aria-hidden', 'true');  // no part of what was said
  return element;
}
