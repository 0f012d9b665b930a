#include "engine/text/jinja/eval.h"

#include <algorithm>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/lexer.h"

namespace smartkv::jinja {
namespace {

// Limit of the nesting of statements and expressions, counted across the macros that run. Protects the stack.
constexpr int kMaxLevels = 500;
constexpr int kMaxMacroDepth = 50;

using Scope = std::map<std::string, Value, std::less<>>;

class Evaluator {
 public:
  Evaluator(const ChatTemplateLimits& limits, const std::function<std::tm()>& now)
      : limits_(limits), environment_{limits.max_steps, limits.max_output_bytes, now} {}

  std::string run(const Block& block, const nlohmann::ordered_json& context,
                  const std::map<std::string, std::string>& variables) {
    Scope& globals = scopes_.emplace_back();
    for (const auto& [key, text] : variables) globals[key] = text;
    for (const auto& [key, value] : context.items()) {
      try {
        globals[key] = Value::from_json(value);
      } catch (const RuntimeError& error) {
        throw ChatTemplateError("the variable \"" + key + "\": " + error.message);
      }
    }
    std::string out;
    run_block(block, out);
    return out;
  }

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  struct Depth {
    Depth(Evaluator& evaluator, int line) : depth_(evaluator.depth_) {
      if (++depth_ > kMaxLevels)
        fail_at(line, "the template runs more than " + std::to_string(kMaxLevels) + " levels deep");
    }
    ~Depth() { --depth_; }
    int& depth_;
  };

  void step(int line, int64_t steps = 1) {
    if (steps > environment_.steps_left) {
      fail_at(line, "the template runs for more than " + std::to_string(limits_.max_steps) + " steps");
    }
    environment_.steps_left -= steps;
  }
  void emit(std::string& out, std::string_view text, int line) {
    if (static_cast<int64_t>(out.size() + text.size()) > limits_.max_output_bytes) {
      fail_at(line, "the output is longer than the limit of " + std::to_string(limits_.max_output_bytes) + " bytes");
    }
    step(line, static_cast<int64_t>(text.size() / 256));
    out += text;
  }

  // Runs `function`, and adds the line to its faults.
  template <typename Function>
  static auto at_line(int line, const Function& function) {
    try {
      return function();
    } catch (const RuntimeError& error) {
      fail_at(line, error.message);
    }
  }

  const Value* lookup(const std::string& name) const {
    for (size_t i = scopes_.size(); i-- > base_;) {
      const auto found = scopes_[i].find(name);
      if (found != scopes_[i].end()) return &found->second;
    }
    if (base_ > 0) {  // A macro sees its own scopes, then the template's.
      const auto found = scopes_[0].find(name);
      if (found != scopes_[0].end()) return &found->second;
    }
    return nullptr;
  }

  // --- statements ---

  Flow run_block(const Block& block, std::string& out) {
    for (const auto& stmt : block) {
      const Flow flow = run_statement(*stmt, out);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow run_statement(const Stmt& stmt, std::string& out) {
    const Depth depth(*this, stmt.line);
    step(stmt.line);
    return at_line(stmt.line, [&] { return run_kind(stmt, out); });
  }

  Flow run_kind(const Stmt& stmt, std::string& out) {
    switch (stmt.kind) {
      case Stmt::Kind::kText: emit(out, stmt.text, stmt.line); break;
      case Stmt::Kind::kPrint: emit(out, environment_.text_of(eval(*stmt.expr)), stmt.line); break;
      case Stmt::Kind::kIf:
        for (const auto& [condition, body] : stmt.branches) {
          if (eval(*condition).truthy()) return run_block(body, out);
        }
        return run_block(stmt.otherwise, out);
      case Stmt::Kind::kFor: run_for(stmt, out); break;
      case Stmt::Kind::kSet: assign(stmt, eval(*stmt.expr)); break;
      case Stmt::Kind::kSetBlock:
      case Stmt::Kind::kFilter: {
        std::string text;
        const Flow flow = run_scoped(stmt.body, text);
        if (flow != Flow::kNext) return flow;
        const Value result = stmt.expr == nullptr ? Value(std::move(text)) : filtered(*stmt.expr, std::move(text));
        if (stmt.kind == Stmt::Kind::kSetBlock) {
          assign(stmt, result);
          break;
        }
        const std::string* shown = result.as<std::string>();
        if (shown == nullptr) fail_at(stmt.line, "a filter block gives \"" + result.type_name() + "\", not a string");
        emit(out, *shown, stmt.line);
        break;
      }
      case Stmt::Kind::kMacro: scopes_.back()[stmt.macro->name] = static_cast<const Macro*>(stmt.macro.get()); break;
      case Stmt::Kind::kBlock: return run_scoped(stmt.body, out);
      case Stmt::Kind::kBreak: return Flow::kBreak;
      case Stmt::Kind::kContinue: return Flow::kContinue;
    }
    return Flow::kNext;
  }

  // Returns the result of the filters for the text of a block.
  Value filtered(const Expr& filters, std::string text) {
    scopes_.emplace_back()[kFilterBody] = std::move(text);
    Value result = eval(filters);
    scopes_.pop_back();
    return result;
  }

  Flow run_scoped(const Block& block, std::string& out) {
    scopes_.emplace_back();
    const Flow flow = run_block(block, out);
    scopes_.pop_back();
    return flow;
  }

  void assign(const Stmt& stmt, Value value) {
    if (!stmt.attribute.empty()) {
      const Value* object = lookup(stmt.text);
      Dict* target = object == nullptr ? nullptr : object->as_dict();
      if (target == nullptr || target->kind != Dict::Kind::kNamespace) {
        fail_at(stmt.line, "\"" + stmt.text + "\" is not a namespace: its attributes cannot be set");
      }
      if (value.extent().is_shared) fail_at(stmt.line, "a namespace cannot hold a namespace");
      target->set(stmt.attribute, std::move(value));
    } else {
      bind(stmt.targets, std::move(value), stmt.line);
    }
  }

  void bind(const std::vector<std::string>& targets, Value value, int line) {
    if (targets.size() == 1) {
      scopes_.back()[targets[0]] = std::move(value);
      return;
    }
    const std::vector<Value> items = at_line(line, [&] { return iterate(value, environment_); });
    if (items.size() != targets.size()) {
      fail_at(line, "expected " + std::to_string(targets.size()) + " values to unpack, found " +
                        std::to_string(items.size()));
    }
    for (size_t i = 0; i < items.size(); ++i) scopes_.back()[targets[i]] = items[i];
  }

  void run_for(const Stmt& stmt, std::string& out) {
    std::vector<Value> items = at_line(stmt.line, [&] { return iterate(eval(*stmt.expr), environment_); });
    if (stmt.condition != nullptr) {
      std::vector<Value> chosen;
      for (Value& item : items) {
        step(stmt.line);
        scopes_.emplace_back();
        bind(stmt.targets, item, stmt.line);
        if (eval(*stmt.condition).truthy()) chosen.push_back(std::move(item));
        scopes_.pop_back();
      }
      items = std::move(chosen);
    }
    if (items.empty()) {
      run_block(stmt.otherwise, out);
      return;
    }
    const int64_t n = static_cast<int64_t>(items.size());
    for (int64_t i = 0; i < n; ++i) {
      step(stmt.line);
      Scope& scope = scopes_.emplace_back();
      const Value previous = i > 0 ? items[i - 1] : Value(Undefined{"loop.previtem"});
      const Value next = i + 1 < n ? items[i + 1] : Value(Undefined{"loop.nextitem"});
      scope["loop"] = Value::dict({{"index", i + 1},
                                   {"index0", i},
                                   {"revindex", n - i},
                                   {"revindex0", n - i - 1},
                                   {"first", i == 0},
                                   {"last", i + 1 == n},
                                   {"length", n},
                                   {"depth", 1},
                                   {"depth0", 0},
                                   {"previtem", previous},
                                   {"nextitem", next}},
                                  Dict::Kind::kLoop);
      bind(stmt.targets, items[i], stmt.line);
      const Flow flow = run_block(stmt.body, out);
      scopes_.pop_back();
      if (flow == Flow::kBreak) break;
    }
  }

  // --- expressions ---

  Value eval(const Expr& expr) {
    const Depth depth(*this, expr.line);
    step(expr.line);
    const auto child = [&](size_t i) { return eval(*expr.children[i]); };
    switch (expr.kind) {
      case Expr::Kind::kConstant: return expr.constant;
      case Expr::Kind::kName: {
        const Value* found = lookup(expr.name);
        if (found != nullptr) return *found;
        return is_function(expr.name) ? Value(Builtin{expr.name}) : Value(Undefined{expr.name});
      }
      case Expr::Kind::kList:
      case Expr::Kind::kTuple: {
        std::vector<Value> items;
        for (const ExprPtr& item : expr.children) items.push_back(eval(*item));
        const bool tuple = expr.kind == Expr::Kind::kTuple;
        return Value::list(std::move(items), tuple ? List::Kind::kTuple : List::Kind::kList);
      }
      case Expr::Kind::kDict: {
        Dict dict;
        for (size_t i = 0; i < expr.children.size(); i += 2) {
          const Value key = child(i), value = child(i + 1);
          at_line(expr.line, [&] { dict.set(key, value); });
        }
        return Value::dict(std::move(dict.items));
      }
      case Expr::Kind::kAttribute: {
        const Value object = child(0);
        return at_line(expr.line, [&] { return get_attribute(object, expr.name); });
      }
      case Expr::Kind::kItem: {
        const Value object = child(0), key = child(1);
        return at_line(expr.line, [&] { return get_item(object, key); });
      }
      case Expr::Kind::kSlice: {
        Value parts[3];
        const Value object = child(0);
        for (size_t i = 0; i < 3; ++i) {
          if (expr.children[i + 1] != nullptr) parts[i] = child(i + 1);
        }
        return at_line(expr.line, [&] { return get_slice(object, parts[0], parts[1], parts[2], environment_); });
      }
      case Expr::Kind::kCall: return call(expr);
      case Expr::Kind::kFilter: {
        const Value value = child(0);
        const Arguments given = arguments(expr);
        return at_line(expr.line, [&] { return apply_filter(expr.name, value, given, environment_); });
      }
      case Expr::Kind::kTest: {
        const Value value = child(0);
        const Arguments given = arguments(expr);
        return at_line(expr.line, [&] { return apply_test(expr.name, value, given, environment_); });
      }
      case Expr::Kind::kUnary: {
        const Value value = child(0);
        if (expr.name == "not") return !value.truthy();
        return at_line(expr.line, [&] { return expr.name == "-" ? negate(value) : negate(negate(value)); });
      }
      case Expr::Kind::kBinary: {
        Value left = child(0);
        if (expr.name == "and") return left.truthy() ? child(1) : left;
        if (expr.name == "or") return left.truthy() ? left : child(1);
        const Value right = child(1);
        return at_line(expr.line, [&] { return binary(expr.name, left, right, environment_); });
      }
      case Expr::Kind::kCompare: return compare_chain(expr);
      case Expr::Kind::kCondition:
        if (child(1).truthy()) return child(0);
        return expr.children[2] == nullptr ? Value(Undefined{"else of an inline if"}) : child(2);
    }
    return {};
  }

  Value compare_chain(const Expr& expr) {
    Value left = eval(*expr.children[0]);
    for (size_t i = 0; i < expr.operators.size(); ++i) {
      Value right = eval(*expr.children[i + 1]);
      const std::string& op = expr.operators[i];
      const bool holds = at_line(expr.line, [&] {
        if (op == "in") return contains(right, left, environment_);
        if (op == "not in") return !contains(right, left, environment_);
        Arguments other;
        other.positional.push_back(right);
        return apply_test(op, left, other, environment_);
      });
      if (!holds) return false;
      left = std::move(right);
    }
    return true;
  }

  Arguments arguments(const Expr& expr) {
    Arguments given;
    for (size_t i = 1; i < expr.children.size(); ++i) given.positional.push_back(eval(*expr.children[i]));
    for (const auto& [key, value] : expr.keywords) given.keywords.emplace_back(key, eval(*value));
    if (expr.unpacked_list != nullptr) {
      const Value list = eval(*expr.unpacked_list);
      for (Value& item : at_line(expr.line, [&] { return iterate(list, environment_); }))
        given.positional.push_back(std::move(item));
    }
    if (expr.unpacked_dict != nullptr) unpack_keywords(eval(*expr.unpacked_dict), expr.line, &given);
    return given;
  }

  void unpack_keywords(const Value& value, int line, Arguments* given) {
    const Dict* dict = value.as_mapping();
    if (dict == nullptr) fail_at(line, "expected a dictionary after **, found \"" + value.type_name() + "\"");
    for (const auto& [key, item] : dict->items) {
      step(line);
      const std::string* name = key.as<std::string>();
      if (name == nullptr)
        fail_at(line, "expected string keys in the dictionary after **, found \"" + key.type_name() + "\"");
      const auto is_given = [&](const auto& keyword) { return keyword.first == *name; };
      if (std::any_of(given->keywords.begin(), given->keywords.end(), is_given))
        fail_at(line, "the argument \"" + *name + "\" is given twice");
      given->keywords.emplace_back(*name, item);
    }
  }

  Value call(const Expr& expr) {
    const Expr& callee = *expr.children[0];
    if (callee.kind == Expr::Kind::kAttribute) {
      const Value object = eval(*callee.children[0]);
      const Arguments given = arguments(expr);
      return at_line(expr.line, [&] { return call_method(object, callee.name, given, environment_); });
    }
    const Value target = eval(callee);
    if (const Builtin* builtin = target.as<Builtin>()) {
      const Arguments given = arguments(expr);
      if (expr.unpacked_list != nullptr || expr.unpacked_dict != nullptr)
        check_unpacked(builtin->name, given, expr.line);
      return at_line(expr.line, [&] { return call_function(builtin->name, given, environment_); });
    }
    const auto* macro = target.as<const Macro*>();
    if (macro == nullptr)
      fail_at(expr.line, "\"" + (callee.name.empty() ? target.type_name() : callee.name) + "\" cannot be called");
    return call_macro(**macro, arguments(expr), expr.line);
  }

  // Checks a call with unpacked arguments. Its shape is not known when the template is parsed.
  static void check_unpacked(const std::string& function, const Arguments& given, int line) {
    CallShape shape;
    shape.positional = given.positional.size();
    for (const auto& [keyword, value] : given.keywords) shape.keywords.push_back(keyword);
    if (const auto fault = check_function(function, shape)) fail_at(line, *fault);
  }

  Value call_macro(const Macro& macro, Arguments given, int line) {
    if (++macro_depth_ > kMaxMacroDepth)
      fail_at(line, "macros call each other more than " + std::to_string(kMaxMacroDepth) + " deep");
    const size_t n_parameters = macro.parameters.size(), n_positional = std::min(given.positional.size(), n_parameters);
    std::vector<Value> more(given.positional.begin() + static_cast<ptrdiff_t>(n_positional), given.positional.end());
    if (!more.empty() && !macro.takes_varargs) {
      fail_at(line, "macro \"" + macro.name + "\" takes " + std::to_string(n_parameters) + " arguments, found " +
                        std::to_string(given.positional.size()));
    }
    std::vector<std::pair<Value, Value>> other;
    for (const auto& [key, value] : given.keywords) {
      const auto parameter =
          std::find(macro.parameters.begin() + static_cast<ptrdiff_t>(n_positional), macro.parameters.end(), key);
      if (parameter != macro.parameters.end()) continue;
      if (!macro.takes_kwargs) fail_at(line, "macro \"" + macro.name + "\" has no unset parameter \"" + key + "\"");
      other.emplace_back(key, value);
    }
    const size_t base = std::exchange(base_, scopes_.size());
    scopes_.emplace_back();
    if (macro.takes_varargs)
      scopes_.back()["varargs"] = at_line(line, [&] { return Value::list(std::move(more), List::Kind::kTuple); });
    if (macro.takes_kwargs) scopes_.back()["kwargs"] = at_line(line, [&] { return Value::dict(std::move(other)); });
    const size_t first_default = n_parameters - macro.defaults.size();
    for (size_t i = 0; i < n_parameters; ++i) {
      const std::string& parameter = macro.parameters[i];
      const Value* value = given.find(i, parameter);
      Value bound = value != nullptr     ? *value
                    : i >= first_default ? eval(*macro.defaults[i - first_default])
                                         : Value(Undefined{parameter});
      scopes_.back()[parameter] = std::move(bound);
    }
    std::string out;
    run_block(macro.body, out);
    scopes_.pop_back();
    base_ = base;
    --macro_depth_;
    return out;
  }

  const ChatTemplateLimits& limits_;
  Environment environment_;
  std::vector<Scope> scopes_;  // The template's scope, then the scopes of loops, blocks and macros.
  size_t base_ = 0;            // First scope of the running macro. It sees no lower scope except the template's.
  int depth_ = 0;
  int macro_depth_ = 0;
};

}  // namespace

std::string render(const Block& block, const nlohmann::ordered_json& context,
                   const std::map<std::string, std::string>& variables, const ChatTemplateLimits& limits,
                   const std::function<std::tm()>& now) {
  return Evaluator(limits, now).run(block, context, variables);
}

}  // namespace smartkv::jinja
