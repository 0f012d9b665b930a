// The messages of a conversation under one policy, with what can be done with each of them.

import {Answer} from './answer.js';
import {codeOf} from './markdown.js';
import {answerOf} from './store.js';

const kAtEnd = 60;  // pixels from the end that still count as there
const kSaidMs = 1500;

function element(name, kind, text) {
  const result = document.createElement(name);
  if (kind) result.className = kind;
  if (text) result.textContent = text;
  return result;
}

function button(kind, text, label, onClick) {
  const result = element('button', kind, text);
  result.type = 'button';
  if (label) result.setAttribute('aria-label', label);
  result.addEventListener('click', () => onClick(result));
  return result;
}

// Without HTTPS, browsers have no clipboard but the old command.
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const box = element('textarea', 'away');
  box.value = text;
  document.body.append(box);
  box.select();
  const copied = document.execCommand('copy');
  box.remove();
  if (!copied) throw new Error('the browser does not allow it');
}

export class Log {
  // `actions`: {retry(turn), edit(turn, text), say(text)}, where `say` shows a text in the page's status.
  constructor(title, actions) {
    this.actions = actions;
    this.view = 'formatted';
    this.turns = [];  // {element, answer}
    const content = document.getElementById('column').content.cloneNode(true);
    this.element = content.firstElementChild;
    this.title = this.element.querySelector('h2');
    this.title.textContent = title;
    this.brief = this.element.querySelector('.brief');
    this.log = this.element.querySelector('.log');
    this.log.setAttribute('aria-label', `${title}: conversation`);
    this.latest = this.element.querySelector('.latest');
    this.latest.addEventListener('click', () => this.toEnd());
    this.log.addEventListener('scroll', () => {
      this.latest.hidden = this.isAtEnd();
    }, {passive: true});
    this.log.addEventListener('click', (event) => {
      if (event.target.dataset?.copies === 'code') this.copy(event.target, codeOf(event.target), 'code');
    });
  }

  isAtEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < kAtEnd;
  }

  toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
    this.latest.hidden = true;
  }

  // Shows a whole conversation as the i-th policy's. Screen readers do not read it out.
  show(conversation, i) {
    this.log.setAttribute('aria-live', 'off');
    this.turns = [];
    this.log.replaceChildren();
    for (const [index, turn] of conversation.turns.entries()) {
      this.addTurn(turn.user);
      const record = answerOf(turn, i);
      if (record === null) continue;
      const answer = this.begin(index);
      if (record.text) answer.add([{origin: 'model', text: record.text}]);
      this.finish(index, record);
    }
    this.toEnd();
    setTimeout(() => this.log.removeAttribute('aria-live'), 200);
  }

  addTurn(text) {
    const turn = {element: element('div', 'turn'), answer: null};
    const index = this.turns.push(turn) - 1;
    turn.element.append(this.userMessage(index, text));
    this.log.append(turn.element);
    this.toEnd();
  }

  userMessage(index, text) {
    const message = element('div', 'message user');
    const actions = element('div', 'actions');
    actions.setAttribute('aria-live', 'off');
    actions.append(button('', 'Copy', 'Copy your message', (at) => this.copy(at, text, 'message')),
                   button('edit', 'Edit', 'Edit your message', () => this.edit(message, index, text)));
    message.append(element('h3', '', 'You'), element('div', 'body', text), actions);
    return message;
  }

  // Turns a message into a form that sends it again, changed.
  edit(message, index, text) {
    const form = element('form', 'editor');
    const box = element('textarea');
    box.value = text;
    box.rows = Math.min(10, text.split('\n').length + 1);
    box.setAttribute('aria-label', 'Your message, to be changed');
    const later = this.turns.length - 1 - index;
    const note = element('p', 'note', later > 0 ?
        `Sending deletes the answer and ${later} later ${later === 1 ? 'question' : 'questions'}.` : 'Sending replaces the answer.');
    const cancel = () => {
      form.replaceWith(...kept);
      message.querySelector('.edit').focus();
    };
    const send = () => {
      const changed = box.value.trim();
      if (changed) this.actions.edit(index, changed);
    };
    const buttons = element('div', 'buttons');
    const submit = element('button', 'primary', 'Send');
    buttons.append(submit, button('', 'Cancel', '', cancel));
    form.append(box, note, buttons);
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      send();
    });
    form.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        cancel();
      } else if (event.target === box && event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    const kept = [...message.children].slice(1);
    for (const one of kept) one.remove();
    message.append(form);
    box.focus();
    box.setSelectionRange(text.length, text.length);
  }

  // Begins the answer of a turn; an earlier one goes.
  begin(index) {
    const turn = this.turns[index];
    turn.element.querySelectorAll('.assistant, .error').forEach((one) => one.remove());
    const message = element('div', 'message assistant');
    const body = element('div', 'body');
    message.append(element('h3', '', 'Model'), body);
    turn.element.append(message);
    turn.answer = new Answer(body, this.view);
    this.toEnd();
    return turn.answer;
  }

  // `record`: the answer as it is stored.
  finish(index, record) {
    const follows = this.isAtEnd();
    const {answer, element: turn} = this.turns[index];
    answer.finish();
    const message = answer.body.parentElement;
    const actions = element('div', 'actions');
    actions.setAttribute('aria-live', 'off');
    const retry = button('retry', 'Retry', 'Retry: answer again from here', () => this.actions.retry(index));
    if (record.text) {
      if (record.note) message.append(element('p', 'note', record.note));
      const plain = button('', 'Plain text', 'Show this answer as plain text', (at) => this.toggleView(answer, at));
      plain.title = 'The text as it came, with accepted and rejected drafts';
      plain.dataset.toggles = 'view';
      plain.setAttribute('aria-pressed', String(answer.view === 'plain'));
      actions.append(button('', 'Copy', 'Copy the answer', (at) => this.copy(at, answer.text, 'answer')), retry, plain);
      message.append(actions);
    } else {
      message.remove();
    }
    if (record.error) {
      const error = element('div', 'message error');
      error.append(element('h3', '', 'Error'), element('div', 'body', record.error));
      if (!record.text) {
        actions.append(retry);
        error.append(actions);
      }
      turn.append(error);
    }
    if (follows) this.toEnd();
  }

  toggleView(answer, at) {
    const view = answer.view === 'plain' ? 'formatted' : 'plain';
    answer.show(view);
    at.setAttribute('aria-pressed', String(view === 'plain'));
  }

  // Shows all answers in one way, also those to come.
  setView(view) {
    this.view = view;
    for (const {answer, element: turn} of this.turns) {
      answer?.show(view);
      turn.querySelector('[data-toggles=view]')?.setAttribute('aria-pressed', String(view === 'plain'));
    }
  }

  async copy(at, text, what) {
    try {
      await copyText(text);
      at.focus();
      this.actions.say(`The ${what} is copied.`);
      at.textContent = 'Copied';
      setTimeout(() => {
        at.textContent = 'Copy';
      }, kSaidMs);
    } catch (error) {
      this.actions.say(`The ${what} could not be copied: ${error.message}`);
    }
  }

  // Removes the turns from the `from`-th one on.
  cut(from) {
    for (const {element: turn} of this.turns.splice(from)) turn.remove();
  }
}
