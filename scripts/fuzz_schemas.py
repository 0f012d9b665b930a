"""Requests answers under generated JSON schemas and checks them with the jsonschema package. Run by
scripts/fuzz_schemas.sh.

Every answer that ends by itself has to parse and to validate. An answer that max_tokens cuts off proves nothing and is
counted separately. If the server refuses a schema, it must answer with a 400 that names a keyword.
"""

import argparse
import collections
import concurrent.futures
import json
import random
import re
import sys
import urllib.error
import urllib.request

import jsonschema
from servers import smartkv_server

WORDS = ["name", "age", "city", "tags", "price", "a b", 'quo"te', "back\\slash", "naïve", "数", "id", "x-y", "", "kind"]
PATTERNS = ["^[a-z]{2,5}$", "^[A-Z][a-z]+( [A-Z][a-z]+)?$", r"^\d{3}-\d{4}$", "^(red|green|blue)$", "foo", r"^\S+@\S+$",
            r"^[^,;]{1,8}$", r"^\w+\s\w+$", "^a.c$", r"^(\+|-)?[0-9]+$", "^$", "[0-9]$"]
FORMATS = ["date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "hostname", "duration", "uri"]


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.definitions = {}

    def chance(self, probability):
        return self.random.random() < probability

    def number(self):
        r = self.random
        return r.choice([r.randint(-5, 5), r.randint(-1000, 1000), round(r.uniform(-10, 10), r.randint(1, 3)), 0, 1e3])

    def value(self):
        r = self.random
        return r.choice([r.choice(WORDS), self.number(), True, False, None, [1, "a"], {"k": [None]}, "line\nbreak"])

    def string(self):
        kind = self.random.randrange(8)
        if kind == 0:
            return {"type": "string", "pattern": self.random.choice(PATTERNS)}
        if kind == 1:
            return {"type": "string", "format": self.random.choice(FORMATS)}
        if kind == 2:
            low = self.random.randint(0, 3)
            return {"type": "string", "minLength": low, "maxLength": low + self.random.randint(0, 6)}
        if kind == 3:
            return {"type": "string", "minLength": self.random.randint(0, 4)}
        if kind == 4:
            return {"type": "string", "maxLength": self.random.choice([13, 100, 500, 100_000])}
        if kind == 5:
            return {"enum": [*self.random.sample(WORDS, 5), "ab"], "maxLength": 4, "pattern": "[a-z]"}
        if kind == 6:
            return {"const": "ab", "enum": ["ab", "b"], "type": "string", "markdownDescription": "*ab*"}
        return {"type": "string"}

    def numeric(self):
        schema = {"type": self.random.choice(["integer", "number"])}
        low = self.number()
        if schema["type"] == "integer":
            low = round(low)
        high = low + self.random.choice([0.5, 1, 7, 100, 12345]) if schema["type"] == "number" else low + self.random.randint(2, 999)
        if self.chance(0.6):
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(0.6):
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = high
        if self.chance(0.1):
            schema = {"type": schema["type"], "multipleOf": self.random.choice([5, 0.01, 25, 0.5])}
        if self.chance(0.1):
            schema = {"type": schema["type"], "minimum": self.random.choice([-1.7976931348623157e308, -2**63]), "maximum": self.random.choice([2**63 - 1, 1e300])}
        return schema

    def array(self, depth):
        schema = {"type": "array", "items": self.schema(depth + 1)}
        if self.chance(0.3):
            schema["prefixItems"] = [self.schema(depth + 1) for _ in range(self.random.randint(1, 2))]
        if self.chance(0.5):
            schema["minItems"] = self.random.randint(0, 3)
        schema["maxItems"] = schema.get("minItems", 0) + self.random.randint(0 if schema.get("minItems") else 1, 3)
        return schema

    def object(self, depth):
        names = self.random.sample(WORDS, self.random.randint(0, 4))
        schema = {"type": "object", "properties": {name: self.schema(depth + 1) for name in names}}
        schema["required"] = [name for name in names if self.chance(0.5)]
        if self.chance(0.1):
            schema["required"].append("more")
        if self.chance(0.5):
            schema["additionalProperties"] = self.random.choice([False, True, {"type": "integer"}])
        elif self.chance(0.2):
            return {"type": "object", "patternProperties": {"^[a-z]+$": self.schema(depth + 1)}, "additionalProperties": False}
        elif self.chance(0.2):
            return {"type": "object", "propertyNames": {"enum": ["north", "south"]}, "additionalProperties": self.schema(depth + 1),
                    "maxProperties": 2}
        return schema

    def tagged(self, depth):
        tags = self.random.sample(["cat", "dog", "bird"], 2)
        return {"oneOf": [{"type": "object", "properties": {"kind": {"const": tag}, "of": self.schema(depth + 2)},
                           "required": ["kind"], "additionalProperties": False} for tag in tags]}

    def all_of(self):
        return {"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
                          {"properties": {"a": {"maximum": 9}, "b": {"type": "string"}}, "required": ["b"]}]}

    def reference(self, depth):
        name = f"Def{len(self.definitions)}"
        self.definitions[name] = None
        self.definitions[name] = self.schema(depth + 1)
        if self.chance(0.4):  # makes it a recursive list
            self.definitions[name] = {"type": "object", "properties": {"of": self.definitions[name], "next": {
                "anyOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}]}}, "required": ["of", "next"]}
        return {"$ref": f"#/$defs/{name}"}

    def schema(self, depth=0):
        makers = [self.string, self.numeric, lambda: {"type": "boolean"}, lambda: {"enum": [self.value() for _ in range(3)]},
                  lambda: {"const": self.value()}, lambda: {"type": ["string", "null"]}]
        if depth < 4:
            makers += [lambda: self.array(depth), lambda: self.object(depth), lambda: self.object(depth),
                       lambda: {"anyOf": [self.schema(depth + 1), self.schema(depth + 1)]}, lambda: self.tagged(depth),
                       self.all_of, lambda: self.reference(depth)]
        if depth == 0:
            makers = makers[-7:]
        if depth == 3:
            makers.append(lambda: {})
        return self.random.choice(makers)()

    def whole(self):
        schema = self.schema()
        if self.definitions:
            schema = dict(schema, **{"$defs": self.definitions})
        return schema


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def check(url, index, options):
    """Returns 'valid', 'cut off', 'refused', or what went wrong."""
    schema = Generator(options.seed * 100_000 + index).whole()
    jsonschema.Draft202012Validator.check_schema(schema)
    body = {"messages": [{"role": "user", "content": "Fill in the form."}], "max_tokens": options.max_tokens, "seed": index,
            "temperature": options.temperature,
            "response_format": {"type": "json_schema", "json_schema": {"name": "form", "schema": schema, "strict": True}}}
    if options.speculative:
        body["speculative"] = options.speculative
    status, answer = post(url, body)
    if status == 400 and (answer["error"]["param"] or "").startswith("response_format.json_schema.schema"):
        return "refused", answer["error"]["message"]
    if status != 200:
        return "failed", f"{status} {answer} for {json.dumps(schema)}"
    choice = answer["choices"][0]
    if choice["finish_reason"] == "length":
        return "cut off", ""
    text = choice["message"]["content"]
    try:
        value = json.loads(text)
        jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    except (ValueError, jsonschema.ValidationError) as error:
        return "failed", f"{error!s:.300}\nschema {json.dumps(schema)}\nanswer {text}"
    return "valid", ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--smartkv", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--speculative", default="")
    options = parser.parse_args()
    counts, reasons = collections.Counter(), collections.Counter()
    with smartkv_server(options.smartkv, options.model) as url, concurrent.futures.ThreadPoolExecutor(16) as pool:
        for kind, text in pool.map(lambda i: check(url + "/v1/chat/completions", i, options), range(options.schemas)):
            counts[kind] += 1
            if kind == "refused":
                reasons[re.sub(r"'[^']*'", "...", text)[:100]] += 1
            if kind == "failed":
                print(f"failed: {text}\n", file=sys.stderr)
    print(f"{options.schemas} schemas: " + ", ".join(f"{counts[kind]} {kind}" for kind in ("valid", "cut off", "refused", "failed")))
    for reason, count in reasons.most_common():
        print(f"  refused {count}: {reason}")
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()
