// Conversations and settings in the browser's local storage, each conversation under a key of its own, so that two tabs
// do not overwrite each other's. The API key is never stored.
//
// A conversation: {id, title, updated, turns}; a turn: {user, answers}, with one answer per policy, {text, note, error}, or null.

// One host may serve several pages below different paths; their conversations are kept apart.
const kPrefix = `smartkv ${new URL('.', location.href).pathname} `;
const kConversation = `${kPrefix}conversation `;
const kSettings = `${kPrefix}settings`;
const kFolded = `${kPrefix}folded`;
const kKeep = `${kPrefix}keep`;

export class Store {
  constructor() {
    this.storage = null;  // where the browser allows none
    try {
      this.storage = window.localStorage;
      this.storage.getItem(kKeep);
    } catch {
      this.storage = null;
    }
  }

  get available() {
    return this.storage !== null;
  }

  get keeps() {
    return this.available && this.storage.getItem(kKeep) !== 'off';
  }

  // Turning it off deletes conversations and settings.
  setKeeps(keeps) {
    if (!keeps) this.removeAll();
    if (!keeps) this.storage?.removeItem(kSettings);
    this.write(kKeep, keeps ? 'on' : 'off');
  }

  keys() {
    return this.available ? Object.keys(this.storage).filter((key) => key.startsWith(kConversation)) : [];
  }

  // All conversations, the last used first. One that cannot be read is left out.
  conversations() {
    return this.keys().map((key) => this.read(key)).filter(isConversation).sort((a, b) => b.updated - a.updated);
  }

  conversation(id) {
    const found = this.read(kConversation + id);
    return isConversation(found) ? found : null;
  }

  // Returns whether the conversation is stored; false where the storage is full.
  put(conversation) {
    return !this.keeps || this.write(kConversation + conversation.id, JSON.stringify(conversation));
  }

  remove(id) {
    this.storage?.removeItem(kConversation + id);
  }

  removeAll() {
    for (const key of this.keys()) this.storage.removeItem(key);
  }

  get settings() {
    return this.read(kSettings) ?? {};
  }

  putSettings(settings) {
    if (this.keeps) this.write(kSettings, JSON.stringify(settings));
  }

  // Which parts of the page are folded. It is kept with the switch off, too: it holds nothing that anyone wrote.
  get folded() {
    return this.read(kFolded) ?? {};
  }

  putFolded(folded) {
    this.write(kFolded, JSON.stringify(folded));
  }

  // Calls back where another tab changed what is stored.
  onChange(callback) {
    window.addEventListener('storage', (event) => {
      if (event.key === null || event.key === kKeep || event.key.startsWith(kConversation)) callback();
    });
  }

  read(key) {
    try {
      return JSON.parse(this.storage?.getItem(key) ?? 'null');
    } catch {
      return null;
    }
  }

  write(key, value) {
    try {
      this.storage?.setItem(key, value);
      return true;
    } catch {
      return false;  // the quota
    }
  }
}

const isText = (value) => value === undefined || typeof value === 'string';
const isAnswer = (value) => value === null || (typeof value?.text === 'string' && isText(value.note) && isText(value.error));

function isConversation(value) {
  return typeof value?.id === 'string' && typeof value.title === 'string' && Number.isFinite(value.updated) &&
      Array.isArray(value.turns) && value.turns.every(
          (turn) => typeof turn?.user === 'string' && Array.isArray(turn.answers) && turn.answers.every(isAnswer));
}

export function newConversation() {
  // randomUUID is only there on HTTPS and localhost.
  const id = [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
  return {id, title: '', updated: Date.now(), turns: []};
}

const kMostTitle = 60;

export function titleOf(text) {
  const line = text.trim().split('\n')[0];
  return line.length > kMostTitle ? `${line.slice(0, kMostTitle - 1).trimEnd()}…` : line;
}

// The answer of the i-th policy; the first policy's in a turn that was asked before there was a second one.
export const answerOf = (turn, i) => turn.answers[i] ?? turn.answers[0] ?? null;

// What the i-th policy has been told before turn `end`: questions without an answer are left out.
export function messagesBefore(conversation, end, i) {
  return conversation.turns.slice(0, end).flatMap((turn) => {
    const answer = answerOf(turn, i);
    return answer?.text ? [{role: 'user', content: turn.user}, {role: 'assistant', content: answer.text}] : [];
  });
}
