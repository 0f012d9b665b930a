// The page: its conversations, one or two panels, and the memory of the whole server.

import * as api from './api.js';
import * as draw from './draw.js';
import {Panel} from './panel.js';
import {newConversation, Store, titleOf} from './store.js';

const at = (id) => document.getElementById(id);
const kSampleMs = 500;
const kSamples = 120;  // a minute
const kSaveMs = 2000;
const kInputs = ['temperature', 'max-tokens', 'seed', 'layer', 'system', 'in-turn', 'rejected', 'plain'];
const kPickers = ['policy', 'parameters', 'speculation'];
const kFull = 'The browser\'s storage is full, so this conversation is not kept. Delete some conversations to make room.';

const store = new Store();
const actions = {
  first: sampleTiers,
  changed: saveSoon,
  retry: (index, i) => retry(index, panels[i]),
  edit,
  say: (text) => {
    at('status').textContent = text;
  },
};
const panels = [new Panel(0, actions)];
let conversation = newConversation();
let details = null;
let running = null;  // {abort, done} of what is being answered
let saved = 0;       // when the conversation was stored
const memory = [];

async function describe() {
  try {
    const response = await api.get('v1/models', at('key').value);
    const model = (await response.json()).data[0];
    details = model.details;
    at('model').textContent = `${model.id}, ${details.weights === 'file' ? "the file's" : details.weights} weights, ` +
        `context of ${draw.count(model.max_model_len)} tokens, ${details.device}`;
    for (const panel of panels) offer(panel, '');
    sampleMemory();
  } catch (error) {
    details = null;
    at('model').textContent = error.status === 401 ? 'This server wants an API key: see Settings.' : error.message;
    if (error.status === 401) {
      setFolded('instruments', false);
      at('settings').open = true;
    }
  }
}

// Fills a panel's pickers, and chooses what was chosen when the page was last open.
function offer(panel, chosen) {
  const kept = store.settings.panels?.[panel.index];
  panel.offer(details, kept?.policy ?? chosen);
  for (const name of ['parameters', 'speculation']) {
    const part = panel.parts[name];
    if (kept && (part.options === undefined || [...part.options].some((one) => one.value === kept[name]))) part.value = kept[name];
  }
}

function setComparing(comparing) {
  if (comparing === (panels.length === 2)) return;
  if (comparing) {
    panels.push(new Panel(1, actions));
    panels[1].log.setView(view());
    if (details !== null) offer(panels[1], details.presets[0]?.name ?? '');
    panels[1].show(conversation);
  } else {
    panels.pop();
  }
  at('columns').replaceChildren(...panels.map((panel) => panel.log.element));
  at('panels').replaceChildren(...panels.map((panel) => panel.element));
  document.body.classList.toggle('comparing', comparing);
  at('compare').setAttribute('aria-pressed', String(comparing));
  for (const panel of panels) panel.log.toEnd();
}

// Settings.

const view = () => (at('plain').checked ? 'plain' : 'formatted');

const showRejected = () => document.body.classList.toggle('accepted-only', !at('rejected').checked);

function saveSettings() {
  const kept = store.settings;
  const settings = {comparing: panels.length === 2, panels: kept.panels ?? []};
  for (const id of kInputs) settings[id] = at(id).type === 'checkbox' ? at(id).checked : at(id).value;
  for (const panel of panels) {
    if (details !== null) settings.panels[panel.index] = Object.fromEntries(kPickers.map((name) => [name, panel.parts[name].value]));
  }
  store.putSettings(settings);
}

function loadSettings() {
  const {settings} = store;
  for (const id of kInputs) {
    if (settings[id] === undefined) continue;
    if (at(id).type === 'checkbox') at(id).checked = settings[id] === true;
    else at(id).value = settings[id];
  }
  showRejected();
  panels[0].log.setView(view());
  setComparing(settings.comparing === true);
}

// A field's number; nothing where it is empty.
function number(id, name) {
  const input = at(id);
  return input.value === '' ? {} : {[name]: input.valueAsNumber};
}

function sharedFields() {
  const fields = {
    ...number('temperature', 'temperature'), ...number('max-tokens', 'max_tokens'), ...number('seed', 'seed'),
  };
  // Two policies are compared on the same random numbers.
  if (panels.length === 2 && fields.seed === undefined) fields.seed = Math.floor(Math.random() * 2 ** 31);
  return fields;
}

// What folds away: the list of conversations and the instruments. On a narrow page they lie over the messages, one at a
// time, and what is open there is kept apart from what is open on a wide one.

const wide = matchMedia('(min-width: 62rem)');
const roomy = matchMedia('(min-width: 75rem)');
const kFoldable = ['conversations', 'instruments'];

function isFolded(name) {
  const kept = store.folded[`${name} ${wide.matches ? 'wide' : 'narrow'}`];
  return kept ?? !(name === 'conversations' ? wide.matches : roomy.matches);
}

function showFolds() {
  for (const name of kFoldable) {
    at(name).hidden = isFolded(name);
    at(`fold-${name}`).setAttribute('aria-expanded', String(!at(name).hidden));
  }
}

function setFolded(name, folded) {
  const state = store.folded;
  const kind = wide.matches ? 'wide' : 'narrow';
  state[`${name} ${kind}`] = folded;
  if (!folded && !wide.matches) state[`${kFoldable.find((one) => one !== name)} ${kind}`] = true;
  store.putFolded(state);
  if (store.available) {
    showFolds();
  } else {
    at(name).hidden = folded;
    at(`fold-${name}`).setAttribute('aria-expanded', String(!folded));
  }
}

// Conversations.

function save() {
  saved = performance.now();
  if (conversation.turns.length === 0) return;
  at('storage').textContent = store.put(conversation) ? '' : kFull;
}

function saveSoon() {
  if (performance.now() - saved > kSaveMs) save();
}

// The conversations of this page where none are stored: this one only.
function known() {
  const all = store.conversations();
  if (conversation.turns.length > 0 && !all.some(({id}) => id === conversation.id)) all.unshift(conversation);
  return all;
}

function listConversations() {
  const all = known();
  at('list').replaceChildren(...all.map((one) => {
    const item = document.createElement('li');
    const open = document.createElement('button');
    open.type = 'button';
    open.className = 'title';
    open.textContent = open.title = one.title;
    if (one.id === conversation.id) open.setAttribute('aria-current', 'true');
    open.addEventListener('click', () => openConversation(one.id));
    const remove = document.createElement('button');
    remove.type = 'button';
    remove.className = 'delete';
    remove.textContent = '×';
    remove.title = 'Delete';
    remove.setAttribute('aria-label', `Delete the conversation: ${one.title}`);
    remove.addEventListener('click', () => deleteConversation(one));
    item.append(open, remove);
    return item;
  }));
  at('delete-all').disabled = all.length === 0;
  at('keep').checked = store.keeps;
  at('keep').disabled = !store.available;
  at('keep-note').textContent = !store.available ? 'This browser does not let the page store anything.' : store.keeps ?
      'In this browser only, readable by everyone who uses it.' : 'Conversations end when the page is closed.';
}

function showConversation(next) {
  conversation = next;
  for (const panel of panels) panel.show(conversation);
  listConversations();
}

async function startConversation() {
  await settle();
  showConversation(newConversation());
  if (!wide.matches) setFolded('conversations', true);
  at('status').textContent = 'A new conversation.';
  at('prompt').focus();
}

async function openConversation(id) {
  await settle();
  const found = store.conversation(id) ?? (id === conversation.id ? conversation : null);
  if (found === null) {
    listConversations();
    return;
  }
  showConversation(found);
  if (!wide.matches) setFolded('conversations', true);
  at('status').textContent = `Conversation: ${found.title}`;
  at('prompt').focus();
}

async function deleteConversation(one) {
  if (!confirm(`Delete "${one.title}"?`)) return;
  if (one.id === conversation.id) {
    await settle();
    store.remove(one.id);
    showConversation(newConversation());
  } else {
    store.remove(one.id);
    listConversations();
  }
  at('storage').textContent = '';
  at('status').textContent = 'The conversation is deleted.';
  at('new').focus();
}

async function deleteAll() {
  if (!confirm('Delete all conversations?')) return;
  await settle();
  store.removeAll();
  showConversation(newConversation());
  at('storage').textContent = '';
  at('status').textContent = 'All conversations are deleted.';
  at('new').focus();
}

function setKeeps(keeps) {
  if (!keeps && store.conversations().length > 0 && !confirm('This deletes all conversations that are kept. Go on?')) {
    at('keep').checked = true;
    return;
  }
  store.setKeeps(keeps);
  if (keeps) saveSettings();
  if (keeps) save();
  at('storage').textContent = keeps ? at('storage').textContent : '';
  at('status').textContent = keeps ? 'Conversations are kept.' : 'Conversations are no longer kept; those that were are deleted.';
  listConversations();
}

// Questions and answers.

// Marks what is no longer the same in the second answer of the last turn.
function markDifference() {
  if (panels.length < 2) return;
  const [a, b] = panels.map((panel) => panel.log.turns.at(-1)?.answer ?? null);
  b?.unmark();
  if (a !== null && b !== null && a.view === b.view && a.text !== b.text) b.markFrom(a);
}

// The difference of two answers in words.
function difference([a, b]) {
  if (a.text === b.text) return 'Both policies gave the same answer.';
  let same = 0;
  while (same < a.text.length && a.text[same] === b.text[same]) ++same;
  return `The answers are the same for ${draw.count(same)} characters; what differs is marked in B.`;
}

// Stops what is being answered, and waits until it is in order.
async function settle() {
  running?.abort();
  await running?.done;
}

// Sends a new message to all panels.
async function send(text) {
  if (!text) return;
  await settle();
  // Questions that nobody answered are no part of the conversation.
  while (conversation.turns.length > 0 && !conversation.turns.at(-1).answers.some((one) => one?.text)) conversation.turns.pop();
  const turn = {user: text, answers: []};
  const index = conversation.turns.push(turn) - 1;
  if (index === 0) conversation.title = titleOf(text);
  for (const panel of panels) {
    panel.log.cut(index);
    panel.log.addTurn(text);
  }
  await answer(index, [...panels]);
}

// Changes the message of a turn, and goes on from there.
async function edit(index, text) {
  await settle();
  conversation.turns.length = index;
  for (const panel of panels) panel.log.cut(index);
  await send(text);
}

// Answers a turn again. The last one is only asked of the panel whose answer it is.
async function retry(index, panel) {
  const later = conversation.turns.length - 1 - index;
  const what = later === 1 ? 'the message' : `the ${later} messages`;
  if (later > 0 && !confirm(`Answering again deletes ${what} after this one. Go on?`)) return;
  await settle();
  const turn = conversation.turns[index];
  conversation.turns.length = index + 1;
  for (const one of panels) one.log.cut(index + 1);
  if (later > 0) turn.answers = [];
  if (at('prompt').value === turn.user) setPrompt('');  // it was put there when it had no answer
  await answer(index, later > 0 ? [...panels] : [panel]);
}

// asked: the panels that are to answer the last turn.
async function answer(index, asked) {
  let finished;
  const controller = new AbortController();
  running = {abort: () => controller.abort(), done: new Promise((resolve) => finished = resolve)};
  setRunning(true);
  conversation.updated = Date.now();
  save();
  listConversations();
  const mine = conversation;
  const timer = setInterval(() => {
    sampleMemory();
    sampleTiers();
  }, kSampleMs);
  const [fields, key] = [sharedFields(), at('key').value];
  const ask = (panel) => {
    panel.key = key;
    return panel.ask(mine, index, at('system').value.trim(), fields, key, controller.signal);
  };
  let answers = [];
  if (at('in-turn').checked) {
    for (const panel of asked) answers.push(await ask(panel));
  } else {
    answers = await Promise.all(asked.map(ask));
  }
  clearInterval(timer);
  save();
  running = null;
  setRunning(false);
  markDifference();
  report(asked, answers, mine.turns[index].user, controller.signal.aborted);
  if (document.activeElement === document.body && matchMedia('(pointer: fine)').matches) at('prompt').focus();
  finished();
  sampleMemory();
}

function report(asked, answers, text, stopped) {
  const without = asked.filter((_, i) => answers[i].text === '');
  if (without.length === asked.length) {
    if (at('prompt').value === '') setPrompt(text);
    at('status').textContent = 'There is no answer: the question is in the box again.';
  } else if (without.length > 0) {
    at('status').textContent = `Policy ${'AB'[without[0].index]} has no answer.`;
  } else if (answers.some((one) => one.error)) {
    at('status').textContent = 'The answer is not whole.';
  } else if (stopped) {
    at('status').textContent = 'Stopped.';
  } else {
    at('status').textContent = answers.length === 2 ? difference(answers) : 'Answered.';
  }
}

function setRunning(is) {
  at('send').hidden = at('compare').disabled = is;
  at('stop').hidden = at('stop').disabled = !is;
  document.body.classList.toggle('running', is);
  if (is) at('status').textContent = 'Answering …';
}

// The box grows with what is written in it.
function fitPrompt() {
  const box = at('prompt');
  box.style.height = 'auto';
  box.style.height = `${box.scrollHeight + box.offsetHeight - box.clientHeight}px`;
}

function setPrompt(text) {
  at('prompt').value = text;
  fitPrompt();
}

function sendPrompt() {
  const text = at('prompt').value.trim();
  if (!text || running !== null) return;
  setPrompt('');
  at('prompt').focus();
  send(text);
}

// Figures.

// What the caches of this page's answers keep of each token.
async function sampleTiers() {
  const asking = panels.filter((panel) => panel.id !== null);
  if (asking.length === 0) return;
  try {
    const layer = at('layer').value;
    const {data} = await (await api.get(`v1/kv?layer=${layer === '' ? 0 : layer}`, at('key').value)).json();
    for (const panel of asking) {
      const live = data.find(({id}) => id === panel.id);
      if (live !== undefined) panel.showTiers(live);
    }
  } catch (error) {
    for (const panel of asking) panel.parts.tiers.textContent = error.message;
  }
}

// Of all requests on the server, not only of this page.
async function sampleMemory() {
  try {
    const metrics = await (await api.get('metrics', at('key').value)).text();
    const used = api.sample(metrics, 'smartkv:kv_bytes_used');
    const kept = api.sample(metrics, 'smartkv:prefix_cache_bytes');
    const budget = api.sample(metrics, 'smartkv:kv_bytes_budget');
    memory.push(used);
    if (memory.length > kSamples) memory.shift();
    at('server-text').textContent =
        `${draw.bytes(used)} held by running requests, ${draw.bytes(kept)} kept for prompts to come, ` +
        `of ${draw.bytes(budget)}.`;
    draw.curve(at('server-chart'), memory, Math.max(...memory), kSamples);
  } catch (error) {
    at('server-text').textContent = `/metrics: ${error.message}`;
  }
}

at('columns').append(panels[0].log.element);
at('panels').append(panels[0].element);
at('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  sendPrompt();
});
at('prompt').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  sendPrompt();
});
at('prompt').addEventListener('input', fitPrompt);
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape') return;
  const over = wide.matches ? undefined : kFoldable.find((name) => !at(name).hidden);
  if (running !== null) {
    running.abort();
  } else if (over !== undefined) {
    setFolded(over, true);
    at(`fold-${over}`).focus();
  }
});
at('stop').addEventListener('click', () => {
  running?.abort();
  at('prompt').focus();
});
at('new').addEventListener('click', startConversation);
at('clear').addEventListener('click', startConversation);
at('compare').addEventListener('click', () => {
  setComparing(panels.length === 1);
  saveSettings();
});
at('delete-all').addEventListener('click', deleteAll);
at('keep').addEventListener('change', () => setKeeps(at('keep').checked));
at('rejected').addEventListener('change', showRejected);
at('plain').addEventListener('change', () => {
  for (const panel of panels) panel.log.setView(view());
  markDifference();
});
at('instruments').addEventListener('change', saveSettings);
at('key').addEventListener('change', describe);
for (const name of kFoldable) at(`fold-${name}`).addEventListener('click', () => setFolded(name, !at(name).hidden));
for (const query of [wide, roomy]) query.addEventListener('change', showFolds);
window.addEventListener('pagehide', () => {
  if (running !== null) save();
});
store.onChange(listConversations);

loadSettings();
showFolds();
showConversation(store.conversations()[0] ?? conversation);
describe();
