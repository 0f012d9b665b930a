// The public API, and nothing else of the server. Paths are relative to the page, which may lie below a path of a proxy.

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.param = error.param;
  }
}

async function fail(response) {
  const text = await response.text();
  let error = {message: `HTTP ${response.status}: ${text.slice(0, 200)}`};
  try {
    error = JSON.parse(text).error ?? error;
  } catch {
    // Not the server's own answer: a proxy's page.
  }
  throw new ApiError(response.status, error);
}

function headers(key) {
  return key ? {'Authorization': `Bearer ${key}`} : {};
}

export async function get(path, key) {
  const response = await fetch(path, {headers: headers(key)});
  return response.ok ? response : fail(response);
}

export async function post(path, body, key, signal) {
  const response = await fetch(path, {
    method: 'POST',
    headers: {'Content-Type': 'application/json', ...headers(key)},
    body: JSON.stringify(body),
    signal,
  });
  return response.ok ? response : fail(response);
}

// What follows each "data: " of server-sent events, up to [DONE]. Throws ApiError for a stream that ends without it.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const {done, value} = await reader.read();
    if (done) throw new ApiError(response.status, {message: 'The answer was cut off: its stream ended without [DONE].'});
    text += value;
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      const event = text.slice(0, end);
      text = text.slice(end + 2);
      if (event === 'data: [DONE]') return;
      if (event.startsWith('data: ')) yield JSON.parse(event.slice(6));
    }
  }
}

// The chunks of a streamed chat completion, each with the usage so far and who wrote what. Throws ApiError, also for one in
// the middle of the stream, and for a stream that ends without a reason to finish.
export async function* chat(request, key, signal) {
  const options = {include_usage: true, continuous_usage_stats: true, include_drafts: true};
  const response = await post('v1/chat/completions', {...request, stream: true, stream_options: options}, key, signal);
  let finished = false;
  for await (const chunk of events(response)) {
    if (chunk.error) throw new ApiError(response.status, chunk.error);
    finished ||= chunk.choices?.some((choice) => choice.finish_reason) ?? false;
    yield chunk;
  }
  if (!finished) throw new ApiError(response.status, {message: 'The answer was cut off: its stream holds no finish_reason.'});
}

// A sample of /metrics by its name, whatever its labels; NaN where there is none.
export function sample(metrics, name) {
  const line = metrics.split('\n').find((one) => one.startsWith(`${name}{`) || one.startsWith(`${name} `));
  return line === undefined ? NaN : Number(line.slice(line.lastIndexOf(' ') + 1));
}
