// One policy: its pickers, its answers, its figures.

import * as api from './api.js';
import * as draw from './draw.js';
import {Log} from './log.js';
import {messagesBefore} from './store.js';

const kRateMs = 250;  // over which a rate is measured
const kRates = 120;
const kDrawingShare = 0.15;  // of the time, at most, goes into drawing an answer

function option(value, text, title) {
  const element = new Option(text, value);
  if (title) element.title = title;
  return element;
}

function group(label, options) {
  const element = document.createElement('optgroup');
  element.label = label;
  element.append(...options);
  return element;
}

export class Panel {
  // index: of the policy in a conversation's answers. `actions`: {first(), changed(), ...those of a Log}; `first` is called
  // when an answer's first text is there, `changed` when there is more of it.
  constructor(index, actions) {
    const title = `Policy ${'AB'[index]}`;
    this.index = index;
    this.actions = actions;
    const content = document.getElementById('panel').content.cloneNode(true);
    this.element = content.firstElementChild;
    this.parts = {};
    for (const part of this.element.querySelectorAll('[data-is]')) this.parts[part.dataset.is] = part;
    this.parts.title.textContent = title;
    this.log = new Log(title, {...actions, retry: (turn) => actions.retry(turn, index)});
    this.parts.seen.addEventListener('toggle', () => this.showPrompt());
    this.clear();
  }

  // `details`: of /v1/models.
  offer(details, chosen) {
    const {policy, speculation} = this.parts;
    policy.replaceChildren(
        option('', `the server's default (${details.kv_cache})`),
        group('Presets', details.presets.map((one) => option(one.name, one.name, one.summary))),
        group('Policies', details.policies.map((name) => option(name, name))));
    speculation.replaceChildren(
        option('', `the server's default (${details.speculative})`),
        ...details.speculative_methods.map((name) => option(name, name)));
    if ([...policy.options].some((one) => one.value === chosen)) policy.value = chosen;
  }

  // Shows another conversation; figures are those of an answer in this page.
  show(conversation) {
    this.clear();
    this.log.show(conversation, this.index);
  }

  clear() {
    this.pending = null;  // of the answer that comes: what is not drawn
    this.last = null;   // prompt and usage of the last answer, or the one that comes
    this.tokens = [];   // its prompt's, as text, where somebody looks
    this.spans = [];    // what its cache kept of each token, as /v1/kv tells
    this.id = null;     // of what is being answered
    this.log.brief.textContent = '';
    for (const name of ['bytes', 'tiers', 'prompt', 'drafts', 'speed']) this.parts[name].textContent = '–';
    for (const name of ['bytes', 'prompt', 'drafts']) draw.bar(this.parts[`${name}-bar`], [], 0, 'nothing yet');
    draw.tiers(this.parts['tiers-map'], [], 'nothing yet');
    draw.curve(this.parts['speed-chart'], [], 1, kRates);
    this.parts['raw-text'].textContent = '';
    this.parts['seen-text'].textContent = '';
  }

  // Throws SyntaxError where the parameters are no JSON object.
  choices() {
    const {policy, parameters, speculation} = this.parts;
    const result = {};
    const given = parameters.value.trim();
    if (given) {
      const object = JSON.parse(given);
      if (object === null || typeof object !== 'object' || Array.isArray(object)) {
        throw new SyntaxError('expected a JSON object such as {"bits": 4}');
      }
      if (!policy.value) throw new SyntaxError('choose a policy that they belong to');
      result.kv_cache = {policy: policy.value, ...object};
    } else if (policy.value) {
      result.kv_cache = policy.value;
    }
    if (speculation.value) result.speculative = speculation.value;
    return result;
  }

  // Draws what has come of an answer, and follows its end if that was in sight.
  draw() {
    const {pending, log} = this;
    if (pending === null || pending.pieces.length === 0) return;
    const begin = performance.now();
    const follows = log.isAtEnd();
    pending.answer.add(pending.pieces);
    pending.pieces = [];
    pending.record.text = pending.answer.text;
    if (follows) log.toEnd();
    pending.next = begin + (performance.now() - begin) / kDrawingShare;
    this.actions.changed();
  }

  // At most once a frame, however fast tokens come, and less often where drawing takes long.
  drawSoon(pieces) {
    const {pending} = this;
    pending.pieces.push(...pieces);
    if (pending.pieces.length !== pieces.length) return;
    const now = () => {
      if (this.pending === pending) this.draw();
    };
    const wait = pending.next - performance.now();
    if (wait > 20 || document.hidden) {
      setTimeout(now, Math.max(wait, 20));
    } else {
      requestAnimationFrame(now);
    }
  }

  // Answers the turn that is `index` in the conversation. `shared`: the fields that all panels have in common. Returns the
  // record of the answer, which is part of the conversation from the beginning: what has come when it is stopped stays.
  async ask(conversation, index, system, shared, key, signal) {
    const {log} = this;
    const turn = conversation.turns[index];
    const record = {text: ''};
    turn.answers[this.index] = record;
    let finish = null;
    log.log.setAttribute('aria-busy', 'true');  // read out as a whole, once it is there
    this.pending = {answer: log.begin(index), record, pieces: [], next: 0};
    try {
      const messages = [...messagesBefore(conversation, index, this.index), {role: 'user', content: turn.user}];
      const prompt = system ? [{role: 'system', content: system}, ...messages] : messages;
      const chosen = this.choices();
      this.clock = {sent: performance.now(), first: null, rates: [], since: null, tokens: 0};
      this.spans = [];
      for await (const chunk of api.chat({...shared, ...chosen, messages: prompt}, key, signal)) {
        this.id = chunk.id;
        const pieces = chunk.choices[0]?.drafts;
        if (pieces) {
          this.drawSoon(pieces);
          if (this.clock.first === null) {
            this.clock.first = performance.now();
            this.actions.first();
          }
        }
        finish = chunk.choices[0]?.finish_reason ?? finish;
        this.showFigures(chunk, prompt);
      }
      this.draw();
      if (finish === 'length') record.note = this.limitNote(shared.max_tokens);
      if (record.text === '') record.error = 'The answer is empty.';
    } catch (error) {
      this.draw();
      if (error.name !== 'AbortError') {
        record.error = error.message;
      } else if (record.text !== '') {
        record.note = 'Stopped.';
      } else {
        record.error = 'Stopped before the answer began.';
      }
    } finally {
      this.id = null;
      this.pending = null;
      log.finish(index, record);
      log.log.removeAttribute('aria-busy');
    }
    return record;
  }

  limitNote(most) {
    const made = this.last?.usage.completion_tokens;
    return most !== undefined && made >= most ?
        `Cut at ${draw.count(most)} tokens, the most that an answer may have: see Settings.` :
        'Cut where the model\'s context is full: a new conversation has room.';
  }

  showFigures(chunk, prompt) {
    const {usage, timings} = chunk;
    if (usage) {
      this.showUsage(usage);
      if (!chunk.choices.length) this.parts['raw-text'].textContent = JSON.stringify({usage, timings}, null, 2);
      const begins = this.last?.prompt !== prompt;
      this.last = {prompt, usage};
      if (begins) this.showPrompt();
    }
    this.showSpeed(usage, timings);
  }

  showUsage({kv_cache: cache, prompt_tokens: prompt, prompt_tokens_details: {cached_tokens: cached}, speculative}) {
    const {parts} = this;
    const share = draw.percent(cache.bytes, cache.full_bytes);
    parts.bytes.textContent =
        `${draw.bytes(cache.bytes)}, ${share} of the full cache's ${draw.bytes(cache.full_bytes)}; ` +
        `${draw.count(cache.tokens_kept)} of ${draw.count(cache.tokens)} tokens kept (${cache.policy})`;
    draw.bar(parts['bytes-bar'], [['held', cache.bytes]], cache.full_bytes, `${share} of the full cache`);
    this.log.brief.textContent = `KV cache: ${draw.bytes(cache.bytes)}, ${share} of the full one's (${cache.policy})`;
    if (Object.keys(cache.tiers).length > 0) this.showKept(cache.tiers);  // at the answer's end
    parts.prompt.textContent = `${draw.count(cached)} of ${draw.count(prompt)} tokens were cached`;
    draw.bar(parts['prompt-bar'], [['cached', cached]], prompt, `${draw.percent(cached, prompt)} cached`);
    if (!speculative) {
      parts.drafts.textContent = 'off';
      draw.bar(parts['drafts-bar'], [], 0, 'no drafts');
      return;
    }
    const {method, drafted, accepted, passes} = speculative;
    if (drafted === 0) {
      parts.drafts.textContent = `${method}: nothing was worth drafting`;
    } else {
      parts.drafts.replaceChildren(
          `${method}: `, draw.swatch('good'), `${accepted} accepted, `, draw.swatch('bad'),
          `${drafted - accepted} rejected, in ${passes} passes`);
    }
    draw.bar(parts['drafts-bar'], [['good', accepted], ['bad', drafted - accepted]], drafted,
             `${draw.percent(accepted, drafted)} of ${drafted} drafted tokens accepted`);
  }

  // `live`: the answer's sequence, as /v1/kv tells it.
  showTiers(live) {
    const words = this.showKept(live.tokens);
    draw.tiers(this.parts['tiers-map'], live.spans, `tokens by what is kept of them: ${words.join(', ')}`);
    this.spans = live.spans;
    this.paintPrompt();
  }

  // `tokens`: how many of each tier. Returns them in words.
  showKept(tokens) {
    const kept = Object.entries(tokens).map(([tier, n]) => [tier, `${draw.count(Math.round(n))} ${tier.replace('_', '-')}`]);
    this.parts.tiers.replaceChildren(...kept.flatMap(([tier, words]) => [draw.swatch(`tier-${tier}`), `${words} `]));
    return kept.map(([, words]) => words);
  }

  // The server's own times once they are there; until then what the browser sees.
  showSpeed(usage, timings) {
    const {speed} = this.parts;
    if (timings) {
      speed.textContent = `${timings.decode_tokens_per_second.toFixed(1)} tokens/s; first after ` +
          `${Math.round(timings.queued_ms + timings.prefill_ms)} ms; ${draw.count(usage.completion_tokens)} tokens`;
      return;
    }
    const {clock} = this;
    if (clock.first === null) return;
    const now = performance.now();
    const n = usage.completion_tokens;
    const seconds = (now - clock.first) / 1000;
    const rate = n > 1 && seconds > 0 ? `${((n - 1) / seconds).toFixed(1)} tokens/s; ` : '';
    speed.textContent = `${rate}first after ${Math.round(clock.first - clock.sent)} ms; ${n} tokens`;
    if (clock.since === null) [clock.since, clock.tokens] = [now, n];
    if (now - clock.since < kRateMs) return;
    clock.rates.push((1000 * (n - clock.tokens)) / (now - clock.since));
    if (clock.rates.length > kRates) clock.rates.shift();
    [clock.since, clock.tokens] = [now, n];
    draw.curve(this.parts['speed-chart'], clock.rates, Math.max(...clock.rates), kRates);
  }

  // Asks for the prompt's tokens only where somebody looks.
  async showPrompt() {
    this.tokens = [];
    if (!this.parts.seen.open || this.last === null) return;
    const {prompt, usage} = this.last;
    try {
      const response = await api.post('tokenize', {messages: prompt, return_token_strs: true}, this.key);
      const tokens = (await response.json()).token_strs;
      if (tokens.length !== usage.prompt_tokens) {
        throw new Error(`the prompt had ${usage.prompt_tokens} tokens, /tokenize gives ${tokens.length}`);
      }
      if (this.last?.prompt !== prompt) return;  // the next turn has begun
      this.tokens = tokens;
      this.paintPrompt();
    } catch (error) {
      this.parts['seen-text'].textContent = error.message;
    }
  }

  // The prompt's tokens: the cached ones marked, each by what is kept of it.
  paintPrompt() {
    if (this.tokens.length === 0) return;
    const end = this.last.usage.prompt_tokens_details.cached_tokens;
    const stretches = [];  // of neighbours that look alike
    for (const [i, token] of this.tokens.entries()) {
      const [tier, cached] = [draw.tierAt(this.spans, i), i < end];
      const last = stretches.at(-1);
      if (last?.tier === tier && last.cached === cached) {
        last.text += token;
      } else {
        stretches.push({tier, cached, text: token});
      }
    }
    this.parts['seen-text'].replaceChildren(...stretches.map(({tier, cached, text}) => {
      const element = document.createElement(cached ? 'mark' : 'span');
      if (tier) element.className = `tier-${tier}`;
      element.textContent = text;
      return element;
    }));
  }
}
