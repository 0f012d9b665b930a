// Markdown in the page, drawn while it is written.
//
// marked (third_party/marked) only splits the text into tokens. This file builds elements from them and never parses HTML:
// markup in an answer is shown as text, and no token can set an attribute that is not named here. Images become links,
// so an answer cannot make the browser ask another host.
//
// Drawing a token must not take longer the longer the answer is. Blocks that more text cannot change are *settled*: they are
// drawn once. The rest, the tail, is drawn again whenever text is added, so its length is bounded.

import {Lexer, Tokenizer} from './marked.esm.js';

const kMostTail = 2048;       // characters; a longer paragraph, list or table is settled up to where it can be divided
const kMostLine = 4096;       // characters; a longer line of a paragraph is divided after a sentence or a word
const kMostUndivided = 32768; // characters; a longer block of any other kind is divided at a line
const kMostFailures = 64;     // of markup that does not end, each of which the library looks for in the whole text
const kMostNested = 24;       // deeper lists and quotes are shown as text
const kMostLinks = 256;       // definitions
const kMostBlocks = 64;       // elements in a group
const kMostItems = 128;       // in a list or table element, about: the next ones go into another element
const kMostGroup = 8192;      // characters in it, about
const kMostLines = 64;        // lines of code in a text node
const kMostCharacters = 8192; // of code in a text node
const kOptions = {gfm: true, breaks: true, mangle: false, headerIds: false, extensions: {block: [definition]}};
const kProtocols = ['http:', 'https:', 'mailto:'];

// Text that continues a line of prose as it is: adding it cannot begin or end any markup.
const kPlain = /^[\p{L}\p{N} ,.;()'"?-]+$/u;
// The end of a line that has text in it, so that what follows cannot be a list's marker, a heading's underline or the like.
const kProse = /\p{L}[^\n]{3,}$/u;

const kEntities = {
  amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', copy: '©', reg: '®', trade: '™', hellip: '…',
  mdash: '—', ndash: '–', lsquo: '‘', rsquo: '’', ldquo: '“', rdquo: '”', laquo: '«', raquo: '»', bull: '•', middot: '·',
  times: '×', divide: '÷', deg: '°', plusmn: '±', micro: 'µ', para: '¶', sect: '§', euro: '€', pound: '£', cent: '¢',
  larr: '←', rarr: '→', uarr: '↑', darr: '↓', harr: '↔', le: '≤', ge: '≥', ne: '≠', asymp: '≈', infin: '∞', sum: '∑',
  alpha: 'α', beta: 'β', gamma: 'γ', delta: 'δ', lambda: 'λ', mu: 'μ', pi: 'π', sigma: 'σ', omega: 'ω', check: '✓',
};

// Makes the definition of a link a token, as the library does with every other block. Called by its lexer.
function definition(source, tokens) {
  const {lexer} = this;
  if (['paragraph', 'text'].includes(tokens.at(-1)?.type)) return undefined;  // a line of it
  const token = lexer.tokenizer.def(source);
  if (!token) return undefined;
  lexer.tokens.links[token.tag] ??= {href: token.href, title: token.title};
  return {...token, type: 'def'};
}

// The library's rules for markup in a line, until kMostFailures of them found none in one text: then it is text. Without a
// bound, the time for 2,500 asterisks without an end is in the seconds.
class Bounded extends Tokenizer {
  failures = 0;

  attempt(marks, source, rule) {
    if (!marks.includes(source[0]) || this.failures >= kMostFailures) return undefined;
    const token = rule();
    if (!token) ++this.failures;
    return token;
  }

  emStrong(source, masked, before) {
    return this.attempt('*_', source, () => super.emStrong(source, masked, before));
  }

  link(source) {
    return this.attempt('[!', source, () => super.link(source));
  }

  reflink(source, links) {
    return this.attempt('[!', source, () => super.reflink(source, links));
  }

  tag(source) {
    return this.attempt('<', source, () => super.tag(source));
  }

  codespan(source) {
    return this.attempt('`', source, () => super.codespan(source));
  }

  del(source) {
    return this.attempt('~', source, () => super.del(source));
  }
}

// Replaces character references; a name that is not in the table stays as it is written.
function decode(text) {
  return text.replace(/&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|([A-Za-z]{2,8}));/g, (whole, decimal, hex, name) => {
    if (name) return Object.hasOwn(kEntities, name) ? kEntities[name] : whole;
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    const valid = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
    return valid ? String.fromCodePoint(code) : '\ufffd';
  });
}

// Undoes marked's escape of a code span.
function unescape(text) {
  const characters = {amp: '&', lt: '<', gt: '>', quot: '"', '#39': "'"};
  return text.replace(/&(amp|lt|gt|quot|#39);/g, (_, name) => characters[name]);
}

function element(name, kind, ...children) {
  const result = document.createElement(name);
  if (kind) result.className = kind;
  result.append(...children);
  return result;
}

// A link to `href` that opens in a tab of its own; `text` where it leads to no host or mailbox.
function link(href, title, children, text) {
  let url;
  try {
    url = new URL(decode(href));
  } catch {
    return [text];
  }
  if (!kProtocols.includes(url.protocol)) return [text];
  const anchor = element('a', '', ...children);
  anchor.href = url.href;
  anchor.target = '_blank';
  anchor.rel = 'noopener noreferrer';
  anchor.referrerPolicy = 'no-referrer';
  if (title) anchor.title = title;
  return [anchor];
}

function inline(tokens, depth) {
  return (tokens ?? []).flatMap((token) => inlineToken(token, depth + 1));
}

function inlineToken(token, depth) {
  if (depth > kMostNested) return [token.raw];
  switch (token.type) {
    case 'text': return token.tokens ? inline(token.tokens, depth) : [decode(token.raw)];
    case 'escape': return [token.raw.slice(1)];
    case 'strong': case 'em': case 'del': return [element(token.type, '', ...inline(token.tokens, depth))];
    case 'codespan': return [element('code', '', unescape(token.text))];
    case 'br': return [element('br')];
    case 'html': return [/^<br\s*\/?>$/i.test(token.raw) ? element('br') : token.raw];
    case 'link': return link(token.href, token.title && decode(token.title), inline(token.tokens, depth), token.raw);
    case 'image': return link(token.href, '', [`Image: ${decode(token.text) || token.href}`], token.raw);
    default: return [token.raw];
  }
}

function heading(token) {
  // The page's own headings end at level 3. The class has the level as it was written.
  return element(`h${Math.min(6, token.depth + 3)}`, `level-${token.depth}`, ...inline(token.tokens, 0));
}

function row(name, cells, align) {
  return element('tr', '', ...cells.map((cell, i) => element(name, align[i] ? `align-${align[i]}` : '', ...inline(cell.tokens, 0))));
}

function table(token) {
  const rows = token.rows.map((cells) => row('td', cells, token.align));
  const whole = element('table', '', element('thead', '', row('th', token.header, token.align)), element('tbody', '', ...rows));
  return scrolled(element('div', 'table', whole), 'Table');
}

// Makes an element that is wider than the page reachable by keyboard.
function scrolled(part, label) {
  part.tabIndex = 0;
  part.setAttribute('role', 'group');
  part.setAttribute('aria-label', label);
  return part;
}

function items(token, depth) {
  return token.items.map((item) => {
    const children = item.task ? [element('span', 'task', item.checked ? '☑ ' : '☐ ')] : [];
    for (const part of item.tokens) {
      const tight = part.type === 'text' && !item.loose;
      children.push(...(tight ? inlineToken(part, depth + 1) : block(part, depth + 1)));
    }
    return element('li', '', ...children);
  });
}

function list(token, depth) {
  const result = element(token.ordered ? 'ol' : 'ul', '', ...items(token, depth));
  if (token.ordered && token.start !== 1 && Number.isInteger(token.start)) result.start = token.start;
  return result;
}

// The elements of a token, which is no more than kMostNested levels deep.
function block(token, depth) {
  if (depth > kMostNested) return [element('p', 'markup', token.raw)];
  switch (token.type) {
    case 'space': case 'def': return [];
    case 'heading': return [heading(token)];
    case 'hr': return [element('hr')];
    case 'code': {
      const code = new Code(decode(token.lang ?? ''));
      code.add(`${token.text}\n`);
      return [code.element];
    }
    case 'table': return [table(token)];
    case 'blockquote': return [element('blockquote', '', ...token.tokens.flatMap((one) => block(one, depth + 1)))];
    case 'list': return [list(token, depth)];
    case 'paragraph': return [element('p', '', ...inline(token.tokens, depth))];
    case 'text': return [element('p', '', ...inlineToken(token, depth))];
    default: return [element('p', 'markup', token.raw)];  // HTML, above all
  }
}

// The place after the last `mark` in the first `most` characters; 0 where there is none.
function cutAfter(text, mark, most) {
  const at = text.lastIndexOf(mark, most);
  return at < 0 ? 0 : at + mark.length;
}

// A block of code: its language, a button that copies it, and its lines.
class Code {
  constructor(language) {
    this.text = '';
    this.code = element('code');
    this.last = null;  // text node that the next line goes to
    this.lines = 0;    // of it
    this.begun = false;  // whether the last line lacks its end
    const name = language.split(/\s/)[0].slice(0, 40);
    const copy = element('button', 'copy', 'Copy');
    copy.type = 'button';
    copy.dataset.copies = 'code';
    copy.setAttribute('aria-label', name ? `Copy the ${name} code` : 'Copy the code');
    const pre = scrolled(element('pre', '', this.code), name ? `Code: ${name}` : 'Code');
    this.element = element('div', 'code', element('div', 'code-head', element('span', '', name || 'code'), copy), pre);
    sources.set(this.element, this);
  }

  add(text) {
    this.text += text;
    for (const line of text.split(/(?<=\n)/)) {
      if (line === '') continue;
      if (this.last === null || this.lines >= kMostLines || this.last.length >= kMostCharacters) {
        this.last = document.createTextNode('');
        this.code.append(element('span', 'code-lines', this.last));
        this.lines = 0;
      }
      this.last.appendData(line);
      if (line.endsWith('\n')) ++this.lines;
    }
  }
}

// Tabs at the beginning of lines as spaces.
function expandTabs(text) {
  return text.replace(/^( *)(\t+)/gm, (_, spaces, tabs) => spaces + '    '.repeat(tabs.length));
}

const sources = new WeakMap();  // element of a block of code -> Code

// The text of the block of code around `button`.
export const codeOf = (button) => sources.get(button.closest('.code')).text;

export class Markdown {
  constructor(body) {
    this.body = body;
    this.tail = '';       // source that is not settled
    this.carry = '';      // half of a line's end
    this.volatile = [];   // nodes drawn from the tail
    this.text = null;     // text node at the end of the tail's paragraph, if plain text may be appended to it
    this.fence = null;    // of code that has not ended: {mark, indent, code}
    // A block whose end was not settled with its beginning: {type}. A list or table also has `into`, the element that more
    // items go into, or null and `next`, the number of the first one in another element; `prefix` is the head of a table.
    this.open = null;
    this.group = null;
    this.grouped = 0;     // settled characters in it
    this.links = {};      // definitions of links so far: {href, title} by name
  }

  add(text) {
    // A giant piece, as of a kept conversation, is drawn as if it came bit by bit: each bit has a bound.
    for (let at = 0; at < text.length; at += kMostTail / 2) this.addSome(text.slice(at, at + kMostTail / 2));
  }

  addSome(piece) {
    let text = this.carry + piece;
    this.carry = text.endsWith('\r') ? '\r' : '';
    text = text.slice(0, text.length - this.carry.length).replace(/\r\n?/g, '\n');
    const prose = this.text !== null && kPlain.test(text);
    this.tail += text;
    if (prose && this.tail.length < kMostTail) {
      this.text.appendData(text);
      return;
    }
    this.draw(false);
  }

  // Draws what was held back at the end. No text may follow.
  finish() {
    this.draw(true);
    this.settle();
    this.tail = '';
  }

  draw(whole) {
    for (;;) {
      if (this.fence !== null) {
        if (!this.drawCode(whole)) return;
      } else if (!this.beginCode()) {
        if (this.drawTail(whole)) return;
      }
    }
  }

  // Appends a top-level element; groups bound what the browser lays out anew.
  append(node) {
    if (this.group === null || this.group.childElementCount >= kMostBlocks || this.grouped >= kMostGroup) {
      this.group = element('div', 'blocks');
      this.grouped = 0;
      this.body.append(this.group);
    }
    this.group.append(node);
  }

  // Takes away what was drawn of the tail.
  undraw() {
    for (const node of this.volatile) node.remove();
    this.volatile = [];
    this.text = null;
  }

  // Keeps what was drawn of the tail.
  settle() {
    this.volatile = [];
    this.text = null;
    this.open = null;
  }

  cut(length) {
    this.tail = this.tail.slice(length);
    this.grouped += length;
  }

  // Fenced code at the beginning of the tail goes into its element line by line. Returns whether there is any.
  beginCode() {
    const found = /^\n*( {0,3})(`{3,}(?=[^`\n]*\n)|~{3,}(?=[^\n]*\n))([^\n]*)\n/.exec(this.tail);
    if (found === null) return false;
    this.undraw();
    this.open = null;
    const code = new Code(decode(found[3].trim()));
    this.append(code.element);
    this.fence = {mark: found[2], indent: found[1].length, code};
    this.tail = this.tail.slice(found[0].length);
    return true;
  }

  // Returns whether the code has ended.
  drawCode(whole) {
    const {mark, indent, code} = this.fence;
    const indented = new RegExp(`^ {0,${indent}}`);
    const ends = new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},} *\\n?$`);
    while (this.tail !== '') {
      const newline = this.tail.indexOf('\n');
      const line = newline < 0 ? this.tail : this.tail.slice(0, newline + 1);
      const mayEnd = !code.begun && ends.test(line);
      if (newline < 0 && !whole) {
        // A line that has not ended is shown unless it may be the end of the code.
        if (!code.begun && /^ *[`~]*$/.test(line)) return false;
        code.add(code.begun ? line : line.replace(indented, ''));
        code.begun = true;
        this.tail = '';
        return false;
      }
      this.tail = this.tail.slice(line.length);
      if (mayEnd) {
        this.fence = null;
        return true;
      }
      code.add(code.begun ? line : line.replace(indented, ''));
      code.begun = false;
    }
    if (whole) this.fence = null;
    return whole;
  }

  lex(source) {
    const lexer = new Lexer({...kOptions, tokenizer: new Bounded()});
    Object.assign(lexer.tokens.links, this.links);
    return lexer.lex(source);
  }

  // Returns whether all of the tail is drawn; false where something was settled and there is more to do.
  drawTail(whole) {
    this.undraw();
    const prefix = this.open?.prefix ?? '';
    const source = expandTabs(this.tail);  // as the library does it, so that lengths of tokens are lengths of the text
    let tokens;
    try {
      tokens = this.lex(prefix + source);
    } catch {  // nested too deeply for the library
      this.open = null;
      tokens = [{type: 'html', raw: source}];
    }
    const begins = [];      // of each token in the source
    let end = -prefix.length;
    let [last, before] = [-1, -1];  // the last two blocks
    for (const [i, token] of tokens.entries()) {
      if (token.type !== 'space') [before, last] = [last, i];
      begins.push(end);
      end += token.raw.length;
    }
    // Only if the tokens are exactly the text that was given are their lengths of use.
    if (end === source.length && last >= 0) {
      const code = tokens.findIndex(({type, codeBlockStyle}, i) => i > 0 && type === 'code' && codeBlockStyle === undefined);
      // A block has ended if the first line of the next one is there. Fenced code ends what is before it.
      const settled = code > 0 ? code : whole ? 0 : source.lastIndexOf('\n') >= begins[last] ? last : before;
      if (settled > 0 && (before >= 0 || code > 0)) {
        this.place(tokens.slice(0, settled));
        this.define(tokens.slice(0, settled));
        this.settle();
        this.cut(this.tailOffset(source, begins[settled]));
        return false;
      }
      if (!whole && this.tail.length >= kMostTail && this.divide(tokens[last], source, begins[last], prefix)) return false;
    } else if (!whole && this.tail.length >= kMostUndivided && this.divide({type: 'unknown'}, source, 0, prefix)) {
      return false;
    }
    this.place(tokens);
    if (tokens.length === last + 1) this.text = this.proseAtEnd(tokens[last]);
    return true;
  }

  // The place in the tail of the line that begins at `offset` in `source`, the tail with its tabs expanded.
  tailOffset(source, offset) {
    if (source === this.tail) return offset;
    const lines = source.slice(0, offset).split('\n').length - 1;
    return this.tail.split('\n').slice(0, lines).reduce((sum, line) => sum + line.length + 1, 0);
  }

  // Remembers the definitions of links among settled tokens.
  define(tokens) {
    for (const {type, tag, href, title} of tokens) {
      if (type === 'def' && !Object.hasOwn(this.links, tag) && Object.keys(this.links).length < kMostLinks) this.links[tag] = {href, title};
    }
  }

  // The text node that plain text may be appended to; null where it could be more than text.
  proseAtEnd(token) {
    let end = token;
    while (end?.type === 'list' || end?.type === 'blockquote') end = (end.items?.at(-1) ?? end).tokens.at(-1);
    if (!['paragraph', 'text', 'heading'].includes(end?.type) || end.tokens?.at(-1)?.type !== 'text') return null;
    if (!kProse.test(this.tail) || /[&\\]$/.test(this.tail)) return null;
    let node = this.volatile.at(-1);
    while (node?.lastChild) node = node.lastChild;
    return node?.nodeType === Node.TEXT_NODE && this.tail.endsWith(node.data.slice(-8)) ? node : null;
  }

  // Draws tokens after what is settled. The first block may belong to the list, table or paragraph that is open.
  place(tokens) {
    let {open} = this;
    for (const token of tokens) {
      if (token.type === 'space') continue;
      let nodes;
      if (open?.into && token.type === open.type && token.ordered === open.ordered) {
        nodes = token.type === 'table' ? token.rows.map((cells) => row('td', cells, token.align)) : items(token, 0);
        open.into.append(...nodes);
      } else {
        const ended = open?.type === 'table' && token.rows?.length === 0;  // only the head is there, put before the text
        nodes = ended ? [] : block(token, 0);
        if (open !== null && nodes.length > 0 && token.type === open.type && token.ordered === open.ordered) {
          nodes[0].classList.add('continued');
          if (token.ordered) nodes[0].start = open.next;
        }
        for (const node of nodes) this.append(node);
      }
      open = null;
      this.volatile.push(...nodes);
    }
  }

  // Settles the beginning of a block, from `begin` in the source to its end, that is too long to be drawn again and again.
  // Returns whether it could.
  divide(token, source, begin, prefix) {
    let cut = 0;  // in the tail
    let open = null;
    if (token.type === 'list' && token.items.length > 1) {
      const last = token.items.slice(0, -1).reduce((sum, item) => sum + item.raw.length, begin);
      cut = this.tailOffset(source, last);
      open = {type: 'list', ordered: token.ordered};
    } else if (token.type === 'table' && token.rows.length > 2) {
      cut = this.tail.lastIndexOf('\n', this.tail.length - 2) + 1;
      open = {type: 'table', prefix: prefix || /^[^\n]*\n[^\n]*\n/.exec(source.slice(begin))[0]};
    } else if (token.type === 'paragraph') {
      cut = cutAfter(this.tail, '\n', kMostTail);
      if (cut === 0 && this.tail.length >= kMostLine) {
        cut = cutAfter(this.tail, '. ', kMostLine) || cutAfter(this.tail, ' ', kMostLine) || kMostLine;
      }
      open = {type: 'paragraph'};
    } else if (this.tail.length >= kMostUndivided) {
      cut = cutAfter(this.tail, '\n', kMostUndivided - 2) || kMostUndivided;
    }
    if (cut <= 0 || cut > this.tail.length) return false;
    const tokens = this.lex(prefix + expandTabs(this.tail.slice(0, cut)));
    this.place(tokens);
    this.define(tokens);
    const drawn = this.volatile.at(-1);
    const before = this.open;
    this.settle();
    if (open?.type === 'list' || open?.type === 'table') {
      open.into = before?.into === drawn.parentElement ? before.into :
          open.type === 'table' ? drawn.querySelector('tbody') : drawn;
      if (open.into.childElementCount >= kMostItems) {
        open.next = (open.into.start ?? 1) + open.into.childElementCount;
        open.into = null;
      }
    }
    this.open = open;
    this.cut(cut);
    return true;
  }
}
