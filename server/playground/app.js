// The page: one or two panels, what they have in common, and the memory of the whole server.

import * as api from './api.js';
import * as draw from './draw.js';
import {Panel} from './panel.js';

const at = (id) => document.getElementById(id);
const kSampleMs = 500;
const kSamples = 120;  // a minute

const panels = [new Panel('Policy A', sampleTiers)];
let details = null;
let running = null;  // AbortController of what is being answered
let failed = [];     // panels without an answer to the last question
const memory = [];

async function describe() {
  try {
    const response = await api.get('v1/models', at('key').value);
    const model = (await response.json()).data[0];
    details = model.details;
    at('model').textContent = `${model.id}, ${details.weights === 'file' ? "the file's" : details.weights} weights, ` +
        `context of ${draw.count(model.max_model_len)} tokens, ${details.device}`;
    for (const panel of panels) panel.offer(details, '');
    sampleMemory();
  } catch (error) {
    details = null;
    at('model').textContent = error.status === 401 ? 'This server wants an API key: see Settings.' : error.message;
    if (error.status === 401) at('settings').open = true;
  }
}

function compare() {
  if (panels.length === 1) {
    panels.push(new Panel('Policy B', sampleTiers));
    if (details !== null) panels[1].offer(details, details.presets[0]?.name ?? '');
  } else {
    panels.pop();
  }
  at('panels').replaceChildren(...panels.map((panel) => panel.element));
  at('compare').setAttribute('aria-pressed', String(panels.length === 2));
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

// Marks what is no longer the same in the second answer; returns it in words.
function markDifference([a, b]) {
  if (a === null || b === null) return '';
  if (a.text === b.text) return 'Both policies gave the same answer.';
  let same = 0;
  while (same < a.text.length && a.text[same] === b.text[same]) ++same;
  b.markFrom(same);
  return `The answers are the same for ${draw.count(same)} characters; what differs is marked in B.`;
}

// asked: the panels that are to answer what stands in the box.
async function send(asked) {
  const text = at('prompt').value.trim();
  if (!text || running !== null) return;
  running = new AbortController();
  at('prompt').value = '';
  failed = [];
  setRunning(true);
  const timer = setInterval(() => {
    sampleMemory();
    sampleTiers();
  }, kSampleMs);
  const [fields, key] = [sharedFields(), at('key').value];
  const ask = (panel) => {
    panel.key = key;
    return panel.ask(text, at('system').value.trim(), fields, key, running.signal);
  };
  let answers = [];
  if (at('in-turn').checked) {
    for (const panel of asked) answers.push(await ask(panel));
  } else {
    answers = await Promise.all(asked.map(ask));
  }
  clearInterval(timer);
  await sampleMemory();
  running = null;
  setRunning(false);
  failed = asked.filter((_, i) => answers[i] === null);
  if (failed.length > 0 && at('prompt').value === '') at('prompt').value = text;
  at('retry').hidden = failed.length === 0;
  at('status').textContent = failed.length > 0 ? 'There is no whole answer: the question is in the box again.' :
      answers.length === 2 ? markDifference(answers) : 'Answered.';
  at('prompt').focus();
}

function setRunning(is) {
  at('send').disabled = at('compare').disabled = at('clear').disabled = is;
  at('stop').disabled = !is;
  if (is) at('retry').hidden = true;
  if (is) at('status').textContent = 'Answering …';
}

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

at('panels').append(panels[0].element);
at('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  send([...panels]);
});
at('retry').addEventListener('click', () => send(failed.filter((panel) => panels.includes(panel))));
at('prompt').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send([...panels]);
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') running?.abort();
});
at('stop').addEventListener('click', () => running?.abort());
at('clear').addEventListener('click', () => {
  for (const panel of panels) panel.clear();
  at('retry').hidden = true;
  at('status').textContent = 'A new conversation.';
  at('prompt').focus();
});
at('compare').addEventListener('click', compare);
at('key').addEventListener('change', describe);
describe();
